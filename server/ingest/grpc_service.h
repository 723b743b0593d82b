// The Ingest service on gRPC's callback API: hundreds of streams, without a thread per stream.
#ifndef STATCOLLECT_SERVER_INGEST_GRPC_SERVICE_H_
#define STATCOLLECT_SERVER_INGEST_GRPC_SERVICE_H_

#include <chrono>
#include <memory>

#include "server/ingest/ingest_stream.h"

namespace grpc {
class ServerBuilder;
class Service;
}  // namespace grpc

namespace statcollect {

// Thread-safe. Must outlive the grpc::Server with which it is registered.
class IngestService {
 public:
  virtual ~IngestService() = default;
  virtual grpc::Service* service() = 0;
  // Ends the streams whose hello is overdue by now.
  virtual void CheckHellos(std::chrono::milliseconds timeout) = 0;
  // Refuses new streams; open ones end gracefully.
  virtual void BeginDrain() = 0;
  // Waits until every stream is gone; false after the timeout.
  virtual bool AwaitStreams(std::chrono::milliseconds timeout) = 0;
};

// What the server of the service must refuse before it takes memory: messages above the protocol's
// limit, and compressed ones, because gRPC inflates without a limit.
void LimitMessages(grpc::ServerBuilder& builder);

std::unique_ptr<IngestService> MakeIngestService(const StreamContext& context);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_INGEST_GRPC_SERVICE_H_
