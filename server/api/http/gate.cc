#include "server/api/http/gate.h"

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/names.h"
#include "proto/json.h"
#include "server/access/token.h"
#include "server/api/http/routes.h"
#include "server/api/http/session.h"

namespace statcollect::api {
namespace {

const std::map<std::string, std::string>& GrpcPaths() {
  static const auto* paths = [] {
    auto* made = new std::map<std::string, std::string>();
    for (const auto& [name, route] : MakeHttpRoutes())
      made->emplace(std::string(kHttpPrefix) + name, route.grpc_path());
    return made;
  }();
  return *paths;
}

HttpResponse Refusal(int status, Code code, const std::string& message) {
  const nlohmann::ordered_json body = {{"error", Printable(message, 4000)},
                                       {"code", CodeName(code)}};
  HttpResponse response{.status = status, .body = DumpJson(body) + "\n"};
  if (status == 401) response.headers["WWW-Authenticate"] = "Bearer realm=\"statcollect\"";
  return response;
}

}  // namespace

std::string MethodOfPath(std::string_view path) {
  const auto found = GrpcPaths().find(std::string(path));
  return found == GrpcPaths().end() ? std::string(path) : found->second;
}

HttpGate MakeHttpGate(access::AccessControl& access, ForeignCheck* foreign) {
  return [&access, foreign](const HttpRequest& head) -> std::optional<HttpResponse> {
    if (auto refusal = foreign != nullptr ? foreign->Check(head) : std::nullopt) {
      const Status why(Code::kPermissionDenied, std::move(refusal->message));
      access.AuditRefusal({.authorization = {}, .method = head.path, .address = head.address}, why);
      return Refusal(refusal->status, why.code(), why.message());
    }
    if (access::HoldsToken(head.query)) {
      return Refusal(
          400, Code::kInvalidArgument,
          "found a token in the URL, where logs and histories keep it; expected it in the field "
          "'Authorization: Bearer stc_...'; revoke that token: statcollectord token revoke");
    }
    const std::string method = MethodOfPath(head.path);
    const auto allowed = access.Check(
        {.authorization =
             std::vector<std::string_view>(head.authorization.begin(), head.authorization.end()),
         .method = method,
         .address = head.address,
         .certificate = head.certificate,
         .project = std::vector<std::string_view>(head.project.begin(), head.project.end()),
         .session = SessionOf(head)});
    if (allowed.ok()) return std::nullopt;
    const Code code = allowed.status().code();
    return Refusal(HttpStatusOf(code), code, allowed.status().message());
  };
}

}  // namespace statcollect::api
