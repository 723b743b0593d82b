#include "common/names.h"

#include <array>
#include <cstdint>

#include "common/enum_names.h"
#include "common/utf8.h"

namespace statcollect {
namespace {

constexpr bool IsControl(char32_t c) { return c < 0x20 || (c >= 0x7f && c <= 0x9f); }

// Characters that reorder the text around them, so that what is shown is not what is stored.
constexpr bool IsBidiControl(char32_t c) {
  return (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069) || c == 0x200e ||
         c == 0x200f || c == 0x061c;
}

constexpr bool IsAsciiAlphanumeric(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

constexpr bool IsRunNameByte(char c) {
  return IsAsciiAlphanumeric(c) || c == '.' || c == '_' || c == '-';
}

std::string Escaped(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string escaped;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    escaped += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 0xf]};
  }
  return escaped;
}

Status Refuse(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }

Status RefuseRunName(std::string_view name, const std::string& found) {
  return Refuse("accept run name '" + Printable(name) + "': " + found +
                "; expected a letter or digit, then letters, digits, '.', '_' or '-', " +
                std::to_string(kRunNameBytesMax) + " bytes at most; choose another name");
}

Status RefuseTensorName(std::string_view what, std::string_view name, const std::string& found) {
  return Refuse("accept " + std::string(what) + " name '" + Printable(name) + "': " + found +
                "; expected 1.." + std::to_string(kTensorNameBytesMax) +
                " bytes of UTF-8 without control or bidirectional characters; choose another name");
}

// Value -> text form, indexed by the enumeration's number. Entry 0 is never parsed.
constexpr std::array<std::string_view, kDTypeCount> kDTypeNames = {
    "unspecified", "f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i8",  "i16",
    "i32",         "i64", "u8",  "u16", "u32",  "u64",    "bool",   "c64", "c128"};
constexpr std::array<std::uint8_t, kDTypeCount> kDTypeBytes = {0, 8, 4, 2, 2, 1, 1, 1, 2,
                                                               4, 8, 1, 2, 4, 8, 1, 8, 16};
constexpr std::array<std::string_view, kKindCount> kKindNames = {
    "unspecified", "output",      "input",           "grad_output", "grad_input",
    "weight",      "weight_grad", "optimizer_state", "inspect",     "inspect_grad",
    "batch",       "buffer",      "operator"};
constexpr std::array<std::string_view, kModeCount> kModeNames = {"unspecified", "train", "eval",
                                                                 "init"};
constexpr std::array<std::string_view, kStatisticCount> kStatisticNames = {
    "min", "max",      "mean", "std", "l1",  "l2",   "nan",
    "inf", "inf_sign", "zero", "neg", "pos", "hash", "shape"};
constexpr std::array<std::string_view, kHashKindCount> kHashKindNames = {
    "content2", "crc32", "xor64", "md5", "sha1", "content", "rows"};
constexpr std::array<std::string_view, kIfExistsCount> kIfExistsNames = {"unspecified", "error",
                                                                         "replace", "append"};

constexpr std::array<std::string_view, kMemoryPhaseCount> kMemoryPhaseNames = {
    "unspecified",   "pre_forward",   "post_forward",  "pre_backward",
    "post_backward", "pre_optimizer", "post_optimizer"};
// From bit 0.
constexpr std::array<std::string_view, kMemoryQuantityCount> kMemoryQuantityNames = {
    "allocated",    "max_allocated",      "reserved",        "max_reserved", "inactive",
    "max_inactive", "parameter",          "gradient",        "buffer",       "optimizer_state",
    "device_free",  "device_total",       "host_rss",        "host_max_rss", "host_free",
    "host_total",   "step_max_allocated", "allocated_delta", "peak_delta"};
constexpr std::array<std::string_view, kDensityTypeCount> kDensityTypeNames = {"unspecified",
                                                                               "embed", "label"};

}  // namespace

Status ValidateRunName(std::string_view name) {
  if (name.empty()) return RefuseRunName(name, "it is empty");
  if (name.size() > kRunNameBytesMax)
    return RefuseRunName(name, "it has " + std::to_string(name.size()) + " bytes");
  if (!IsAsciiAlphanumeric(name[0])) {
    return RefuseRunName(name, "it begins with '" + Printable(name.substr(0, 1)) + "'");
  }
  for (std::size_t i = 1; i < name.size(); ++i) {
    if (IsRunNameByte(name[i])) continue;
    const Utf8Character character = DecodeUtf8(name.substr(i));
    const std::string_view offending = name.substr(i, character.bytes == 0 ? 1 : character.bytes);
    return RefuseRunName(name, "found '" + Printable(offending) + "' at byte " + std::to_string(i));
  }
  return Status::Ok();
}

Status ValidateTensorName(std::string_view what, std::string_view name) {
  if (name.empty()) return RefuseTensorName(what, name, "it is empty");
  if (name.size() > kTensorNameBytesMax) {
    return RefuseTensorName(what, name, "it has " + std::to_string(name.size()) + " bytes");
  }
  for (std::size_t i = 0; i < name.size();) {
    const Utf8Character character = DecodeUtf8(name.substr(i));
    const std::string at = " at byte " + std::to_string(i);
    if (character.bytes == 0) return RefuseTensorName(what, name, "found invalid UTF-8" + at);
    if (IsControl(character.code_point))
      return RefuseTensorName(what, name, "found a control character" + at);
    if (IsBidiControl(character.code_point)) {
      return RefuseTensorName(what, name, "found a bidirectional control" + at);
    }
    i += character.bytes;
  }
  return Status::Ok();
}

std::string Printable(std::string_view text, std::size_t bytes_max) {
  std::string printable;
  while (!text.empty()) {
    const Utf8Character character = DecodeUtf8(text);
    const bool shown = character.bytes != 0 && !IsControl(character.code_point) &&
                       !IsBidiControl(character.code_point);
    const std::string_view bytes = text.substr(0, character.bytes == 0 ? 1 : character.bytes);
    const std::string piece = shown ? std::string(bytes) : Escaped(bytes);
    if (printable.size() + piece.size() > bytes_max) return printable + "...";
    printable += piece;
    text.remove_prefix(bytes.size());
  }
  return printable;
}

std::string_view Name(DType dtype) { return NameIn(kDTypeNames, dtype); }
std::string_view Name(Kind kind) { return NameIn(kKindNames, kind); }
std::string_view Name(Mode mode) { return NameIn(kModeNames, mode); }
std::string_view Name(Statistic statistic) { return NameIn(kStatisticNames, statistic); }
std::string_view Name(HashKind kind) { return NameIn(kHashKindNames, kind); }
std::string_view Name(IfExists policy) { return NameIn(kIfExistsNames, policy); }
std::string_view Name(MemoryPhase phase) { return NameIn(kMemoryPhaseNames, phase); }
std::string_view Name(MemoryQuantity quantity) {
  const auto index = static_cast<std::size_t>(quantity);
  return index < kMemoryQuantityNames.size() ? kMemoryQuantityNames[index] : "unknown";
}
std::string_view Name(DensityType type) { return NameIn(kDensityTypeNames, type); }

std::optional<DType> ParseDType(std::string_view name) { return ParseIn<DType>(kDTypeNames, name); }
std::optional<Kind> ParseKind(std::string_view name) { return ParseIn<Kind>(kKindNames, name); }
std::optional<IfExists> ParseIfExists(std::string_view name) {
  return ParseIn<IfExists>(kIfExistsNames, name);
}

std::size_t DTypeBytes(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  return index < kDTypeBytes.size() ? kDTypeBytes[index] : 0;
}

}  // namespace statcollect
