// Wraps every function of the C interface: statuses become codes and messages, and arguments are
// checked.
#ifndef STATCOLLECT_AGENT_C_GUARD_H_
#define STATCOLLECT_AGENT_C_GUARD_H_

#include <cstddef>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "common/status.h"

namespace statcollect::c_api {

// The message of this thread's last failed call.
inline std::string& LastError() {
  thread_local std::string message;
  return message;
}

inline int Report(const Status& status) {
  if (status.ok()) return 0;
  LastError() = status.message();
  return static_cast<int>(status.code());
}

inline Status Invalid(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}

inline Status Null(const char* function, const char* argument) {
  return Invalid(std::string(function) + ": " + argument + " is null");
}

// Runs a function that returns a Status. Exceptions end here: C has none.
template <typename F>
int Guarded(F&& function) noexcept {
  try {
    return Report(function());
  } catch (const std::exception&) {
    return static_cast<int>(Code::kResourceExhausted);
  }
}

// A structure of an older version of this header lacks fields that are read here; one of a newer
// version has more.
template <typename T>
Status CheckSize(const char* function, const T* structure, std::size_t least = sizeof(T)) {
  if (structure == nullptr) return Null(function, "a structure");
  if (structure->struct_size >= least) return Status::Ok();
  return Invalid(std::string(function) + ": struct_size is " +
                 std::to_string(structure->struct_size) + "; expected " + std::to_string(least) +
                 " or more; set it to sizeof the structure");
}

inline std::string_view Text(const char* text) {
  return text == nullptr ? std::string_view() : std::string_view(text);
}

}  // namespace statcollect::c_api

#endif  // STATCOLLECT_AGENT_C_GUARD_H_
