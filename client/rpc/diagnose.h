// Why no connection to a collector came about, found out with plain sockets: gRPC says only that it failed.
#ifndef STATCOLLECT_CLIENT_RPC_DIAGNOSE_H_
#define STATCOLLECT_CLIENT_RPC_DIAGNOSE_H_

#include <chrono>
#include <string>

#include "common/status.h"

namespace statcollect::client {

struct Diagnosis {
  Status status;        // kUnavailable, with what was found and the next step for that
  bool silent = false;  // nothing has answered yet
};

// Tells apart: an unknown host, nobody, silence, HTTP, something else. `patience`: how long an answer was or
// will be waited for, for the message. Cost: a look-up of the host, and up to a second.
Diagnosis DiagnoseConnection(const std::string& address, std::chrono::milliseconds patience);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_RPC_DIAGNOSE_H_
