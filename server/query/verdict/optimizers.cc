#include "server/query/verdict/optimizers.h"

#include <algorithm>
#include <array>

namespace statcollect::query {
namespace {

constexpr std::array<std::string_view, 5> kSquares = {"exp_avg_sq", "max_exp_avg_sq", "square_avg",
                                                      "sum", "variance"};
// Squares in another form: largest magnitude (Adamax), factors (Adafactor), 8-bit (bitsandbytes),
// curvature, Rprop's steps.
constexpr std::array<std::string_view, 6> kOtherSizes = {"exp_inf", "row_var", "col_var",
                                                         "state2",  "hessian", "step_size"};

template <std::size_t N>
bool OneOf(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool IsMuon(const Config& config) {
  return std::any_of(config.begin(), config.end(), [](const auto& setting) {
    return setting.first.starts_with("optimizer") && setting.first.ends_with(".class") &&
           setting.second.find("Muon") != std::string::npos;
  });
}

}  // namespace

bool DividesOrTakesSigns(std::string_view state) {
  // Variants of Adam name theirs "exp_avg_...".
  return IsSquares(state) || OneOf(kOtherSizes, state) || state.starts_with("exp_avg");
}

bool IsSquares(std::string_view state) { return OneOf(kSquares, state); }

bool UpdatesAreOrthogonal(const Config& a, const Config& b) { return IsMuon(a) && IsMuon(b); }

}  // namespace statcollect::query
