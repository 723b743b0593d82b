#include "proto/convert/checks.h"

#include <utility>

namespace statcollect::convert {

Status Invalid(std::string message) { return Status(Code::kInvalidArgument, std::move(message)); }

std::string At(const char* field, std::size_t index) {
  return std::string(field) + "[" + std::to_string(index) + "]";
}

Status InvalidValue(const char* field, std::size_t index, const std::string& found,
                    const std::string& expected) {
  return Invalid("batch: " + At(field, index) + " is " + found + "; expected " + expected);
}

Status Within(const std::string& place, const Status& status) {
  return status.ok() ? status : Status(status.code(), place + ": " + status.message());
}

Status CheckOptionalName(const char* what, const std::string& name) {
  return name.empty() ? Status::Ok() : ValidateTensorName(what, name);
}

Status CheckText(const char* what, const std::string& text) {
  if (text.size() <= kTextBytesMax) return Status::Ok();
  return Invalid(std::string(what) + " has " + std::to_string(text.size()) + " bytes; at most " +
                 std::to_string(kTextBytesMax) + " are accepted");
}

}  // namespace statcollect::convert
