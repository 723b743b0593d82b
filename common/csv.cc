#include "common/csv.h"

#include "common/parse.h"

namespace statcollect {
namespace {

bool IsNumber(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  return ParseNumber<double>(text).has_value();
}

// A single sign is the mark of an absent value, and no formula.
bool IsFormula(std::string_view text) {
  const std::size_t first = text.find_first_not_of('\'');
  if (first == std::string_view::npos || text.size() - first < 2) return false;
  constexpr std::string_view kBeginnings = "=+-@\t\r";
  return kBeginnings.find(text[first]) != std::string_view::npos && (first > 0 || !IsNumber(text));
}

}  // namespace

void AppendCsvField(std::string_view text, std::string& to) {
  const bool formula = !text.empty() && IsFormula(text);
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) {
    if (formula) to += '\'';
    to += text;
    return;
  }
  to += '"';
  if (formula) to += '\'';
  for (const char c : text) {
    if (c == '"') to += '"';
    to += c;
  }
  to += '"';
}

}  // namespace statcollect
