// The Transfer service: whole runs, from one collector to another (transfer.proto, statctl move
// migrate).
//
// Threads: gRPC's callback API; work runs on pools of its own, apart from queries.
#ifndef STATCOLLECT_SERVER_API_TRANSFER_SERVICE_H_
#define STATCOLLECT_SERVER_API_TRANSFER_SERVICE_H_

#include <memory>

namespace grpc {
class Service;
}

namespace statcollect {

class RunCopies;
class Store;

namespace api {

// Both must outlive the service, which must outlive the grpc::Server.
std::unique_ptr<grpc::Service> MakeTransferService(Store& store, RunCopies& copies);

}  // namespace api
}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_API_TRANSFER_SERVICE_H_
