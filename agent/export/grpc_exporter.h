// The exporter's transport over gRPC: one channel, and one Ingest.Stream call for each stream.
#ifndef STATCOLLECT_AGENT_EXPORT_GRPC_EXPORTER_H_
#define STATCOLLECT_AGENT_EXPORT_GRPC_EXPORTER_H_

#include <memory>
#include <string>

#include "agent/export/transport.h"

namespace statcollect {

// `address`: host:port. `project`: a valid name, or empty. `token_file`: empty for no token.
//
// The token and the files of `tls` are read again for each stream. A token that cannot be read ends
// the stream with kUnauthenticated, files that cannot be used end it with kUnavailable. Files that
// cannot be used now are kInvalidArgument. Precondition: all streams end before the transport is
// destroyed.
Result<std::unique_ptr<Transport>> MakeGrpcTransport(std::string address, std::string token_file,
                                                     std::string project, TlsOptions tls);

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_EXPORT_GRPC_EXPORTER_H_
