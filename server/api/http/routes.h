// Which RPC is asked under which path of /api/v1/, and how its answer looks: from the descriptors alone, so
// that a new RPC of Query has its twin at once.
#ifndef STATCOLLECT_SERVER_API_HTTP_ROUTES_H_
#define STATCOLLECT_SERVER_API_HTTP_ROUTES_H_

#include <map>
#include <string>
#include <string_view>

#include <google/protobuf/descriptor.h>

#include "common/status.h"

namespace statcollect::api {

inline constexpr std::string_view kHttpPrefix = "/api/v1/";

struct HttpRoute {
  enum class Answer {
    kMessage,  // the response
    kReport,   // a stream of progress and one report: the report alone
    kLines,    // a stream: one line of JSON a message
  };
  std::string name;  // behind the prefix: as statctl calls it
  const google::protobuf::MethodDescriptor* method = nullptr;
  Answer answer = Answer::kMessage;
  bool changes = false;  // something in the collector: POST only

  // What statctl prints as JSON: the response, or the report in it.
  const google::protobuf::Descriptor& answer_type() const;
  std::string grpc_path() const;  // "/statcollect.v1.Query/Diff"
};

// Every RPC of Query, and GetStatus of Admin, by name.
std::map<std::string, HttpRoute> MakeHttpRoutes();

// 200 404 429 ...: docs/http.md has the table.
int HttpStatusOf(Code code);
std::string_view CodeName(Code code);  // "not_found"

}  // namespace statcollect::api

#endif  // STATCOLLECT_SERVER_API_HTTP_ROUTES_H_
