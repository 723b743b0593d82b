// Bodies of answers, compressed for clients that take it.
#ifndef STATCOLLECT_SERVER_HTTP_GZIP_H_
#define STATCOLLECT_SERVER_HTTP_GZIP_H_

#include <string>
#include <string_view>

namespace statcollect {

// Whether a client that sent this Accept-Encoding takes gzip: "gzip, br", "*", but not "gzip;q=0".
bool AcceptsGzip(std::string_view accept_encoding);

// Level 1 (fast) to 9 (small). Cost: about 10 ms per MiB at level 1. Throws std::bad_alloc.
std::string Gzip(std::string_view text, int level);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_HTTP_GZIP_H_
