// The argument of --map.
#ifndef STATCOLLECT_CLIENT_COMMANDS_MAP_FILE_H_
#define STATCOLLECT_CLIENT_COMMANDS_MAP_FILE_H_

#include <string>

#include "common/status.h"

namespace statcollect::client {

// What a request's `map` takes: the file's content or, unless there is a file of that name, the
// name of a built-in map. kNotFound: neither; kInvalidArgument: too long, or not text.
Result<std::string> ReadMap(const std::string& path);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_MAP_FILE_H_
