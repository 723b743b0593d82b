// Maps paths of /api/v1/ to RPCs and kinds of answer, using only the descriptors, so that a new RPC
// of Query has its endpoint at once.
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
    kReport,   // a stream of progress and one report: only the report
    kLines,    // a stream: one line of JSON per message
    kEvents,   // a stream without an end: a server-sent event per message
    kBytes,    // the response's only field, as it is
  };
  std::string name;  // after the prefix: the name of the statctl command
  const google::protobuf::MethodDescriptor* method = nullptr;
  Answer answer = Answer::kMessage;
  bool changes = false;  // changes something in the collector: POST only

  // The type that statctl prints as JSON: the response, or the report in it.
  const google::protobuf::Descriptor& answer_type() const;
  std::string grpc_path() const;  // "/statcollect.v1.Query/Diff"
};

// Every RPC of Query, and of Admin those that the page needs, by name.
std::map<std::string, HttpRoute> MakeHttpRoutes();

// The HTTP status for a gRPC code: docs/http.md has the table.
int HttpStatusOf(Code code);
std::string_view CodeName(Code code);  // "not_found"

}  // namespace statcollect::api

#endif  // STATCOLLECT_SERVER_API_HTTP_ROUTES_H_
