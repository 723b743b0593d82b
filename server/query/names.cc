// Text forms of the enumerations in reports.h.
#include <array>

#include "server/query/reports.h"

namespace statcollect::query {
namespace {

template <std::size_t N, typename E>
std::string_view NameIn(const std::array<std::string_view, N>& names, E value) {
  const auto index = static_cast<std::size_t>(value);
  return index < N ? names[index] : names[0];
}

}  // namespace

std::string_view Name(Verdict verdict) {
  static constexpr std::array<std::string_view, 5> kNames = {"unspecified", "identical", "within_tolerance",
                                                             "diverged", "incomparable"};
  return NameIn(kNames, verdict);
}

std::string_view Name(Stage stage) {
  static constexpr std::array<std::string_view, 9> kNames = {
      "unspecified", "config", "weights", "batch", "forward", "loss", "backward", "grad", "optimizer"};
  return NameIn(kNames, stage);
}

std::string_view Name(Reason reason) {
  static constexpr std::array<std::string_view, 9> kNames = {"unspecified", "missing_in_a", "missing_in_b",
                                                             "order",       "shape",        "dtype",
                                                             "nonfinite",   "numeric",      "bitwise"};
  return NameIn(kNames, reason);
}

std::string_view Name(Confidence confidence) {
  static constexpr std::array<std::string_view, 3> kNames = {"certain", "likely", "possible"};
  return NameIn(kNames, confidence);
}

std::string_view Name(DistanceKind kind) {
  static constexpr std::array<std::string_view, 3> kNames = {"unspecified", "sketch", "statistics"};
  return NameIn(kNames, kind);
}

}  // namespace statcollect::query
