#include "server/http/request_head.h"

#include <string>
#include <vector>

#include "common/project.h"
#include "common/text.h"

namespace statcollect {
namespace {

namespace http = boost::beast::http;

std::vector<std::string> FieldsOf(const http::request_header<>& request, const char* name) {
  std::vector<std::string> values;
  const auto [begin, end] = request.equal_range(name);
  for (auto field = begin; field != end; ++field) values.emplace_back(field->value());
  return values;
}

// Of a field that is sent once: several make a value that nothing is equal to.
std::string FieldOf(const http::request_header<>& request, const char* name) {
  return Joined(FieldsOf(request, name));
}

}  // namespace

HttpRequest HeadOf(const http::request_header<>& request) {
  const std::string target(request.target());
  const std::size_t mark = target.find('?');
  return {
      .method = request.method() == http::verb::head ? "GET" : std::string(request.method_string()),
      .path = target.substr(0, mark),
      .query = mark == std::string::npos ? "" : target.substr(mark + 1),
      .content_type = std::string(request[http::field::content_type]),
      .body = {},
      .accept_encoding = std::string(request[http::field::accept_encoding]),
      .if_none_match = std::string(request[http::field::if_none_match]),
      .last_event_id = std::string(request["Last-Event-ID"]),
      .csrf = std::string(request["X-Statcollect-Csrf"]),
      .authorization = FieldsOf(request, "Authorization"),
      .host = FieldsOf(request, "Host"),
      .origin = FieldOf(request, "Origin"),
      .fetch_site = FieldOf(request, "Sec-Fetch-Site"),
      .fetch_mode = FieldOf(request, "Sec-Fetch-Mode"),
      .fetch_dest = FieldOf(request, "Sec-Fetch-Dest"),
      .cookies = FieldsOf(request, "Cookie"),
      .session = FieldOf(request, "X-Statcollect-Session"),
      .project = FieldsOf(request, kProjectField)};
}

}  // namespace statcollect
