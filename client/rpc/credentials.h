// How statctl's channels to a collector are secured.
#ifndef STATCOLLECT_CLIENT_RPC_CREDENTIALS_H_
#define STATCOLLECT_CLIENT_RPC_CREDENTIALS_H_

#include <memory>

#include <grpcpp/security/credentials.h>

#include "tls/files.h"

namespace statcollect::client {

inline std::shared_ptr<grpc::ChannelCredentials> MakeCredentials(const tls::Material& tls) {
  if (tls.authorities.empty()) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials(
      {.pem_root_certs = tls.authorities, .pem_private_key = tls.key, .pem_cert_chain = tls.certificate});
}

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_RPC_CREDENTIALS_H_
