// Messages as JSON, by reflection: the output of `statctl --format json` and of the HTTP endpoints.
// Scripts rely on these rules:
//
//   field                     JSON
//   name                      the proto's own, in snake_case, in the order of declaration
//   message, optional, oneof  null when absent
//   enumeration               lower case without the type's prefix ("missing_in_a", "grad_output");
//   null when
//                             unspecified; the number of a value that this build does not know
//   integer                   number, also for 64 bits
//   fixed64                   content hash: "0x" and 16 hexadecimal digits
//   float, double             number with the digits that read back as the same value; NaN and
//   infinities are
//                             the strings "NaN", "Infinity", "-Infinity"
//   bytes                     lower-case hexadecimal string
//   repeated                  list; map: object, by ascending key
#ifndef STATCOLLECT_PROTO_JSON_H_
#define STATCOLLECT_PROTO_JSON_H_

#include <string>

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>

namespace statcollect {

nlohmann::ordered_json ToJson(const google::protobuf::Message& message);

// "grad_output" for KIND_GRAD_OUTPUT; "unspecified" for zero; the number for a value that this
// build does not know.
std::string EnumText(const google::protobuf::EnumDescriptor& type, int value);

// Text of a JSON value in ASCII; all other characters and control characters are escaped. `indent`
// < 0: on one line.
std::string DumpJson(const nlohmann::ordered_json& json, int indent = 2);

}  // namespace statcollect

#endif  // STATCOLLECT_PROTO_JSON_H_
