// Reads a part of a file, whatever interrupts it.
#ifndef STATCOLLECT_COMMON_READ_AT_H_
#define STATCOLLECT_COMMON_READ_AT_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace statcollect {

// `size` bytes from `offset` on into `bytes`, which is made that long. How many there were: fewer
// only at the file's end; -1 after an error, which errno tells.
ssize_t ReadAt(int fd, std::uint64_t offset, std::size_t size, std::string* bytes);

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_READ_AT_H_
