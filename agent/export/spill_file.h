// The file on the training machine's disk where batches wait while the collector is away or too slow
// (bytes: common/spill_format.h). It is there only while it is needed: made with the first frame, removed
// once the collector has everything.
//
// Its name is the rank and the session's random id, in the folder that the user chose; mode 0600; locked
// (flock) as long as the agent lives, so that `statctl import spill` leaves it alone. Written through the
// page cache, not synced: it outlives the process, not the machine.
//
// Threads: Read from one; everything else from one other, which says to the first which offsets are whole.
#ifndef STATCOLLECT_AGENT_EXPORT_SPILL_FILE_H_
#define STATCOLLECT_AGENT_EXPORT_SPILL_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "agent/export/encoded_batch.h"
#include "common/records.h"
#include "common/spill_format.h"
#include "common/status.h"

namespace statcollect {

struct SpillOptions {
  std::string directory;  // empty: no spill file
  std::uint64_t bytes_max = std::uint64_t{1} << 30;
};

class SpillFile {
 public:
  // `hello`: the serialized AgentMessage that opens the session's stream.
  SpillFile(SpillOptions options, std::uint32_t rank, const SessionId& session, std::string hello);
  ~SpillFile() { Close(); }
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  // Makes the folder if it is not there, and tells what keeps files from being made in it.
  Status CheckDirectory() const;

  bool exists() const { return fd_ >= 0; }
  const std::string& path() const { return path_; }
  std::uint64_t bytes_max() const { return options_.bytes_max; }
  std::uint64_t bytes() const { return exists() ? end_ - freed_ : 0; }  // on the disk
  bool Fits(std::size_t payload_bytes) const;

  // Makes the file; its first frame will begin with record `seq`.
  Status Create(std::uint64_t seq);
  // Adds the batch at the end and says where it is. After a failure the file is as it was before.
  Status Append(const EncodedBatch& batch, FileSpan* at);
  // Ends the file with what the agent would have said to the collector.
  Status AppendGoodbye(std::string_view message);
  Status Write(const spill::Mark& mark);
  // Gives the disk back what lies before `offset`, where the file system can.
  void FreeBefore(std::uint64_t offset);
  // Takes the file's name away; it can still be read here.
  void Hide();
  bool hidden() const { return hidden_; }
  // Leaves the file, as it is, to whoever sends it later.
  void Close();
  // Deletes the file, if there is one.
  void Remove();

  // The batch at the offset, without number. kDataLoss: damaged; `frame->records` then tells how many records
  // are lost, or 0 if the frame's head cannot be read either, and so nothing after it.
  Result<EncodedBatch> Read(std::uint64_t offset, spill::FrameHead* frame) const;

 private:
  Status AppendFrame(const spill::FrameHead& frame, std::string_view payload, FileSpan* at);
  Status WriteAt(std::uint64_t offset, std::string_view bytes);
  Status Failed(const char* what, int error) const;

  const SpillOptions options_;
  const std::string hello_;
  const std::string path_;
  int fd_ = -1;
  bool hidden_ = false;
  std::uint64_t end_ = 0;
  std::uint64_t freed_ = 0;  // bytes given back
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_EXPORT_SPILL_FILE_H_
