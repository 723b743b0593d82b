#include "server/api/http/session.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/names.h"
#include "common/text.h"
#include "server/api/http/routes.h"
#include "server/http/foreign.h"

namespace statcollect::api {
namespace {

constexpr std::uint16_t kHttpPort = 80, kHttpsPort = 443;

// Browsers send cookies to all ports of a host, so each collector has a name of its own for them.
// The prefix makes browsers insist on TLS, and on this very host.
std::string CookieName(const HttpRequest& head) {
  const auto host = head.host.size() == 1 ? ParseAuthority(head.host.front()) : std::nullopt;
  std::uint16_t port = head.encrypted ? kHttpsPort : kHttpPort;
  if (host && host->port != 0) port = host->port;
  return (head.encrypted ? "__Host-statcollect_" : "statcollect_") + std::to_string(port);
}

// Without Max-Age it would end with the browser, which many restore.
std::string CookieField(const HttpRequest& head, const std::string& value,
                        std::chrono::seconds life) {
  return CookieName(head) + "=" + value +
         "; Path=/; HttpOnly; SameSite=Strict; Max-Age=" + std::to_string(life.count()) +
         (head.encrypted ? "; Secure" : "");
}

HttpResponse Answer(int status, const nlohmann::ordered_json& body) {
  return {.status = status, .body = body.dump() + "\n"};
}

HttpResponse SessionRefusal(int status, Code code, const std::string& message) {
  return Answer(status, {{"error", Printable(message, 1000)}, {"code", CodeName(code)}});
}

HttpResponse LogIn(access::AccessControl& access, const HttpRequest& request) {
  const auto body = nlohmann::json::parse(request.body, nullptr, false);
  if (!body.is_object() || !body.contains("link") || !body["link"].is_string())
    return SessionRefusal(400, Code::kInvalidArgument,
                          "log in: found a body without a link; expected {\"link\": \"...\"}, with "
                          "what follows #login= in the address that statctl open prints");
  const auto session = access.LogIn(body["link"].get<std::string>(), request.address);
  if (!session.ok()) {
    const bool refused = session.status().code() == Code::kUnauthenticated;
    return SessionRefusal(refused ? 401 : 500, session.status().code(), session.status().message());
  }
  HttpResponse answer = Answer(200, {{"page", session->page}});
  answer.headers["Set-Cookie"] =
      CookieField(request, session->cookie, access::BrowserSessions::kSessionLife);
  return answer;
}

HttpResponse LogOut(access::AccessControl& access, const HttpRequest& request) {
  access.LogOut(SessionOf(request), request.address);
  HttpResponse answer = Answer(200, nlohmann::ordered_json::object());
  answer.headers["Set-Cookie"] = CookieField(request, "", std::chrono::seconds(0));
  return answer;
}

HttpResponse Serve(access::AccessControl& access, const HttpRequest& request) {
  const std::string_view name = std::string_view(request.path).substr(kSessionPrefix.size());
  if (name != "login" && name != "logout")
    return SessionRefusal(
        404, Code::kNotFound,
        "no page '" + Printable(request.path) + "'; there are /session/login and /session/logout");
  if (request.method != "POST") {
    HttpResponse refused = SessionRefusal(405, Code::kUnimplemented, "expected POST");
    refused.headers["Allow"] = "POST";
    return refused;
  }
  return name == "login" ? LogIn(access, request) : LogOut(access, request);
}

}  // namespace

access::SessionCredential SessionOf(const HttpRequest& head) {
  access::SessionCredential found;
  if (access::IsSessionSecret(head.session)) found.page = head.session;
  const std::string name = CookieName(head) + "=";
  for (const std::string& field : head.cookies) {
    for (std::string_view cookie : PartsOf(field, ';')) {
      cookie = Trimmed(cookie, " ");
      if (cookie.starts_with(name) && access::IsSessionSecret(cookie.substr(name.size())))
        found.cookie = cookie.substr(name.size());
    }
  }
  return found;
}

HttpService MakeSessionService(access::AccessControl& access) {
  return [&access](const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) {
    exchange->Send(Serve(access, request));
  };
}

}  // namespace statcollect::api
