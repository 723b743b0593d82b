// The names under which browsers reach the collector.
#ifndef STATCOLLECT_SERVER_DAEMON_HTTP_NAMES_H_
#define STATCOLLECT_SERVER_DAEMON_HTTP_NAMES_H_

#include "server/daemon/config.h"
#include "server/http/foreign.h"
#include "tls/reloader.h"

namespace statcollect {

// This machine's name, those of the configuration, and those in the certificate (null: without
// TLS), which must outlive the rules.
ForeignRules MakeForeignRules(const DaemonConfig& config, const tls::Reloader* certificates);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_DAEMON_HTTP_NAMES_H_
