// Why no connection to a collector came about, found out with plain sockets: gRPC says only that it failed.
#ifndef STATCOLLECT_CLIENT_DIAGNOSE_H_
#define STATCOLLECT_CLIENT_DIAGNOSE_H_

#include <chrono>
#include <string>

#include "common/status.h"

namespace statcollect::client {

// kUnavailable with what was found at HOST:PORT (an unknown host, nobody, silence, HTTP, something else) and
// the next step for that. `waited`: how long gRPC has tried. Cost: a look-up of the host, and up to a second.
Status DiagnoseConnection(const std::string& address, std::chrono::milliseconds waited);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_DIAGNOSE_H_
