// Reads what a training process left in its spill file (common/spill_format.h). The file is locked meanwhile,
// as its agent does, so that two cannot send it at once.
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
  // kUnavailable: an agent that lives, or another statctl, has it. kDataLoss, kFailedPrecondition: no spill
  // file, or one that cannot be read. Messages do not name the file.
  static Result<std::unique_ptr<SpillReader>> Open(const std::string& path);
  ~SpillReader();
  SpillReader(const SpillReader&) = delete;
  SpillReader& operator=(const SpillReader&) = delete;

  const SessionInfo& session() const { return session_; }
  std::uint64_t first_seq() const { return first_seq_; }
  std::uint64_t bytes() const { return bytes_; }  // of the file, from the first frame on

  struct Frame {
    std::uint32_t records = 0;
    std::string payload;  // a serialized Records
  };
  // The next one; nothing at the end. kDataLoss: damaged here, and nothing behind it can be told.
  Result<std::optional<Frame>> Next();
  // After the end: what the agent had to say at last; nothing if its process was killed.
  const std::optional<AgentCounters>& goodbye() const { return goodbye_; }
  // The process was killed while it wrote: so many bytes at the end are no whole frame.
  std::uint64_t torn_bytes() const { return torn_bytes_; }

 private:
  explicit SpillReader(int fd) : fd_(fd) {}
  Status ReadHead();
  Status ReadAt(std::uint64_t offset, std::size_t size, std::string* bytes) const;

  const int fd_;
  SessionInfo session_;
  std::uint64_t first_seq_ = 1, size_ = 0, at_ = 0, bytes_ = 0, torn_bytes_ = 0;
  std::optional<AgentCounters> goodbye_;
};

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_IMPORTS_SPILL_READER_H_
