// Reads JSON of any size as events. Nesting uses no stack, numbers keep every digit, and an error
// names file and line.
#ifndef STATCOLLECT_CLIENT_FORMATS_JSON_READER_H_
#define STATCOLLECT_CLIENT_FORMATS_JSON_READER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "client/formats/source.h"
#include "common/status.h"

namespace statcollect::client::formats {

inline constexpr std::size_t kJsonDepthMax = 512;
inline constexpr std::size_t kJsonValueBytesMax = std::size_t{1} << 20;

struct JsonValue {
  enum class Type { kNull, kNumber, kBool, kString } type = Type::kNull;
  double number = 0;  // bool: 0 or 1
  bool integer = false;
  std::string_view text;  // of a string; of a number as it is written
};

// Handles one type of file. A failed status ends the reading.
class JsonVisitor {
 public:
  virtual ~JsonVisitor() = default;
  virtual Status OnValue(const JsonValue& value) = 0;
  virtual Status OnKey(std::string_view key) = 0;
  virtual Status OnBegin(bool object) = 0;
  virtual Status OnEnd() = 0;
};

// Hands the file to the visitor. kInvalidArgument, with file and line: not JSON (`expected` says
// what the file should be), or what the visitor found.
Status ReadJson(ByteSource& file, JsonVisitor& visitor, const std::string& expected);

// A visitor's error, without a position, which ReadJson adds.
Status Found(std::string_view found, const std::string& expected);
// Such an error with its position; others as they are.
Status PlacedAt(const std::string& path, std::uint64_t line, const Status& status);

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_CLIENT_FORMATS_JSON_READER_H_
