// Converts HTTP requests to messages by reflection, from query parameters or a JSON body. Names and
// texts follow proto/json.h: fields by their own name, enumerations in lower case.
#ifndef STATCOLLECT_SERVER_API_HTTP_REQUEST_H_
#define STATCOLLECT_SERVER_API_HTTP_REQUEST_H_

#include <string>
#include <string_view>

#include <google/protobuf/message.h>

#include "common/status.h"

namespace statcollect::api {

// "run_a=base&ranks=0,1&ranks=4&all": a repeated field may appear several times, or as a list
// separated by commas (an encoded comma, %2C, is part of a text, but separates numbers and names).
// A flag without a value is true. Fields that are messages have no parameter. kInvalidArgument
// names the parameter, what was found and expected, and the valid parameters.
Status FillFromQuery(std::string_view query, google::protobuf::Message& request);

// A JSON object with the same names; null means absent; numbers may be text. An empty body is an
// empty object.
Status FillFromJson(const std::string& body, google::protobuf::Message& request);

// "a, b, c": the parameters of a request.
std::string KnownParameters(const google::protobuf::Descriptor& type);

}  // namespace statcollect::api

#endif  // STATCOLLECT_SERVER_API_HTTP_REQUEST_H_
