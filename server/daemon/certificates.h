// The collector's certificates: those of its flags, or those that it makes itself.
#ifndef STATCOLLECT_SERVER_DAEMON_CERTIFICATES_H_
#define STATCOLLECT_SERVER_DAEMON_CERTIFICATES_H_

#include <memory>

#include "common/status.h"
#include "server/daemon/config.h"
#include "tls/reloader.h"

namespace statcollect {

// Null without TLS. With --tls-auto, DATA-DIR/tls is made if it is missing, and two tokens if there
// are none. kInvalidArgument, kInternal: the files cannot be used or made.
Result<std::unique_ptr<tls::Reloader>> OpenCertificates(const DaemonConfig& config);

// With --tls-auto: says on standard error what the clients of `listen` need (null: those of the
// Unix socket).
void PrintClientVariables(const DaemonConfig& config, const Endpoint* listen);

// `statcollectord tls init DIR [--host NAME...]`: the exit code.
int RunTlsCommand(int argc, const char* const* argv);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_DAEMON_CERTIFICATES_H_
