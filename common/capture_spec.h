// A tensor whose raw values are to be kept, and the steps: the arguments of the directive `capture`
// (docs/protocol.md) and the syntax of STATAGENT_CAPTURES (docs/capture.md).
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

inline constexpr std::uint64_t kCaptureBytesDefault = std::uint64_t{16} << 20;  // per tensor
inline constexpr std::uint64_t kCaptureBytesMax = std::uint64_t{64}
                                                  << 20;  // maximum that can be requested
inline constexpr std::size_t kCaptureSpecsMax = 256;      // active at a time, per agent

struct CaptureSpec {
  std::string activation;  // exact name, or a pattern (common/pattern.h)
  // Only of texts that Parse reads: a request of the collector always means the exact name.
  bool pattern = false;
  // Empty: the tensor itself (output, inspect, weight, batch), not its gradient or the module's
  // inputs.
  std::optional<Kind> kind;
  std::optional<std::string> output_path;  // empty: every position in the output
  std::uint32_t micro_batch = 0;
  std::uint32_t call = 0;
  Mode mode = Mode::kTrain;
  std::string steps_text;  // source text of `steps`
  StepSet steps;
  // 1..kCaptureBytesMax; of a larger tensor, the first elements are kept
  std::uint64_t bytes_max = kCaptureBytesDefault;

  bool Matches(const TensorKey& key) const;
  // "blocks.1.ln2 (grad_output, micro-batch 1)", for messages.
  std::string Describe() const;

  // Arguments by name; FromArguments reads what ToArguments returns. Unknown names are ignored,
  // because later releases may add some. kInvalidArgument names the argument, what was found and
  // expected.
  std::map<std::string, std::string> ToArguments() const;
  static Result<CaptureSpec> FromArguments(const std::map<std::string, std::string>& arguments);
  // "NAME@STEPS" or
  // "NAME@STEPS:kind=grad_output,path=0,micro_batch=1,call=0,mode=eval,bytes_max=1048576". The last
  // '@' separates name and steps; a name with '*' or '?' is a pattern. STEPS as for StepSet::Parse,
  // and not empty.
  static Result<CaptureSpec> Parse(std::string_view text);
  // The shortest text that Parse reads as this.
  std::string ToText() const;
};

// Several of these texts, separated by ';', with optional blanks around each. kInvalidArgument also
// for more than kCaptureSpecsMax.
Result<std::vector<CaptureSpec>> ParseCaptureSpecs(std::string_view text);

// Number of elements kept: the first ones in row-major order, in whole rows of the first dimension
// if at least one fits.
std::uint64_t CapturedElements(DType dtype, const std::vector<std::int64_t>& shape,
                               std::uint64_t bytes_max);

std::optional<Mode> ParseMode(std::string_view name);

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_CAPTURE_SPEC_H_
