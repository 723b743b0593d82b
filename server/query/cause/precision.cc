// Values that went through a narrower format.
#include <array>
#include <bit>
#include <cmath>
#include <string>

#include "common/names.h"
#include "server/query/cause/constants.h"
#include "server/query/cause/linear.h"
#include "server/query/cause/rules.h"
#include "server/query/cause/text.h"
#include "server/query/compare/distance.h"
#include "server/query/settings/config_diff.h"

namespace statcollect::query::cause {
namespace {

struct Format {
  std::string_view name;
  int bits;         // of the significand, with the leading one
  double rounding;  // typical relative size of its errors
};
constexpr std::array<Format, 2> kFormats = {Format{"bfloat16", 8, 0x1p-9},
                                            Format{"float16", 11, 0x1p-12}};

// Whether the number has at most this many significant bits.
bool HasBits(double value, int bits) {
  int exponent = 0;
  const double scaled = std::ldexp(std::frexp(value, &exponent), bits);
  return std::isfinite(value) && scaled == std::round(scaled);
}

bool OnGrid(const Observation& seen, int bits) {
  const TensorStats& s = *seen.stats;
  return s.has_finite && s.min != 0 && s.max != 0 && s.min < s.max && HasBits(s.min, bits) &&
         HasBits(s.max, bits);
}

bool OffGrid(const Observation& seen, int bits) {
  const TensorStats& s = *seen.stats;
  return s.has_finite && !HasBits(s.min, bits) && !HasBits(s.max, bits);
}

// A setting about precision that differs; the key's words name it, never its value.
const ConfigDifference* FindSetting(const std::vector<ConfigDifference>& config) {
  constexpr std::array<std::string_view, 8> kWords = {"autocast",
                                                      "tf32",
                                                      "matmul_precision",
                                                      "fp32_precision",
                                                      "reduced_precision",
                                                      "default_dtype",
                                                      "amp",
                                                      "dtype"};
  for (const ConfigDifference& difference : config) {
    const std::string_view key = difference.key;
    if (key.starts_with("module.") || key.starts_with("model.") || key.starts_with("env."))
      continue;
    for (const std::string_view word : kWords) {
      const std::size_t at = key.find(word);
      const bool whole =
          at != std::string_view::npos && (at == 0 || key[at - 1] == '.' || key[at - 1] == '_');
      if (whole) return &difference;
    }
  }
  return nullptr;
}

void AddSetting(const Evidence& evidence, const ConfigDifference* setting, Cause& cause) {
  if (setting == nullptr) return;
  cause.key = setting->key;
  cause.a = setting->a.value_or("not set");
  cause.b = setting->b.value_or("not set");
  cause.text += "; " + setting->key + " is " + InBoth(evidence, cause.a, cause.b);
}

Found AsDType(const Evidence& evidence, const ConfigDifference* setting) {
  const DType a = evidence.a.root->layout->dtype, b = evidence.b.root->layout->dtype;
  if (a == b) return std::nullopt;
  Cause cause{.rule = "cast",
              .confidence = Confidence::kCertain,
              .key = evidence.root.activation,
              .a = std::string(Name(a)),
              .b = std::string(Name(b))};
  cause.text = TensorText(evidence.root) + " is " + InBoth(evidence, Name(a), Name(b)) + " " +
               evidence.AtStep();
  AddSetting(evidence, setting, cause);
  return cause;
}

std::string Narrowed(const Evidence& evidence, const Side& side) {
  return TensorText(evidence.root) + " in " + side.name() + " " + evidence.AtStep();
}

Found AsGrid(const Evidence& evidence, const ConfigDifference* setting) {
  const Observation &a = *evidence.a.root, &b = *evidence.b.root;
  for (const Format& format : kFormats) {
    const bool in_b = OnGrid(b, format.bits) && OffGrid(a, format.bits);
    const bool in_a = OnGrid(a, format.bits) && OffGrid(b, format.bits);
    if (!in_a && !in_b) continue;
    // A cast somewhere before adds up to a few times its rounding; what is further away differs for
    // another reason, which took the values off the grid.
    const bool near = a.stats->numel != b.stats->numel || !HaveSketches(a, b) ||
                      Measure(a, b).value <= kRoundingsMax * format.rounding;
    Cause cause{.rule = "cast",
                .confidence = near ? Confidence::kLikely : Confidence::kPossible,
                .key = evidence.root.activation};
    cause.text = Narrowed(evidence, in_b ? evidence.b : evidence.a) + " has values of " +
                 std::string(format.name) + " precision, in " +
                 (in_b ? evidence.a : evidence.b).name() + " of " +
                 std::string(Name(a.layout->dtype));
    (in_b ? cause.b : cause.a) = std::string(format.name);
    AddSetting(evidence, setting, cause);
    return cause;
  }
  return std::nullopt;
}

// Of the size of a format's errors; a setting says that one of the runs may use it. TF32 rounds
// only what is multiplied, so that no value lies on its grid.
Found AsRounding(const Evidence& evidence, const ConfigDifference* setting) {
  const Observation &a = *evidence.a.root, &b = *evidence.b.root;
  if (setting == nullptr || a.stats->numel != b.stats->numel || !HaveSketches(a, b))
    return std::nullopt;
  const double distance = Measure(a, b).value;
  for (const Format& format : kFormats) {
    if (!(distance >= format.rounding / 2 && distance <= format.rounding * 2)) continue;
    Cause cause{.rule = "cast", .confidence = Confidence::kLikely, .key = evidence.root.activation};
    cause.text = TensorText(evidence.root) + " differs by " + WithFewDigits(distance) + " " +
                 evidence.AtStep() + ", about what rounding to " +
                 std::string(format.name == "float16" ? "float16 or TF32" : format.name) + " does";
    AddSetting(evidence, setting, cause);
    return cause;
  }
  return std::nullopt;
}

}  // namespace

Found FindCast(const Evidence& evidence) {
  const Stage stage = evidence.root.stage;
  const bool computed = stage == Stage::kForward || stage == Stage::kBackward ||
                        stage == Stage::kGrad || stage == Stage::kWeights || stage == Stage::kBatch;
  if (!computed || !evidence.HasRootPair()) return std::nullopt;
  const auto config = CompareConfig(evidence.a.config, evidence.b.config);
  const ConfigDifference* setting = FindSetting(config);
  if (auto found = AsDType(evidence, setting)) return found;
  const DType dtype = evidence.a.root->layout->dtype;
  if (dtype != DType::kF32 && dtype != DType::kF64) return std::nullopt;
  if (stage == Stage::kBatch) return std::nullopt;
  if (auto found = AsGrid(evidence, setting)) return found;
  return AsRounding(evidence, setting);
}

}  // namespace statcollect::query::cause
