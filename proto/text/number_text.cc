#include "proto/text/number_text.h"

#include <cmath>

#include <fmt/format.h>

namespace statcollect {

std::string FormatNumber(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return fmt::format("{:.6g}", value);
}

std::string FormatNumber(const std::optional<double>& value) {
  return value ? FormatNumber(*value) : "-";
}

std::string FormatShort(double value) {
  if (!std::isfinite(value)) return FormatNumber(value);
  const double size = std::abs(value);
  if (value == 0 || (size >= 0.1 && size < 1000)) return fmt::format("{:.3g}", value);
  std::string text = fmt::format("{:.1e}", value);  // "1.1e-02"
  const std::size_t e = text.find('e');
  std::string mantissa = text.substr(0, e);
  if (mantissa.ends_with(".0")) mantissa.resize(mantissa.size() - 2);
  return fmt::format("{}e{}", mantissa, std::stoi(text.substr(e + 1)));
}

std::string FormatChange(double a, double b) {
  constexpr double kReadable = 1e-3, kManifold = 10, kWholePercent = 0.995;
  const double change = (b - a) / std::abs(a);
  if (change == 0 || !std::isfinite(change)) return "";
  const double size = std::abs(change);
  if (size >= kManifold) return FormatShort(b / a) + " times";
  if (size >= kWholePercent) return fmt::format("{:+.0f} %", change * 100);
  if (size >= kReadable) return fmt::format("{:+.2g} %", change * 100);
  return (change > 0 ? "+" : "") + FormatShort(change);
}

std::string FormatCount(std::uint64_t value) {
  std::string text = std::to_string(value);
  for (std::size_t i = text.size(); i > 3; i -= 3) text.insert(i - 3, ",");
  return text;
}

}  // namespace statcollect
