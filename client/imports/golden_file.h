// A golden: the records of one run in a file of its own, with which later runs are compared
// wherever there is a collector. docs/golden.md has the format.
#ifndef STATCOLLECT_CLIENT_IMPORTS_GOLDEN_FILE_H_
#define STATCOLLECT_CLIENT_IMPORTS_GOLDEN_FILE_H_

#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/status.h"
#include "statcollect/v1/query.pb.h"

namespace statcollect::client {

// The first bytes of the file.
std::string GoldenHead(const v1::GetRunResponse& run);
// One message of ReadRecords. The caller appends it.
std::string GoldenFrame(const v1::ReadRecordsResponse& message);
// The last bytes: how many messages and tensor records came before, so that a file that was cut off
// is noticed.
std::string GoldenEnd(std::uint64_t messages, std::uint64_t tensors);

// Records of all kinds in a message.
std::uint64_t RecordsIn(const v1::Records& records);

// Reads the file from its beginning to its end. Thread: one.
class GoldenReader {
 public:
  // kNotFound: there is no such file. kDataLoss: it is not a golden, or damaged. Messages do not
  // name the file.
  static Result<std::unique_ptr<GoldenReader>> Open(const std::string& path);

  const v1::GetRunResponse& run() const { return run_; }
  // The next message; empty at the end. kDataLoss: damaged or cut off.
  Result<std::optional<v1::ReadRecordsResponse>> Next();
  // Valid at the end: of the whole file.
  std::uint32_t checksum() const { return checksum_; }
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t tensors() const { return tensors_; }

 private:
  explicit GoldenReader(const std::string& path) : file_(path, std::ios::binary) {}
  Status ReadHead();
  Result<std::string> ReadFrame();
  Result<std::string> Read(std::size_t size);

  std::ifstream file_;
  v1::GetRunResponse run_;
  std::uint32_t checksum_ = 0;
  std::uint64_t bytes_ = 0, messages_ = 0, tensors_ = 0;
  bool ended_ = false;
};

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_IMPORTS_GOLDEN_FILE_H_
