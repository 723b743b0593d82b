// Strict UTF-8 (RFC 3629): no overlong forms, no surrogates, nothing above U+10FFFF.
#ifndef STATCOLLECT_COMMON_UTF8_H_
#define STATCOLLECT_COMMON_UTF8_H_

#include <cstddef>
#include <string_view>

namespace statcollect {

struct Utf8Character {
  char32_t code_point = 0;
  std::size_t bytes = 0;  // 0: the text does not begin with a valid character
};

// Whether the byte continues a character that began before it.
constexpr bool IsUtf8Continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
}

// The first character of the text.
constexpr Utf8Character DecodeUtf8(std::string_view text) {
  if (text.empty()) return {};
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {lead, 1};
  std::size_t bytes = 0;
  char32_t code_point = 0, smallest = 0;
  if ((lead & 0xe0) == 0xc0) {
    bytes = 2, code_point = lead & 0x1f, smallest = 0x80;
  } else if ((lead & 0xf0) == 0xe0) {
    bytes = 3, code_point = lead & 0x0f, smallest = 0x800;
  } else if ((lead & 0xf8) == 0xf0) {
    bytes = 4, code_point = lead & 0x07, smallest = 0x10000;
  } else {
    return {};
  }
  if (text.size() < bytes) return {};
  for (std::size_t i = 1; i < bytes; ++i) {
    if (!IsUtf8Continuation(text[i])) return {};
    code_point = (code_point << 6) | (static_cast<unsigned char>(text[i]) & 0x3f);
  }
  const bool surrogate = code_point >= 0xd800 && code_point <= 0xdfff;
  if (code_point < smallest || surrogate || code_point > 0x10ffff) return {};
  return {code_point, bytes};
}

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_UTF8_H_
