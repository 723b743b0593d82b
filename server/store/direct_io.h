// Checks whether files in a folder can be written past the page cache.
#ifndef STATCOLLECT_SERVER_STORE_DIRECT_IO_H_
#define STATCOLLECT_SERVER_STORE_DIRECT_IO_H_

#include <string>

namespace statcollect {

// Tries with a temporary file. False also if the folder cannot be written.
bool SupportsDirectIo(const std::string& directory);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_DIRECT_IO_H_
