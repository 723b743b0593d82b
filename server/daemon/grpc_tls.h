// TLS for the gRPC server, with certificates that change while it runs.
#ifndef STATCOLLECT_SERVER_DAEMON_GRPC_TLS_H_
#define STATCOLLECT_SERVER_DAEMON_GRPC_TLS_H_

#include <memory>

#include <grpcpp/security/server_credentials.h>

#include "tls/reloader.h"

namespace statcollect {

// Before anything of gRPC is used: gRPC 1.51 has no setting for the lowest version of TLS (decision
// 34).
void RequireTls13();

// Each new connection gets what `certificates` has then. With authorities, clients need a
// certificate. `certificates` outlives the server.
std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(const tls::Reloader& certificates);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_DAEMON_GRPC_TLS_H_
