// Perturbed twins of a run: the same training with noise of some units in the last place in its
// outputs and gradients, or once in its weights. From them the verdict measures how rounding grows.
// docs/twins.md says how they are recorded.
#ifndef STATCOLLECT_SERVER_QUERY_PAIRS_TWINS_H_
#define STATCOLLECT_SERVER_QUERY_PAIRS_TWINS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"
#include "server/query/compare/alignment.h"
#include "server/query/compare/paired_step.h"
#include "server/query/run_view.h"
#include "server/store/run_reader.h"

namespace statcollect::query {

// The settings by which a run is known as a twin.
inline constexpr char kPerturbUlps[] = "recording.perturb";
inline constexpr char kPerturbMode[] = "recording.perturb_mode";
inline constexpr char kPerturbBase[] = "recording.perturb_base";

struct TwinOf {
  std::string run;
  double ulps = 1;        // size of its noise, in units in the last place
  bool once = false;      // in its weights as loaded only
  bool perturbed = true;  // false: a repeat, whose kernels alone make noise
};

// Thread-safe. Borrows A's view.
class Twins {
 public:
  using OpenRun = std::function<Result<RunView>(const std::string& run)>;

  // The runs that say that they are twins of `base`. Cost: the names of all runs, and the settings
  // of those whose name begins like a twin's.
  static Result<std::vector<TwinOf>> Find(RunReader& store, const std::string& base);
  // Opens them, in the way in which A was. `notes`: a sentence for each that cannot serve: another
  // world size, other weights as loaded or batches, no step in common. Null if none is left. Cost:
  // reads one step of one rank of each.
  static Result<std::unique_ptr<Twins>> Open(const OpenRun& open, RunView& a,
                                             std::vector<TwinOf> twins,
                                             std::vector<std::string>& notes);

  // By size of their noise, ascending; never empty.
  const std::vector<TwinOf>& all() const { return twins_; }
  // The steps that A and all twins have, ascending, and A's attempt.
  const std::map<std::uint64_t, std::size_t>& steps() const { return steps_; }

  struct Step {
    StepData data;
    ById by_id;  // by A's ids
    std::vector<ScalarRecord> scalars;
  };
  // Of a twin. Nothing, if it does not have the rank. Cost: reads the step.
  Status Read(std::size_t twin, std::uint32_t rank, std::uint64_t step, Step& to) const;

 private:
  struct Opened {
    explicit Opened(RunView opened);
    RunView view;
    std::map<std::uint64_t, std::size_t> steps;  // attempts
    Aligner aligner;
  };

  explicit Twins(RunView& a) : a_(a) {}
  // Why the twin cannot serve; empty if it can.
  Result<std::string> WhyNot(Opened& twin, const TwinOf& of,
                             const std::map<std::uint64_t, std::size_t>& steps_a) const;
  Status ReadOf(Opened& twin, std::size_t attempt_a, std::uint32_t rank, std::uint64_t step,
                Step& to) const;

  RunView& a_;
  std::vector<TwinOf> twins_;
  std::vector<std::unique_ptr<Opened>> opened_;  // the same order
  std::map<std::uint64_t, std::size_t> steps_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_PAIRS_TWINS_H_
