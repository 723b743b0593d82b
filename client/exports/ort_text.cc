#include "client/exports/ort_text.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include "client/exports/text.h"
#include "common/names.h"

namespace statcollect::client {
namespace {

constexpr std::size_t kSamplesShown = 128;
constexpr std::size_t kLineColumns = 128;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// --- values

std::string_view TorchName(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "float64";
    case DType::kF32:
      return "float32";
    case DType::kF16:
      return "float16";
    case DType::kBf16:
      return "bfloat16";
    case DType::kF8E4M3:
      return "float8_e4m3fn";
    case DType::kF8E5M2:
      return "float8_e5m2";
    case DType::kI8:
      return "int8";
    case DType::kI16:
      return "int16";
    case DType::kI32:
      return "int32";
    case DType::kI64:
      return "int64";
    case DType::kU8:
      return "uint8";
    case DType::kU16:
      return "uint16";
    case DType::kU32:
      return "uint32";
    case DType::kU64:
      return "uint64";
    case DType::kBool:
      return "bool";
    case DType::kC64:
      return "complex64";
    default:
      return "complex128";
  }
}

bool IsInteger(DType dtype) { return dtype >= DType::kI8 && dtype <= DType::kU64; }

// An element as torch's item() prints it.
std::string Element(double value, DType dtype) {
  if (dtype == DType::kBool && std::isfinite(value)) return value != 0 ? "True" : "False";
  if (IsInteger(dtype) && std::isfinite(value)) return fmt::format("{:.0f}", value);
  return PythonFloat(value);
}

// Moments over all elements, as torch computes them; records have those of the finite elements.
struct Moments {
  double min = kNaN, max = kNaN, mean = kNaN, std = kNaN;
};

Moments MomentsOf(const Observation& o) {
  const Numbers n = NumbersOf(o);
  Moments m;
  if (*n.nan > 0 || n.inf.value_or(0) > 0) return m;  // of the latter nobody knows where they are
  const bool low = n.neg_inf.value_or(0) > 0, high = n.pos_inf.value_or(0) > 0;
  if (low || high) {
    m.min = low ? -kInfinity : n.min.value_or(high && !o.stats->has_finite ? kInfinity : kNaN);
    m.max = high ? kInfinity : n.max.value_or(low && !o.stats->has_finite ? -kInfinity : kNaN);
    m.mean = low && high ? kNaN : low ? -kInfinity : kInfinity;
    return m;
  }
  m.min = n.min.value_or(kNaN);
  m.max = n.max.value_or(kNaN);
  m.mean = n.mean.value_or(kNaN);
  const auto count = static_cast<double>(*n.numel * (IsComplex(o.layout->dtype) ? 2 : 1));
  if (n.std && count > 1) m.std = *n.std * std::sqrt(count / (count - 1));
  return m;
}

std::string ShapeText(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return text;
}

// --- samples

// How torch prints the numbers of a tensor: integers with a point, plain or with an exponent.
std::vector<std::string> FormatFloats(std::span<const double> values) {
  double low = kInfinity, high = 0;
  bool whole = true;
  for (const double value : values) {
    if (!std::isfinite(value) || value == 0) continue;
    low = std::min(low, std::abs(value));
    high = std::max(high, std::abs(value));
    whole = whole && value == std::ceil(value);
  }
  const bool wide = high / low > 1000 || high > 1e8;
  std::vector<std::string> texts;
  for (const double value : values) {
    std::string text;
    if (whole) {
      text = wide ? fmt::format("{:.6e}", value)
                  : fmt::format("{:.0f}", value) + (std::isfinite(value) ? "." : "");
    } else {
      text = wide || low < 1e-4 ? fmt::format("{:.6e}", value) : fmt::format("{:.6f}", value);
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

}  // namespace

bool IsOrtKind(Kind kind) {
  return kind == Kind::kOutput || kind == Kind::kGradOutput || kind == Kind::kInspect ||
         kind == Kind::kInspectGrad;
}

std::string_view OrtLacks(const Observation& observation) {
  const Numbers n = NumbersOf(observation);
  if (!n.numel) return "its shape";
  if (!n.nan || !n.zero || !n.neg || !n.pos || (!n.inf && !n.pos_inf)) return "counts";
  return "";
}

std::string OrtText(const Observation& o, std::string_view label) {
  const Numbers n = NumbersOf(o);
  const Moments m = MomentsOf(o);
  const DType dtype = o.layout->dtype;
  const std::string_view direction = IsBackward(o.def->key.kind) ? "backward" : "forward";
  const std::uint64_t low = n.neg_inf.value_or(0), high = n.pos_inf.value_or(0);
  const std::span<const double> samples =
      o.samples.first(std::min(o.samples.size(), kSamplesShown));
  std::string text(static_cast<std::size_t>(std::max(o.def->depth, 0)), '>');
  text += fmt::format("{} {} run shape: torch.Size([{}]) dtype: torch.{} size: torch.Size([{}]) \n",
                      label, direction, ShapeText(o.layout->shape), TorchName(dtype), *n.numel);
  text += fmt::format("min: {} max: {}, mean: {}, std: {} \n", Element(m.min, dtype),
                      Element(m.max, dtype), PythonFloat(m.mean), PythonFloat(m.std));
  text += fmt::format("nan: {}, inf: {}\n", *n.nan, n.inf.value_or(low + high));
  text += "samples(top 128): " +
          TorchTensor(IsComplex(dtype) ? std::span<const double>() : samples, dtype) + '\n';
  text += fmt::format("neg: {}, pos: {}, zero: {},\n", *n.neg + low, *n.pos + high, *n.zero);
  return text + "================\n";
}

std::string TorchTensor(std::span<const double> values, DType dtype) {
  std::vector<std::string> texts;
  if (dtype == DType::kBool || IsInteger(dtype)) {
    for (const double value : values) texts.push_back(Element(value, dtype));
  } else {
    texts = FormatFloats(values);
  }
  // Zeros and what is not finite take part in the width of integers only.
  std::size_t width = 1;
  const bool all = dtype == DType::kBool || IsInteger(dtype);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (all || (std::isfinite(values[i]) && values[i] != 0))
      width = std::max(width, texts[i].size());
  }
  constexpr std::string_view kBegin = "tensor(";
  const std::size_t a_line = std::max<std::size_t>(1, (kLineColumns - kBegin.size()) / (width + 2));
  std::string out = std::string(kBegin) + '[';
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) out += i % a_line == 0 ? ",\n" + std::string(kBegin.size() + 1, ' ') : ", ";
    out += fmt::format("{:>{}}", texts[i], width);
  }
  out += ']';
  const bool goes_without_saying =
      dtype == DType::kF32 || (!values.empty() && (dtype == DType::kI64 || dtype == DType::kBool));
  if (!goes_without_saying) {
    const std::string suffix = fmt::format("dtype=torch.{}", TorchName(dtype));
    const std::size_t last_line = out.size() + 1 - (out.rfind('\n') + 1) + 1;  // with two to spare
    const bool fits = last_line + suffix.size() + 2 <= kLineColumns;
    out += (fits ? ", " : ",\n" + std::string(kBegin.size(), ' ')) + suffix;
  }
  return out + ')';
}

}  // namespace statcollect::client
