// Noise computed from the runs that repeat a run.
#ifndef STATCOLLECT_SERVER_QUERY_NOISE_NOISE_REPEATS_H_
#define STATCOLLECT_SERVER_QUERY_NOISE_NOISE_REPEATS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "server/query/compare/alignment.h"
#include "server/query/compare/noise.h"
#include "server/query/run_view.h"
#include "server/store/run_reader.h"

namespace statcollect::query {

// The largest distance between A and any of its repeats in the step; if a repeat does not have the
// step, its last one before it is used. Different shapes and dtypes are ignored. Thread-safe.
class RepeatNoise final : public NoiseFloor {
 public:
  using OpenRun = std::function<Result<RunView>(const std::string& run)>;
  // `a` is borrowed, and so is what `open` reads. It opens the repeats in the way in which A was:
  // as their ranks recorded them, or as one model each. kNotFound: no such run, or one without a
  // step, rank or activation in common with A; kInvalidArgument: A itself, or no run.
  static Result<std::unique_ptr<RepeatNoise>> Open(const OpenRun& open, RunView& a,
                                                   const std::vector<std::string>& runs);

  Result<std::vector<double>> At(std::size_t attempt_a, std::uint32_t rank,
                                 std::uint64_t step) override;
  Result<double> OfLoss(std::uint32_t rank, std::uint64_t step, std::uint32_t micro_batch,
                        const std::string& name) override;

 private:
  struct Repeat {
    explicit Repeat(RunView opened);
    RunView view;
    std::map<std::uint64_t, std::size_t> steps;  // attempts
    Aligner aligner;
  };
  // The newest place, at the step or before, where both A and a repeat have records.
  struct Spot {
    std::uint64_t step = 0;
    std::size_t attempt_a = 0, attempt_repeat = 0;
  };

  explicit RepeatNoise(RunView& a);
  std::optional<Spot> Nearest(const Repeat& repeat, std::uint64_t step) const;
  // kNotFound unless some rank has an activation in both.
  Status CheckShared(Repeat& repeat, const Spot& spot);
  // The noise by A's ids at the spot.
  Result<std::vector<double>> Of(Repeat& repeat, const Spot& spot, std::uint32_t rank);

  RunView& a_;
  Aligner self_;
  std::map<std::uint64_t, std::size_t> steps_a_;
  std::vector<std::unique_ptr<Repeat>> repeats_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_NOISE_NOISE_REPEATS_H_
