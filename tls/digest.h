// SHA-256, for what must not be mistaken for something else.
#ifndef STATCOLLECT_TLS_DIGEST_H_
#define STATCOLLECT_TLS_DIGEST_H_

#include <string>
#include <string_view>

namespace statcollect::tls {

// 64 hexadecimal digits.
std::string Sha256(std::string_view bytes);

}  // namespace statcollect::tls

#endif  // STATCOLLECT_TLS_DIGEST_H_
