// Whose raw values are to be kept, and in which steps: what the directive `capture` carries
// (docs/protocol.md) and what STATAGENT_CAPTURES says (docs/capture.md).
#ifndef STATCOLLECT_COMMON_CAPTURE_SPEC_H_
#define STATCOLLECT_COMMON_CAPTURE_SPEC_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/records.h"
#include "common/status.h"
#include "common/step_set.h"

namespace statcollect {

inline constexpr std::uint64_t kCaptureBytesDefault = std::uint64_t{16} << 20;  // kept of a tensor
inline constexpr std::uint64_t kCaptureBytesMax = std::uint64_t{64} << 20;      // that may be asked for
inline constexpr std::size_t kCaptureSpecsMax = 256;                            // at a time, of an agent

struct CaptureSpec {
  std::string activation;  // exact name
  // Nothing: the tensor itself and not its gradient or the module's inputs: output, inspect, weight, batch.
  std::optional<Kind> kind;
  std::optional<std::string> output_path;  // nothing: every place in the output
  std::uint32_t micro_batch = 0;
  std::uint32_t call = 0;
  Mode mode = Mode::kTrain;
  std::string steps_text;  // of `steps`
  StepSet steps;
  std::uint64_t bytes_max = kCaptureBytesDefault;  // 1..kCaptureBytesMax: of a larger tensor, the first ones

  bool Matches(const TensorKey& key) const;
  // "blocks.1.ln2 (grad_output, micro-batch 1)", for messages.
  std::string Describe() const;

  // Argument by name; FromArguments takes what ToArguments gives. Unknown names are let be: they come from
  // later releases. kInvalidArgument names the argument, what was found and expected.
  std::map<std::string, std::string> ToArguments() const;
  static Result<CaptureSpec> FromArguments(const std::map<std::string, std::string>& arguments);
  // "NAME@STEPS" or "NAME@STEPS:kind=grad_output,path=0,micro_batch=1,call=0,mode=eval,bytes_max=1048576".
  // The last '@' counts. STEPS as StepSet::Parse, and not empty.
  static Result<CaptureSpec> Parse(std::string_view text);
  // The shortest text that Parse takes for it.
  std::string ToText() const;
};

// Several of the texts above, separated by ';'; blanks around each are dropped. kInvalidArgument also for
// more than kCaptureSpecsMax.
Result<std::vector<CaptureSpec>> ParseCaptureSpecs(std::string_view text);

// How much of a tensor is kept: the first elements in row-major order, whole rows of its first dimension if
// one fits.
std::uint64_t CapturedElements(DType dtype, const std::vector<std::int64_t>& shape, std::uint64_t bytes_max);

std::optional<Mode> ParseMode(std::string_view name);

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_CAPTURE_SPEC_H_
