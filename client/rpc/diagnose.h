// Finds out with plain sockets why a connection to a collector failed, because gRPC says only that
// it did.
#ifndef STATCOLLECT_CLIENT_RPC_DIAGNOSE_H_
#define STATCOLLECT_CLIENT_RPC_DIAGNOSE_H_

#include <chrono>
#include <string>

#include "common/status.h"
#include "tls/files.h"

namespace statcollect::client {

struct Diagnosis {
  Status status;        // kUnavailable, with what was found and the next step
  bool silent = false;  // no answer yet
};

// Distinguishes an unknown host, a closed port, TLS that fails (`tls`: as which client), silence,
// HTTP and other protocols. `patience`: how long the caller waits for an answer in total, for the
// message. Cost: a look-up of the host, and up to a second.
Diagnosis DiagnoseConnection(const std::string& address, const tls::Material& tls,
                             std::chrono::milliseconds patience);

// Whether the machine of this valid address says at once that no program listens there. Silence is
// not that.
bool NothingListens(const std::string& address);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_RPC_DIAGNOSE_H_
