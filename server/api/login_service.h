// Makes the links that log a browser in (login.proto).
#ifndef STATCOLLECT_SERVER_API_LOGIN_SERVICE_H_
#define STATCOLLECT_SERVER_API_LOGIN_SERVICE_H_

#include <functional>
#include <memory>
#include <string>

namespace grpc {
class Service;
}

namespace statcollect {

namespace access {
class AccessControl;
}

namespace api {

// `http_address`: where the page is, "127.0.0.1:7434", empty without one; `tls`: it is at https://.
// Both are asked on gRPC's threads. `access` must outlive the server.
std::unique_ptr<grpc::Service> MakeLoginService(access::AccessControl& access,
                                                std::function<std::string()> http_address,
                                                bool tls);

}  // namespace api
}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_API_LOGIN_SERVICE_H_
