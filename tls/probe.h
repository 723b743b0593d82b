// Finds out with a handshake of its own why a TLS connection fails, because gRPC says only that it
// did.
#ifndef STATCOLLECT_TLS_PROBE_H_
#define STATCOLLECT_TLS_PROBE_H_

#include <chrono>
#include <string>

#include "tls/files.h"

namespace statcollect::tls {

struct ProbeOptions {
  std::chrono::milliseconds timeout{1000};  // of the whole probe, apart from looking up the host
  Names names;                              // of the client's files, for the next step
};

// One sentence that says what is wrong with TLS between us and `address` (HOST:PORT), as a client
// with `ours`; empty if the handshake works, or if the reason is not TLS (nothing listens there, or
// it is silent). Without authorities, `ours` means a client that does not use TLS: then the
// sentence says whether the server does. Blocks up to the timeout; thread-safe; raises no signal.
std::string ExplainFailure(const std::string& address, const Material& ours,
                           const ProbeOptions& options);

}  // namespace statcollect::tls

#endif  // STATCOLLECT_TLS_PROBE_H_
