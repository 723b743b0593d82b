#include "client/formats/convert.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "client/formats/source.h"

namespace statcollect::client::formats {
namespace {

constexpr std::uint64_t kElementsMax = std::uint64_t{1} << 62;

constexpr std::pair<std::string_view, DType> kTorch[] = {
    {"float32", DType::kF32},        {"float", DType::kF32},
    {"float16", DType::kF16},        {"half", DType::kF16},
    {"bfloat16", DType::kBf16},      {"float64", DType::kF64},
    {"double", DType::kF64},         {"float8_e4m3fn", DType::kF8E4M3},
    {"float8_e5m2", DType::kF8E5M2}, {"int8", DType::kI8},
    {"int16", DType::kI16},          {"int32", DType::kI32},
    {"int64", DType::kI64},          {"uint8", DType::kU8},
    {"uint16", DType::kU16},         {"uint32", DType::kU32},
    {"uint64", DType::kU64},         {"bool", DType::kBool},
    {"complex64", DType::kC64},      {"complex128", DType::kC128},
    {"short", DType::kI16},          {"int", DType::kI32},
    {"long", DType::kI64},
};

// Beside those: the names of a device's own dumps.
constexpr std::pair<std::string_view, DType> kMindSpore[] = {
    {"bf16", DType::kBf16},
    {"fp32", DType::kF32},
    {"fp16", DType::kF16},
    {"fp64", DType::kF64},
    {"bool_", DType::kBool},
    {"uint1", DType::kBool},
    {"undefined", DType::kUnspecified},
};

template <std::size_t n>
DType Find(const std::pair<std::string_view, DType> (&table)[n], std::string_view text) {
  const auto* found = std::find_if(std::begin(table), std::end(table),
                                   [&](const auto& row) { return row.first == text; });
  return found == std::end(table) ? DType::kUnspecified : found->second;
}

}  // namespace

DType ParseTorchDType(std::string_view text) {
  if (text.starts_with("torch.")) text.remove_prefix(6);
  return Find(kTorch, text);
}

DType ParseMindSporeDType(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  std::string_view name = lower;
  for (const std::string_view prefix : {"mindspore.", "mstype.", "dt_", "knumbertype"}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  const DType torch = Find(kTorch, name);
  return torch != DType::kUnspecified ? torch : Find(kMindSpore, name);
}

std::optional<std::vector<std::int64_t>> ParseShapeList(std::string_view text, char separator) {
  std::vector<std::int64_t> shape;
  const auto trim = [](std::string_view part) {
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    return part;
  };
  text = trim(text);
  while (!text.empty()) {
    const std::size_t stop = std::min(text.find(separator), text.size());
    const auto number = ParseUnsigned(trim(text.substr(0, stop)));
    if (!number || *number > std::numeric_limits<std::int64_t>::max() || shape.size() == kDimsMax)
      return std::nullopt;
    shape.push_back(static_cast<std::int64_t>(*number));
    text = trim(text.substr(std::min(stop + 1, text.size())));
  }
  return shape;
}

std::optional<std::uint64_t> Elements(const std::vector<std::int64_t>& shape) {
  if (shape.size() > kDimsMax) return std::nullopt;
  std::uint64_t count = 1;
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) return std::nullopt;
    empty = empty || size == 0;
    const auto factor = static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1));
    if (factor >= kElementsMax || count > (kElementsMax - 1) / factor) return std::nullopt;
    count *= factor;
  }
  return empty ? 0 : count;
}

void SetFinite(double value, Statistic statistic, double* to, Layout* layout) {
  if (std::isfinite(value)) {
    *to = value;
  } else {
    layout->absent |= BitOf(statistic);
  }
}

}  // namespace statcollect::client::formats
