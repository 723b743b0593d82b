#include "server/api/http/routes.h"

#include <cctype>
#include <utility>

#include "statcollect/v1/admin.pb.h"
#include "statcollect/v1/query.pb.h"

namespace statcollect::api {
namespace {

using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;

// Methods whose command in statctl has a different name.
constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {"ListRuns", "runs"},        {"GetRun", "show"},
    {"GetSeries", "series"},     {"ListScalars", "scalars"},
    {"ListEvents", "events"},    {"GetTop", "top"},
    {"GetStatMap", "stat_map"},  {"ProposeMap", "map"},
    {"ListMemory", "memory"},    {"ListDensity", "density"},
    {"CompareConfig", "config"}, {"CheckRanks", "ranks"},
    {"ReadRecords", "records"},  {"GetStatus", "status"},
    {"GetNoise", "noise"},       {"SaveNoise", "noise_save"},
    {"DeleteNoise", "noise_rm"}, {"ListCaptures", "captures"},
    {"ReadCapture", "capture"},  {"ListExponents", "exponents"},
    {"FollowRuns", "live"},      {"GetHeatMap", "heatmap"},
    {"KeepRun", "keep"},         {"DeleteRun", "rm"},
    {"ListAudit", "audit"},      {"ListLosses", "losses"},
    {"GetCurves", "curves"},     {"GetZoom", "zoom"},
    {"GetWeights", "weights"},   {"GetTokens", "tokens"}};

constexpr std::string_view kChanging[] = {"Save", "Delete", "Remove", "Set",
                                          "Put",  "Keep",   "Create", "Write"};

// Has no end; a page learns from FollowRuns that there is something to list.
constexpr std::string_view kOverGrpcOnly = "FollowEvents";
constexpr std::string_view kEndless = "FollowRuns";
// Of Admin.
constexpr std::string_view kAdministration[] = {"GetStatus", "KeepRun", "DeleteRun", "ListAudit"};

// "MakeNoise" -> "make_noise".
std::string SnakeCase(std::string_view name) {
  std::string text;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isupper(byte) != 0 && !text.empty()) text += '_';
    text += static_cast<char>(std::tolower(byte));
  }
  return text;
}

std::string NameOf(const MethodDescriptor& method) {
  for (const auto& [rpc, name] : kNames) {
    if (method.name() == rpc) return std::string(name);
  }
  return SnakeCase(method.name());
}

HttpRoute RouteOf(const MethodDescriptor& method) {
  HttpRoute route{.name = NameOf(method), .method = &method};
  if (method.server_streaming()) {
    route.answer = method.output_type()->FindFieldByName("report") != nullptr
                       ? HttpRoute::Answer::kReport
                       : HttpRoute::Answer::kLines;
  }
  if (method.name() == kEndless) route.answer = HttpRoute::Answer::kEvents;
  const auto& answer = *method.output_type();
  if (answer.field_count() == 1 &&
      answer.field(0)->type() == google::protobuf::FieldDescriptor::TYPE_BYTES)
    route.answer = HttpRoute::Answer::kBytes;
  for (const std::string_view verb : kChanging)
    route.changes = route.changes || method.name().rfind(verb, 0) == 0;
  return route;
}

}  // namespace

const google::protobuf::Descriptor& HttpRoute::answer_type() const {
  const auto& type = *method->output_type();
  return answer == Answer::kReport ? *type.FindFieldByName("report")->message_type() : type;
}

std::string HttpRoute::grpc_path() const {
  return "/" + method->service()->full_name() + "/" + method->name();
}

std::map<std::string, HttpRoute> MakeHttpRoutes() {
  std::map<std::string, HttpRoute> routes;
  const auto add = [&](const MethodDescriptor& method) {
    if (method.client_streaming() || method.name() == kOverGrpcOnly) return;
    HttpRoute route = RouteOf(method);
    std::string name = route.name;
    routes.emplace(std::move(name), std::move(route));
  };
  const ServiceDescriptor& query =
      *v1::ListRunsRequest::descriptor()->file()->FindServiceByName("Query");
  for (int i = 0; i < query.method_count(); ++i) add(*query.method(i));
  const ServiceDescriptor& admin =
      *v1::GetStatusRequest::descriptor()->file()->FindServiceByName("Admin");
  for (const std::string_view name : kAdministration)
    add(*admin.FindMethodByName(std::string(name)));
  return routes;
}

int HttpStatusOf(Code code) {
  switch (code) {
    case Code::kOk:
      return 200;
    case Code::kInvalidArgument:
    case Code::kOutOfRange:
      return 400;
    case Code::kUnauthenticated:
      return 401;
    case Code::kPermissionDenied:
      return 403;
    case Code::kNotFound:
      return 404;
    case Code::kAlreadyExists:
    case Code::kAborted:
    case Code::kFailedPrecondition:
      return 409;
    case Code::kResourceExhausted:
      return 429;
    case Code::kCancelled:
      return 499;
    case Code::kUnimplemented:
      return 501;
    case Code::kUnavailable:
      return 503;
    case Code::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

std::string_view CodeName(Code code) {
  constexpr std::string_view kCodes[] = {"ok",
                                         "cancelled",
                                         "unknown",
                                         "invalid_argument",
                                         "deadline_exceeded",
                                         "not_found",
                                         "already_exists",
                                         "permission_denied",
                                         "resource_exhausted",
                                         "failed_precondition",
                                         "aborted",
                                         "out_of_range",
                                         "unimplemented",
                                         "internal",
                                         "unavailable",
                                         "data_loss",
                                         "unauthenticated"};
  const auto index = static_cast<std::size_t>(code);
  return index < std::size(kCodes) ? kCodes[index] : kCodes[2];
}

}  // namespace statcollect::api
