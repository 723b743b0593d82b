// Messages as JSON, by reflection: what `statctl --format json` prints and what the HTTP pages answer. The
// rules, on which scripts rely:
//
//   field                     JSON
//   name                      the proto's own, in snake_case, in the order of the field numbers' declaration
//   message, optional, oneof  null when absent
//   enumeration               lower case without the type's prefix ("missing_in_a", "grad_output"); null when
//   unspecified; a value
//                             that this build does not know as its number
//   integer                   number, 64-bit ones included
//   fixed64                   content hash: "0x" and 16 hexadecimal digits
//   float, double             number with the digits that give the same value back; NaN and infinities as the
//   strings "NaN",
//                             "Infinity", "-Infinity"
//   bytes                     lower-case hexadecimal string
//   repeated                  list; map: object, by ascending key
#ifndef STATCOLLECT_PROTO_JSON_H_
#define STATCOLLECT_PROTO_JSON_H_

#include <string>

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>

namespace statcollect {

nlohmann::ordered_json ToJson(const google::protobuf::Message& message);

// "grad_output" for KIND_GRAD_OUTPUT; "unspecified" for zero; the number for a value that this build does not
// know.
std::string EnumText(const google::protobuf::EnumDescriptor& type, int value);

// Text of a JSON value, ASCII only: everything else, and so every control character, is escaped. `indent` <
// 0: on one line.
std::string DumpJson(const nlohmann::ordered_json& json, int indent = 2);

}  // namespace statcollect

#endif  // STATCOLLECT_PROTO_JSON_H_
