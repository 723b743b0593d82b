#include "agent/staging/ring_spec.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/byte_size.h"
#include "common/names.h"
#include "common/parse.h"
#include "common/text.h"

namespace statcollect {
namespace {

Status BadRing(const std::string& what, std::string_view found, const std::string& expected) {
  return {Code::kInvalidArgument,
          "ring: " + what + " is '" + Printable(found) + "'; expected " + expected};
}

}  // namespace

bool RingSpec::Matches(const TensorKey& key, std::uint64_t step) const {
  if (key.mode != Mode::kTrain) return false;
  if (tensors.empty()) return key.kind == Kind::kOutput || key.kind == Kind::kWeightGrad;
  return std::any_of(tensors.begin(), tensors.end(), [&](const ExponentSpec& spec) {
    return spec.steps.Contains(step) && spec.Matches(key);
  });
}

Result<RingSpec> RingSpec::Parse(std::string_view text) {
  RingSpec spec;
  text = Trimmed(text);
  if (text.empty()) return spec;
  const std::string_view size = Trimmed(text.substr(0, text.find(';')));
  const std::size_t comma = size.find(',');
  if (comma == std::string_view::npos)
    return BadRing("the size", size, "STEPS,BYTES, such as 3,64MiB");
  const std::string_view steps = Trimmed(size.substr(0, comma));
  const std::string_view bytes = Trimmed(size.substr(comma + 1));
  const auto number = ParseNumber<std::uint64_t>(steps);
  if (!number || *number < 1 || *number > kRingStepsMax)
    return BadRing("the number of steps", steps, "1.." + std::to_string(kRingStepsMax));
  const auto size_bytes = ParseByteSize(bytes);
  if (!size_bytes || *size_bytes < kRingBytesMin || *size_bytes > kRingBytesMax) {
    return BadRing(
        "the memory", bytes,
        Mebibytes(kRingBytesMin) + " to " + Mebibytes(kRingBytesMax) + ", such as 64MiB");
  }
  spec.steps = *number;
  spec.bytes = *size_bytes;
  if (text.find(';') == std::string_view::npos) return spec;
  auto tensors = ParseExponentSpecs(text.substr(text.find(';') + 1), "ring");
  if (!tensors.ok()) return tensors.status();
  spec.tensors = *std::move(tensors);
  return spec;
}

}  // namespace statcollect
