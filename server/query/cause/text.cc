#include "server/query/cause/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>

#include "common/names.h"

namespace statcollect::query::cause {
namespace {

constexpr std::size_t kValueBytesMax = 80;

std::string WithDigits(double value, int digits) {
  std::array<char, 40> text{};
  const int length = std::snprintf(text.data(), text.size(), "%.*g", digits, value);
  return {text.data(), static_cast<std::size_t>(length)};
}

}  // namespace

std::string NumberText(double value) { return WithDigits(value, 6); }

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
  const auto number_a = ParseDouble(a), number_b = ParseDouble(b);
  const bool fraction = (a + b).find_first_of(".e") != std::string::npos;
  if (!number_a || !number_b || !fraction || std::max(a.size(), b.size()) < kLong) return {a, b};
  return NumberTexts(*number_a, *number_b);
}

std::string InBoth(const Evidence& evidence, std::string_view a, std::string_view b) {
  return Printable(a, kValueBytesMax) + " in " + evidence.a.name() + " and " + Printable(b, kValueBytesMax) +
         " in " + evidence.b.name();
}

std::string TensorText(const Divergence& root) {
  if (root.stage == Stage::kLoss) return root.activation;
  std::string kind(Name(root.kind));
  std::replace(kind.begin(), kind.end(), '_', ' ');
  std::string text = kind + " " + root.activation;
  if (!root.output_path.empty()) text += "[" + root.output_path + "]";
  return text;
}

std::vector<std::string_view> Components(std::string_view name) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    parts.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string_view ParentOf(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

bool IsNumber(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::optional<double> ParseDouble(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

}  // namespace statcollect::query::cause
