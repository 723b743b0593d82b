// Which tensors' binary exponents are counted, and in which steps: STATAGENT_EXPONENTS
// (docs/exponents.md).
#ifndef STATCOLLECT_AGENT_STAGING_EXPONENT_SPEC_H_
#define STATCOLLECT_AGENT_STAGING_EXPONENT_SPEC_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "common/records.h"
#include "common/status.h"
#include "common/step_set.h"

namespace statcollect {

inline constexpr std::size_t kExponentSpecsMax = 256;

struct ExponentSpec {
  std::string pattern;      // of the name: '*' stands for any characters, '?' for one
  std::vector<Kind> kinds;  // empty: every kind
  StepSet steps;

  // Cost: at worst the name's length times the number of '*' in the pattern.
  bool Matches(const TensorKey& key) const;
  // "PATTERN", "PATTERN@STEPS" or "PATTERN@STEPS:kind=weight_grad,kind=grad_output". The last '@'
  // counts; STEPS as StepSet::Parse. kInvalidArgument says what was found and expected, of this
  // option.
  static Result<ExponentSpec> Parse(std::string_view text, std::string_view option = "exponents");
};

// Several of these texts, separated by ';'; blanks around each are dropped.
Result<std::vector<ExponentSpec>> ParseExponentSpecs(std::string_view text,
                                                     std::string_view option = "exponents");

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_STAGING_EXPONENT_SPEC_H_
