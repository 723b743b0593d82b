// The data that the rules examine, read once for all of them.
#ifndef STATCOLLECT_SERVER_QUERY_CAUSE_EVIDENCE_H_
#define STATCOLLECT_SERVER_QUERY_CAUSE_EVIDENCE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "common/records.h"
#include "common/status.h"
#include "server/query/cause/cause.h"
#include "server/query/compare/paired_step.h"
#include "server/query/pairs/tensor_pair.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"

namespace statcollect::query::cause {

// One run, on the root's rank.
struct Side {
  RunView* view = nullptr;
  std::uint32_t rank = 0;
  std::size_t attempt = 0;  // of the root's step
  std::uint32_t world_size = 0;
  std::uint32_t micro_batches = 0;            // of the root's step
  bool launched_here = false;                 // the root's step is the first one after a resume
  std::uint64_t first_step = 0;               // of the root's attempt
  std::map<std::string, std::string> config;  // as it was in the root's step, as far as known
  std::vector<ScalarRecord> scalars;          // up to the root's step, ascending
  std::vector<EventRecord> events;            // of the root's attempt
  StepData at, before;                        // the root's step and the compared one before it
  // Of a root that is a weight's gradient: the norm of all weight gradients of the model in both
  // steps, each counted once however ranks share it. Absent: not known.
  std::optional<double> norm, norm_before;
  const Observation* root = nullptr;  // the root's record; null: this run has none

  const std::string& name() const { return view->run(); }
  // The newest value at a step not after `step`.
  std::optional<double> LatestScalar(std::string_view scalar, std::uint64_t step) const;
  std::optional<double> ScalarAt(std::string_view scalar, std::uint64_t step) const;
};

// A tensor of A and its counterpart in B. Parts that match only when put together count as one.
struct Pair {
  const Observation* a = nullptr;
  const Observation* b = nullptr;
  const TensorKey& key() const { return a->def->key; }
  bool SameBits() const { return HaveSameBits(*a, *b); }
};

struct Evidence {
  const Divergence& root;
  Side a, b;
  PairedStep paired_at, paired_before;
  std::vector<Pair> at, before;              // theirs
  std::optional<std::uint64_t> step_before;  // the compared step before the root's
  bool launched_together = false;       // both launches of the root's step begin at the same step
  bool first_update = false;            // the root's step is the first of both runs
  const Pair* agreeing_part = nullptr;  // of a root in a batch: FindAgreeingPart

  double rounding =
      0;  // the coarsest roundoff in the step, or how far outputs before the root are apart
  std::map<const Observation*, double>
      noise;  // how far one of A's twins is from A's records of the step

  // The relative distance that rounding may leave in what is otherwise a multiple of A's record.
  double RemainderOf(const Observation& of_a) const;
  bool HasRootPair() const { return a.root != nullptr && b.root != nullptr; }
  std::vector<Pair> PairsOf(Kind kind) const;  // of the root's step, in training
  // "at step 4"
  std::string AtStep() const { return AtStep(root.step); }
  static std::string AtStep(std::uint64_t step) { return "at step " + std::to_string(step); }
};

// The tensor of that kind and name; any name if it is empty. Null if the step has none.
const Observation* Find(const StepData& step, Kind kind, std::string_view name,
                        Mode mode = Mode::kTrain);
// The norm of the weight gradients that a rank holds.
double NormOfRank(const StepData& step);
// The weight's last record of that mode; null: there is none.
const Pair* WeightIn(const std::vector<Pair>& pairs, std::string_view name, Mode mode);

Result<Evidence> Gather(const CauseQuestion& question, const std::stop_token& stop);

}  // namespace statcollect::query::cause

#endif  // STATCOLLECT_SERVER_QUERY_CAUSE_EVIDENCE_H_
