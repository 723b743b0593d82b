// Status and Result<T>: the project's only error type. Codes are gRPC's, so a status crosses the
// wire unchanged. Messages say: attempted; found; expected; next step.
#ifndef STATCOLLECT_COMMON_STATUS_H_
#define STATCOLLECT_COMMON_STATUS_H_

#include <cassert>
#include <optional>
#include <string>
#include <utility>

namespace statcollect {

enum class Code : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

class [[nodiscard]] Status {
 public:
  Status() = default;  // OK
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return {}; }
  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

// A value, or a status that says why there is none. Reading the value of a failed result is a bug
// (assert).
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) {
    assert(!status_.ok());
  }  // NOLINT: implicit by design

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & {
    assert(ok());
    return *value_;
  }
  const T& value() const& {
    assert(ok());
    return *value_;
  }
  T&& value() && {
    assert(ok());
    return *std::move(value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

// Returns from the enclosing function if the expression (a Status) failed.
#define STATCOLLECT_RETURN_IF_ERROR(expr)                                      \
  do {                                                                         \
    if (::statcollect::Status status_ = (expr); !status_.ok()) return status_; \
  } while (false)

// The value of the expression (a Result); returns its status from the enclosing function if it
// failed. `place`: a declaration, as in `const auto rows`, or what is assigned to.
#define STATCOLLECT_ASSIGN_OR_RETURN(place, ...) \
  STATCOLLECT_ASSIGN_OR_RETURN_AS(STATCOLLECT_JOIN(result_of_line_, __LINE__), place, __VA_ARGS__)
#define STATCOLLECT_ASSIGN_OR_RETURN_AS(result, place, ...) \
  auto result = (__VA_ARGS__);                              \
  if (!result.ok()) return result.status();                 \
  place = *std::move(result)
#define STATCOLLECT_JOIN(a, b) STATCOLLECT_JOIN_NOW(a, b)
#define STATCOLLECT_JOIN_NOW(a, b) a##b

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_STATUS_H_
