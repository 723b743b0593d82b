#include "server/page/page.h"

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/names.h"
#include "common/text.h"
#include "server/http/gzip.h"

namespace statcollect {
namespace {

// Styles are set by the page's scripts through the object model, which needs no permission.
constexpr std::string_view kPolicy =
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; img-src 'self' "
    "data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

struct Ready {
  std::string type, etag, plain, packed;
};

std::string EtagOf(std::string_view bytes) {
  char text[2 * sizeof(std::uint64_t) + 3];
  std::snprintf(text, sizeof text, "\"%016llx\"",
                static_cast<unsigned long long>(XXH3_64bits(bytes.data(), bytes.size())));
  return text;
}

// Whether If-None-Match names it: "*", a list, weak or not.
bool Matches(std::string_view if_none_match, std::string_view etag) {
  for (std::string_view one : PartsOf(if_none_match, ',')) {
    one = Trimmed(one);
    if (one.starts_with("W/")) one.remove_prefix(2);
    if (one == "*" || one == etag) return true;
  }
  return false;
}

HttpResponse Refused(int status, const std::string& message) {
  return {.status = status, .content_type = "text/plain; charset=utf-8", .body = message + "\n"};
}

HttpResponse Answer(const std::map<std::string, Ready, std::less<>>& files,
                    const HttpRequest& request) {
  if (request.method != "GET") {
    HttpResponse refused = Refused(405, "expected GET or HEAD");
    refused.headers["Allow"] = "GET, HEAD";
    return refused;
  }
  const auto found = files.find(request.path);
  if (found == files.end())
    return Refused(404, "no page '" + Printable(request.path) + "'; the page begins at /");
  const Ready& file = found->second;
  HttpResponse answer{.content_type = file.type};
  answer.headers = {{"Cache-Control", "no-cache"},  // asked again, answered with 304
                    {"ETag", file.etag},
                    {"Vary", "Accept-Encoding"},
                    {"Content-Security-Policy", std::string(kPolicy)},
                    {"Cross-Origin-Opener-Policy", "same-origin"}};
  if (Matches(request.if_none_match, file.etag)) {
    answer.status = 304;
    return answer;
  }
  const bool packed = !file.packed.empty() && AcceptsGzip(request.accept_encoding);
  if (packed) answer.headers["Content-Encoding"] = "gzip";
  answer.body = packed ? file.packed : file.plain;
  return answer;
}

}  // namespace

HttpService MakePageService(std::span<const PageFile> files) {
  auto ready = std::make_shared<std::map<std::string, Ready, std::less<>>>();
  for (const PageFile& file : files) {
    Ready made{.type = std::string(file.type),
               .etag = EtagOf(file.bytes),
               .plain = std::string(file.bytes)};
    made.packed = Gzip(file.bytes, 9);
    if (made.packed.size() >= made.plain.size()) made.packed.clear();
    ready->emplace(file.path, std::move(made));
  }
  return [ready](const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) {
    exchange->Send(Answer(*ready, request));
  };
}

}  // namespace statcollect
