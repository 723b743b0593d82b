#include "client/exports/text.h"

#include <algorithm>
#include <cassert>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "common/utf8.h"

namespace statcollect::client {
namespace {

constexpr std::size_t kNumberBytesMax = 400;  // 1e308 in fixed notation
constexpr char kHexDigits[] = "0123456789abcdef";

template <typename... Arguments>
void AppendNumber(std::string& to, Arguments... arguments) {
  char text[kNumberBytesMax];
  const auto end = std::to_chars(text, text + sizeof text, arguments...);
  to.append(text, end.ptr);
}

void AppendHex4(unsigned value, std::string& to) {
  to += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) to += kHexDigits[(value >> shift) & 15];
}

// Decodes the character at the text's begin, which is valid UTF-8, and removes it.
unsigned TakeCharacter(std::string_view& text) {
  const Utf8Character character = DecodeUtf8(text);
  assert(character.bytes > 0);
  text.remove_prefix(std::max<std::size_t>(character.bytes, 1));
  return character.code_point;
}

}  // namespace

void AppendUnsigned(std::uint64_t value, std::string& to) { AppendNumber(to, value); }
void AppendSigned(std::int64_t value, std::string& to) { AppendNumber(to, value); }

void AppendDouble(double value, std::string& to) {
  if (std::isnan(value)) {
    to += "NaN";
  } else if (std::isinf(value)) {
    to += value > 0 ? "Infinity" : "-Infinity";
  } else {
    AppendNumber(to, value);
  }
}

void AppendJsonDouble(double value, std::string& to) {
  if (std::isfinite(value)) return AppendNumber(to, value);
  to += '"';
  AppendDouble(value, to);
  to += '"';
}

void AppendHash(std::uint64_t hash, std::string& to) {
  to += "0x";
  for (int shift = 60; shift >= 0; shift -= 4) to += kHexDigits[(hash >> shift) & 15];
}

void AppendJsonString(std::string_view text, std::string& to) {
  to += '"';
  while (!text.empty()) {
    const unsigned c = TakeCharacter(text);
    if (c == '"' || c == '\\') {
      to += '\\';
      to += static_cast<char>(c);
    } else if (c >= 0x20 && c < 0x7f) {
      to += static_cast<char>(c);
    } else if (c < 0x10000) {
      AppendHex4(c, to);
    } else {
      AppendHex4(0xd800 + ((c - 0x10000) >> 10), to);
      AppendHex4(0xdc00 + ((c - 0x10000) & 0x3ff), to);
    }
  }
  to += '"';
}

void AppendList(std::span<const std::int64_t> values, std::string& to) {
  char separator = '[';
  for (const std::int64_t value : values) {
    to += separator;
    AppendSigned(value, to);
    separator = ',';
  }
  to += values.empty() ? "[]" : "]";
}

void AppendList(std::span<const double> values, std::string& to) {
  char separator = '[';
  for (const double value : values) {
    to += separator;
    AppendJsonDouble(value, to);
    separator = ',';
  }
  to += values.empty() ? "[]" : "]";
}

std::string PythonFloat(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string scientific;
  AppendNumber(scientific, value, std::chars_format::scientific);
  const int exponent = std::atoi(scientific.c_str() + scientific.find('e') + 1);
  if (exponent < -4 || exponent >= 16) return scientific;
  std::string fixed;
  AppendNumber(fixed, value, std::chars_format::fixed);
  return fixed.find('.') == std::string::npos ? fixed + ".0" : fixed;
}

}  // namespace statcollect::client
