#include "server/query/cause/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "common/names.h"
#include "common/parse.h"
#include "common/text.h"
#include "server/query/cause/constants.h"

namespace statcollect::query::cause {
namespace {

constexpr std::size_t kValueBytesMax = 80;

std::string WithDigits(double value, int digits) {
  std::array<char, 40> text{};
  const int length = std::snprintf(text.data(), text.size(), "%.*g", digits, Unsigned(value));
  return {text.data(), static_cast<std::size_t>(length)};
}

}  // namespace

std::string NumberText(double value) { return WithDigits(value, 6); }

std::string FactorText(double factor) {
  const double apart = factor - 1;
  if (apart == 0 || std::abs(apart) >= kNearOne) return NumberText(factor) + " times";
  return std::string("(1 ") + (apart > 0 ? "+ " : "- ") + WithDigits(std::abs(apart), 2) +
         ") times";
}

std::string WithFewDigits(double value) { return WithDigits(value, 4); }

std::pair<std::string, std::string> NumberTexts(double a, double b) {
  constexpr int kDigitsMax = 17;
  for (int digits = 6; digits < kDigitsMax; ++digits) {
    auto text_a = WithDigits(a, digits), text_b = WithDigits(b, digits);
    if (text_a != text_b) return {std::move(text_a), std::move(text_b)};
  }
  return {WithDigits(a, kDigitsMax), WithDigits(b, kDigitsMax)};
}

std::pair<std::string, std::string> ValueTexts(const std::string& a, const std::string& b) {
  constexpr std::size_t kLong = 10;
  const auto number_a = ParseNumber<double>(a), number_b = ParseNumber<double>(b);
  const bool fraction = (a + b).find_first_of(".e") != std::string::npos;
  if (!number_a || !number_b || !fraction || std::max(a.size(), b.size()) < kLong) return {a, b};
  return NumberTexts(*number_a, *number_b);
}

std::string InBoth(const Evidence& evidence, std::string_view a, std::string_view b) {
  return Printable(a, kValueBytesMax) + " in " + evidence.a.name() + " and " +
         Printable(b, kValueBytesMax) + " in " + evidence.b.name();
}

std::string PlaceText(const TensorKey& key) {
  return Printable(key.output_path.empty() ? key.name : key.name + "[" + key.output_path + "]");
}

std::string TensorText(const Divergence& root) {
  if (root.stage == Stage::kLoss) return root.activation;
  std::string kind(Name(root.kind));
  std::replace(kind.begin(), kind.end(), '_', ' ');
  std::string text = kind + " " + root.activation;
  if (!root.output_path.empty()) text += "[" + root.output_path + "]";
  return text;
}

}  // namespace statcollect::query::cause
