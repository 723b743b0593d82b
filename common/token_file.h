// The file with a client's token (STATAGENT_TOKEN_FILE, STATCTL_TOKEN_FILE).
#ifndef STATCOLLECT_COMMON_TOKEN_FILE_H_
#define STATCOLLECT_COMMON_TOKEN_FILE_H_

#include <string>
#include <string_view>

#include "common/status.h"

namespace statcollect {

// The token in the file. kUnauthenticated, with the path and what to do, but never with the file's
// content: no such file, not a plain file, others may read it, empty, cut off, or not a token. A
// few system calls.
Result<std::string> ReadTokenFile(const std::string& path);

// Whether the text contains something that looks like a token.
bool ContainsToken(std::string_view text);

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_TOKEN_FILE_H_
