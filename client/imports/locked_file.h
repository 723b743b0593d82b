// Files that an agent leaves behind, and keeps locked while it lives. Messages do not name the
// file.
#ifndef STATCOLLECT_CLIENT_IMPORTS_LOCKED_FILE_H_
#define STATCOLLECT_CLIENT_IMPORTS_LOCKED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/status.h"

namespace statcollect::client {

// The caller closes what is returned. kUnavailable: a running agent or another statctl has it.
Result<int> OpenLocked(const std::string& path);
// kDataLoss: it is not a regular file.
Result<std::uint64_t> SizeOf(int fd);
// kDataLoss: it ends too early, or cannot be read.
Status ReadExactly(int fd, std::uint64_t offset, std::size_t size, std::string* bytes);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_IMPORTS_LOCKED_FILE_H_
