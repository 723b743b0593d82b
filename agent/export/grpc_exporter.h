// The exporter's transport over gRPC: one channel, and one Ingest.Stream call for each stream.
#ifndef STATCOLLECT_AGENT_EXPORT_GRPC_EXPORTER_H_
#define STATCOLLECT_AGENT_EXPORT_GRPC_EXPORTER_H_

#include <memory>
#include <string>

#include "agent/export/transport.h"

namespace statcollect {

// `address`: host:port. `token_file`: read for each stream; one that cannot be used is the stream's final status
// (kUnauthenticated); empty: no token. `project`: a valid name, or empty. Streams must end before the transport does. kInvalidArgument: the files of
// `tls` cannot be used now; if that happens later, a stream ends with kUnavailable, and the next one reads them
// again.
Result<std::unique_ptr<Transport>> MakeGrpcTransport(std::string address, std::string token_file,
                                                     std::string project, TlsOptions tls);

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_EXPORT_GRPC_EXPORTER_H_
