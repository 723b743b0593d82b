// Reads the ring file that a killed training process left (common/ring_format.h): the raw values of
// its last steps. The file is locked meanwhile, as its agent does.
#ifndef STATCOLLECT_CLIENT_IMPORTS_RING_READER_H_
#define STATCOLLECT_CLIENT_IMPORTS_RING_READER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/records.h"
#include "common/ring_format.h"
#include "common/status.h"

namespace statcollect::client {

// Thread: one.
class RingReader {
 public:
  // kUnavailable: a running agent or another statctl has the file. kDataLoss, kFailedPrecondition:
  // not a ring file, or unreadable. Messages do not name the file.
  static Result<std::unique_ptr<RingReader>> Open(const std::string& path);
  ~RingReader();
  RingReader(const RingReader&) = delete;
  RingReader& operator=(const RingReader&) = delete;

  const SessionInfo& session() const { return session_; }
  // Of the last steps that the user wanted to keep; whole ones, by step and age.
  const std::vector<ring::Slot>& tensors() const { return tensors_; }
  // The tensor's values. kDataLoss: the file cannot be read.
  Result<std::string> Values(const ring::Slot& tensor) const;

 private:
  explicit RingReader(int fd) : fd_(fd) {}
  Status ReadHead();
  Status ReadSlots();

  const int fd_;
  SessionInfo session_;
  ring::Head head_;
  std::vector<ring::Slot> tensors_;
};

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_IMPORTS_RING_READER_H_
