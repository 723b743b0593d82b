// A private certificate authority and what it signs, for collectors without certificates of their
// own.
#ifndef STATCOLLECT_TLS_AUTHORITY_H_
#define STATCOLLECT_TLS_AUTHORITY_H_

#include <chrono>
#include <string>
#include <vector>

#include "common/status.h"

namespace statcollect::tls {

struct AuthorityFiles {
  std::string ca, ca_key, certificate, key, client_certificate, client_key;
};

// DIR/ca.pem, ca.key, server.pem, server.key, client.pem, client.key.
AuthorityFiles FilesIn(const std::string& directory);

struct AuthorityOptions {
  std::vector<std::string> hosts;  // names and addresses of the server
  std::chrono::hours valid{
      24 * 825};  // of the server's and the client's; the authority's lasts ten years
};

// Makes the folder (0700), an authority, a certificate of the server for `hosts`, and one for
// clients; key files are 0600. If the folder has an authority, that one signs new certificates, so
// that its clients need nothing new. kInvalidArgument: no hosts, or a host that is none. kInternal:
// a file cannot be read or written. What exists is replaced file by file, the key first.
Status MakeCertificates(const std::string& directory, const AuthorityOptions& options);

// This machine's names and addresses, as far as it knows them; localhost, 127.0.0.1 and ::1 are
// always there.
std::vector<std::string> OwnHosts();

}  // namespace statcollect::tls

#endif  // STATCOLLECT_TLS_AUTHORITY_H_
