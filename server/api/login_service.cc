#include "server/api/login_service.h"

#include <chrono>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "server/access/access.h"
#include "server/api/calls.h"
#include "statcollect/v1/login.grpc.pb.h"

namespace statcollect::api {
namespace {

class LoginService final : public v1::Login::CallbackService {
 public:
  LoginService(access::AccessControl& access, std::function<std::string()> http_address, bool tls)
      : access_(access), http_address_(std::move(http_address)), tls_(tls) {}

  grpc::ServerUnaryReactor* CreateLink(grpc::CallbackServerContext* context,
                                       const v1::CreateLinkRequest*,
                                       v1::CreateLinkResponse* response) override {
    std::vector<std::string_view> fields;
    const auto [begin, end] = context->client_metadata().equal_range("authorization");
    for (auto field = begin; field != end; ++field)
      fields.emplace_back(field->second.data(), field->second.size());
    const auto secret = access_.MakeLink({.authorization = fields,
                                          .method = "/statcollect.v1.Login/CreateLink",
                                          .address = context->peer()});
    auto* reactor = context->DefaultReactor();
    if (!secret.ok()) {
      reactor->Finish(ToGrpc(secret.status()));
      return reactor;
    }
    response->set_http_address(http_address_());
    response->set_tls(tls_);
    if (!secret->empty()) {
      response->set_secret(*secret);
      const std::chrono::nanoseconds life = access::BrowserSessions::kLinkLife;
      response->set_expires_unix_nanos(SystemClock().UnixNanos() + life.count());
    }
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  access::AccessControl& access_;
  const std::function<std::string()> http_address_;
  const bool tls_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeLoginService(access::AccessControl& access,
                                                std::function<std::string()> http_address,
                                                bool tls) {
  return std::make_unique<LoginService>(access, std::move(http_address), tls);
}

}  // namespace statcollect::api
