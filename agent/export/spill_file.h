// The file on the training machine's disk where batches wait while the collector is unreachable or
// too slow (format: common/spill_format.h). It exists only while needed: created with the first
// frame, removed when the collector has everything.
//
// Its name consists of the rank and the session's random id, in the folder that the user chose.
// Mode 0600; locked (flock) while the agent lives, so that `statctl move import spill` leaves it
// alone. Written through the page cache, not synced: it survives the process, not the machine.
//
// Threads: one thread calls Read; one other calls everything else and publishes the offsets that
// may be read.
#ifndef STATCOLLECT_AGENT_EXPORT_SPILL_FILE_H_
#define STATCOLLECT_AGENT_EXPORT_SPILL_FILE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "agent/export/encoded_batch.h"
#include "common/records.h"
#include "common/spill_format.h"
#include "common/status.h"

namespace statcollect {

struct SpillOptions {
  std::string directory;  // empty: no spill file
  std::uint64_t bytes_max = std::uint64_t{1} << 30;
};

// "FOLDER/rank3-SESSION.spill", of the session's files there.
std::string SpillPath(const std::string& folder, std::uint32_t rank, const SessionId& session,
                      std::string_view suffix);
// Files there that processes left which have ended, of spilled records or of a ring: each can be
// sent by `statctl move import spill`. At most 1,000; none if the folder cannot be read.
std::size_t CountLeftFiles(const std::string& folder);
// Creates the folder if it is missing; an error says why files cannot be created in it.
Status CheckSpillDirectory(const std::string& folder);

class SpillFile {
 public:
  // `hello`: the serialized AgentMessage that opens the session's stream.
  SpillFile(SpillOptions options, std::uint32_t rank, const SessionId& session, std::string hello);
  ~SpillFile() { Close(); }
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  Status CheckDirectory() const { return CheckSpillDirectory(options_.directory); }
  // What the user should know about its folder's permissions; empty: nothing.
  std::string Remark() const;

  bool exists() const { return fd_ >= 0; }
  const std::string& path() const { return path_; }
  std::uint64_t bytes_max() const { return options_.bytes_max; }
  std::uint64_t bytes() const { return exists() ? end_ - freed_ : 0; }  // on the disk
  bool Fits(std::size_t payload_bytes) const;
  std::uint64_t progress() const {
    return progress_;
  }  // calls of the system that have returned; any thread

  // Creates the file; its first frame will begin with record `seq`.
  Status Create(std::uint64_t seq);
  // Adds the batch at the end and says where it is. After a failure the file is as it was before.
  Status Append(const EncodedBatch& batch, FileSpan* at);
  // Ends the file with the goodbye that the agent would have sent to the collector.
  Status AppendGoodbye(std::string_view message);
  Status Write(const spill::Mark& mark);
  // Frees the disk space before `offset`, if the file system supports it.
  void FreeBefore(std::uint64_t offset);
  // Unlinks the file; it can still be read here.
  void Hide();
  bool hidden() const { return hidden_; }
  // Closes the file and leaves it on the disk, to be sent later.
  void Close();
  // Deletes the file, if there is one.
  void Remove();

  // The batch at the offset, without a number. kDataLoss: damaged; `frame->records` is then the
  // number of lost records, or 0 if the frame's head is damaged too and nothing after it can be
  // read.
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
  std::uint64_t freed_ = 0;  // bytes freed at the beginning
  mutable std::atomic<std::uint64_t> progress_{0};
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_EXPORT_SPILL_FILE_H_
