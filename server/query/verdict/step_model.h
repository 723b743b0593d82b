// Decides, step by step, which differences of two runs rounding explains: measured from twins, or
// guessed by rules.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_STEP_MODEL_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_STEP_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "common/status.h"
#include "server/query/verdict/explain.h"
#include "server/query/verdict/jumps.h"
#include "server/query/verdict/step_pairs.h"

namespace statcollect::query {

// For one rank. Not thread-safe.
class StepModel {
 public:
  struct Answer {
    std::vector<Explained> explained;  // one for each pair, in their order
    std::vector<Jump> jumps;           // differences that are not explained; indices ascend
    // Outputs that differ far beyond the noise while the losses, gradients and updates of the step
    // do not: rows that nothing reads, such as padding under another attention. They are not among
    // the jumps. Indices.
    std::vector<std::size_t> without_effect;
  };

  virtual ~StepModel() = default;
  // Steps must ascend. The answer points into `now`; names must outlive the model.
  virtual Result<Answer> Judge(std::uint64_t step, StepPairs& now) = 0;
  // SpreadName of tensors whose rows depend on the data, as far as known. Where noise is measured,
  // other rows are judged with the step.
  virtual const std::set<std::string>& data_dependent() const = 0;
  // Whether it has judged by repeats or twins of A.
  virtual bool measures_noise() const = 0;
  // The jump that is the root. `jumps`: not empty, ascending; settings before others of the same
  // record.
  virtual std::size_t ChooseJump(std::span<const Explained> step,
                                 std::span<const Jump> jumps) const = 0;
  // Parameters whose gradient was zero except for rounding in some step so far.
  virtual const std::unordered_set<std::string_view>& noise_driven() const = 0;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_STEP_MODEL_H_
