// Checks shared by the conversions of all message families. An error names the field and the index
// of the value.
#ifndef STATCOLLECT_PROTO_CONVERT_CHECKS_H_
#define STATCOLLECT_PROTO_CONVERT_CHECKS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "common/names.h"
#include "common/status.h"
#include "proto/convert.h"

namespace statcollect::convert {

inline constexpr std::uint64_t kElementsMax = std::uint64_t{1} << 62;

Status Invalid(std::string message);
// "stats.min", 3 -> "stats.min[3]"
std::string At(const char* field, std::size_t index);
Status InvalidValue(const char* field, std::size_t index, const std::string& found,
                    const std::string& expected);
// Prefixes the message of a failed check with the place of the value.
Status Within(const std::string& place, const Status& status);

// Whether an enumeration of `count` values knows this one; 0 is unspecified.
inline bool InRange(int value, int count) { return value > 0 && value < count; }
Status CheckOptionalName(const char* what, const std::string& name);
// At most kTextBytesMax.
Status CheckText(const char* what, const std::string& text);

// At most kConfigEntriesMax entries, valid names, values that pass CheckText.
template <typename Map>
Status CheckTextMap(const char* what, const Map& map) {
  if (map.size() > kConfigEntriesMax) {
    return Invalid(std::string(what) + " has " + std::to_string(map.size()) + " entries; at most " +
                   std::to_string(kConfigEntriesMax) + " are accepted");
  }
  for (const auto& [key, value] : map) {
    STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName(what, key));
    STATCOLLECT_RETURN_IF_ERROR(
        Within(std::string(what) + " '" + Printable(key) + "'", CheckText("value", value)));
  }
  return Status::Ok();
}

template <typename Map>
std::map<std::string, std::string> CopyMap(const Map& map) {
  return {map.begin(), map.end()};
}

}  // namespace statcollect::convert

#endif  // STATCOLLECT_PROTO_CONVERT_CHECKS_H_
