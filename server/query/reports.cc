#include "server/query/reports.h"

#include <array>

#include "common/enum_names.h"

namespace statcollect::query {

std::string_view Name(Verdict verdict) {
  static constexpr std::array<std::string_view, 5> kNames = {
      "unspecified", "identical", "within_tolerance", "diverged", "incomparable"};
  return NameIn(kNames, verdict);
}

std::string_view Name(Stage stage) {
  static constexpr std::array<std::string_view, 9> kNames = {"unspecified", "config",  "weights",
                                                             "batch",       "forward", "loss",
                                                             "backward",    "grad",    "optimizer"};
  return NameIn(kNames, stage);
}

std::string_view Name(Reason reason) {
  static constexpr std::array<std::string_view, 9> kNames = {
      "unspecified", "missing_in_a", "missing_in_b", "order",  "shape",
      "dtype",       "nonfinite",    "numeric",      "bitwise"};
  return NameIn(kNames, reason);
}

std::string_view Name(Confidence confidence) {
  static constexpr std::array<std::string_view, 3> kNames = {"certain", "likely", "possible"};
  return NameIn(kNames, confidence);
}

std::string_view Name(Premise premise) {
  static constexpr std::array<std::string_view, 8> kNames = {
      "steps", "ranks", "tensors", "weights", "batches", "dtypes", "recording", "settings"};
  return NameIn(kNames, premise);
}

std::string_view Name(RouterFinding finding) {
  static constexpr std::array<std::string_view, 6> kNames = {"same",   "rounding", "before",
                                                             "tokens", "expert",   "router"};
  return NameIn(kNames, finding);
}

std::string_view Name(DistanceKind kind) {
  static constexpr std::array<std::string_view, 3> kNames = {"unspecified", "sketch", "statistics"};
  return NameIn(kNames, kind);
}

}  // namespace statcollect::query
