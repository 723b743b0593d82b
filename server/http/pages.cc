#include "server/http/pages.h"

#include <exception>

#include <nlohmann/json.hpp>

#include "common/names.h"

namespace statcollect {

HttpResponse ErrorResponse(int status, const std::string& message) {
  return {.status = status,
          .content_type = "application/json",
          .body = nlohmann::json{{"error", message}}.dump() + "\n"};
}

HttpResponse AnswerPage(const std::map<std::string, HttpHandler>& handlers,
                        const HttpServices& services, const HttpMessage& request,
                        const std::string& target) {
  if (request.method() != boost::beast::http::verb::get &&
      request.method() != boost::beast::http::verb::head) {
    return ErrorResponse(405, "expected GET or HEAD");
  }
  const auto handler = handlers.find(target.substr(0, target.find('?')));
  if (handler == handlers.end()) {
    std::string known;
    for (const auto& [path, unused] : handlers) known += (known.empty() ? "" : ", ") + path;
    for (const auto& [path, unused] : services)
      known += (known.empty() ? "" : ", ") + path + (path == "/" ? "" : "...");
    return ErrorResponse(404, "no page '" + Printable(target) + "'; there are " + known);
  }
  try {
    return handler->second(target);
  } catch (const std::exception& failure) {
    return ErrorResponse(500, Printable(failure.what()));
  }
}

}  // namespace statcollect
