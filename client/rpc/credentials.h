// How statctl's channels to a collector are named and secured.
#ifndef STATCOLLECT_CLIENT_RPC_CREDENTIALS_H_
#define STATCOLLECT_CLIENT_RPC_CREDENTIALS_H_

#include <memory>
#include <string>

#include <grpcpp/security/credentials.h>

#include "common/unix_address.h"
#include "tls/files.h"

namespace statcollect::client {

// HOST:PORT, or unix:/PATH.
inline std::string TargetOf(const std::string& address) {
  return IsUnixAddress(address) ? UnixTarget(address) : "dns:///" + address;
}

// A Unix socket is always plain: who may connect to it is a matter of its permissions.
inline std::shared_ptr<grpc::ChannelCredentials> MakeCredentials(const std::string& address,
                                                                 const tls::Material& tls) {
  if (tls.authorities.empty() || IsUnixAddress(address)) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials({.pem_root_certs = tls.authorities,
                               .pem_private_key = tls.key,
                               .pem_cert_chain = tls.certificate});
}

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_RPC_CREDENTIALS_H_
