// Reads the spill file that a training process left (common/spill_format.h). The file is locked
// meanwhile, as its agent does, so that only one process sends it.
#ifndef STATCOLLECT_CLIENT_IMPORTS_SPILL_READER_H_
#define STATCOLLECT_CLIENT_IMPORTS_SPILL_READER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/records.h"
#include "common/spill_format.h"
#include "common/status.h"

namespace statcollect::client {

// Thread: one.
class SpillReader {
 public:
  // kUnavailable: a running agent or another statctl has the file. kDataLoss, kFailedPrecondition:
  // not a spill file, or unreadable. Messages do not name the file.
  static Result<std::unique_ptr<SpillReader>> Open(const std::string& path);
  ~SpillReader();
  SpillReader(const SpillReader&) = delete;
  SpillReader& operator=(const SpillReader&) = delete;

  const SessionInfo& session() const { return session_; }
  std::uint64_t first_seq() const { return first_seq_; }
  std::uint64_t bytes() const { return bytes_; }  // size of the file from the first frame on

  struct Frame {
    std::uint32_t records = 0;
    std::string payload;  // a serialized Records
  };
  // The next frame; empty at the end. kDataLoss: the file is damaged here, and the rest cannot be
  // read.
  Result<std::optional<Frame>> Next();
  // Valid at the end: the agent's last counters; empty if its process was killed.
  const std::optional<AgentCounters>& goodbye() const { return goodbye_; }
  // Number of bytes at the end that are not a whole frame, because the process was killed while
  // writing.
  std::uint64_t torn_bytes() const { return torn_bytes_; }

 private:
  explicit SpillReader(int fd) : fd_(fd) {}
  Status ReadHead();

  const int fd_;
  SessionInfo session_;
  std::uint64_t first_seq_ = 1, size_ = 0, at_ = 0, bytes_ = 0, torn_bytes_ = 0;
  std::optional<AgentCounters> goodbye_;
};

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_IMPORTS_SPILL_READER_H_
