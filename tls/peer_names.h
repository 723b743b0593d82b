// Who a client's certificate is about.
#ifndef STATCOLLECT_TLS_PEER_NAMES_H_
#define STATCOLLECT_TLS_PEER_NAMES_H_

#include <string>
#include <vector>

#include <openssl/ssl.h>

namespace statcollect::tls {

// The subject's alternative names (DNS names, addresses, URIs, mail) of the peer's verified
// certificate, or, if it has none, its common name: what gRPC says about such a peer. Empty without
// a verified certificate. Names that hold control characters are left out.
std::vector<std::string> PeerNames(const SSL* connection);

// Of a certificate, in its order.
std::vector<std::string> NamesOf(const X509* certificate);

}  // namespace statcollect::tls

#endif  // STATCOLLECT_TLS_PEER_NAMES_H_
