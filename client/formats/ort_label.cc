#include "client/formats/ort_label.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "common/names.h"
#include "common/parse.h"
#include "common/utf8.h"

namespace statcollect::client::formats {
namespace {

constexpr std::size_t kLabelBytesMax = 240;  // of a file name's 255, "_backward" goes behind it
constexpr std::string_view kCut = "%~";      // no escape: what follows is a hash
constexpr char kHexDigits[] = "0123456789ABCDEF";

bool IsEscaped(char c, bool at_begin) {
  constexpr std::string_view kMarks = "%/[]@\\";
  const auto byte = static_cast<unsigned char>(c);
  return kMarks.find(c) != std::string_view::npos || byte < 0x20 || byte == 0x7f ||
         (at_begin && (c == '.' || c == '>'));
}

void AppendEscaped(std::string_view text, std::string& to) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (IsEscaped(text[i], i == 0)) {
      const auto byte = static_cast<unsigned char>(text[i]);
      to += '%';
      to += kHexDigits[byte >> 4];
      to += kHexDigits[byte & 15];
    } else {
      to += text[i];
    }
  }
}

std::optional<std::string> Unescaped(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      plain += text[i];
      continue;
    }
    const auto value = ParseNumber<std::uint8_t>(text.substr(i + 1, 2), 16);
    if (i + 2 >= text.size() || !value) return std::nullopt;
    plain += static_cast<char>(*value);
    i += 2;
  }
  return plain;
}

// Removes "@mbN" and the like from the front.
bool TakeMark(std::string_view& rest, std::string_view mark, std::uint32_t* value) {
  if (!rest.starts_with(mark)) return false;
  if (value == nullptr) {
    rest.remove_prefix(mark.size());
    return true;
  }
  const auto parsed = ParseLeadingNumber<std::uint32_t>(rest.substr(mark.size()));
  if (!parsed) return false;
  *value = parsed->number;
  rest = parsed->rest;
  return true;
}

std::uint64_t HashOf(std::string_view text) {  // FNV-1a
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// Cuts the label, but not within a character or an escape.
std::string Cut(const std::string& label) {
  std::size_t size = kLabelBytesMax - kCut.size() - 16;
  while (IsUtf8Continuation(label[size])) --size;
  const std::size_t escape = label.rfind('%', size);
  if (escape != std::string::npos && escape + 3 > size) size = escape;
  std::string cut = label.substr(0, size) + std::string(kCut);
  const std::uint64_t hash = HashOf(label);
  for (int shift = 60; shift >= 0; shift -= 4) cut += kHexDigits[hash >> shift & 15];
  return cut;
}

}  // namespace

std::string OrtLabel(const TensorKey& key) {
  std::string label;
  AppendEscaped(key.name, label);
  if (!key.output_path.empty()) {
    label += '[';
    AppendEscaped(key.output_path, label);
    label += ']';
  }
  if (key.micro_batch > 0) label += "@mb" + std::to_string(key.micro_batch);
  if (key.call > 0) label += "@call" + std::to_string(key.call);
  if (key.mode == Mode::kEval) label += "@eval";
  if (key.mode == Mode::kInit) label += "@init";
  return label.size() <= kLabelBytesMax ? label : Cut(label);
}

bool ParseOrtLabel(std::string_view label, TensorKey& key) {
  TensorKey parsed{.kind = key.kind};
  const std::size_t name_end = std::min(label.find_first_of("[@"), label.size());
  auto name = Unescaped(label.substr(0, name_end));
  if (!name || name->empty()) return false;
  parsed.name = *std::move(name);
  std::string_view rest = label.substr(name_end);
  if (rest.starts_with("[")) {
    const std::size_t end = rest.find(']');
    if (end == std::string_view::npos) return false;
    auto path = Unescaped(rest.substr(1, end - 1));
    if (!path || path->empty()) return false;
    parsed.output_path = *std::move(path);
    rest.remove_prefix(end + 1);
  }
  TakeMark(rest, "@mb", &parsed.micro_batch);
  TakeMark(rest, "@call", &parsed.call);
  if (TakeMark(rest, "@eval", nullptr)) parsed.mode = Mode::kEval;
  if (TakeMark(rest, "@init", nullptr)) parsed.mode = Mode::kInit;
  if (!rest.empty() || !ValidateTensorName("name", parsed.name).ok()) return false;
  if (!parsed.output_path.empty() && !ValidateTensorName("path", parsed.output_path).ok())
    return false;
  key = std::move(parsed);
  return true;
}

}  // namespace statcollect::client::formats
