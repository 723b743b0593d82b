// A run as if one rank had held the whole model: each attempt has one rank, number 0, whose records
// are those of all ranks merged (merge_parts.h). Diff reads it through a RunView like any other
// run.
#ifndef STATCOLLECT_SERVER_QUERY_LOGICAL_LOGICAL_RUN_H_
#define STATCOLLECT_SERVER_QUERY_LOGICAL_LOGICAL_RUN_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/records.h"
#include "common/status.h"
#include "common/thread_annotations.h"
#include "server/query/logical/findings.h"
#include "server/query/logical/merge_parts.h"
#include "server/store/run_reader.h"

namespace statcollect::query {

// A tensor whatever its step, micro-batch and call.
struct TensorName {
  Kind kind = Kind::kUnspecified;
  std::string name, output_path;
  auto operator<=>(const TensorName&) const = default;
};

// How one tensor is cut. Two runs cut it alike if they have a print in common.
struct TensorCut {
  std::set<std::uint64_t>
      prints;  // of which part each rank holds, whatever its size; see logical/cut.h
  std::vector<std::int64_t> shape;  // of the first rank's part
  std::vector<std::int64_t> whole;  // of the logical tensor, if that part is not a piece of a batch
  // Nothing but equal bits on all ranks says that it is a replica, and so far it was constant
  // there: so may its parts be.
  bool perhaps_cut = false;
};

// How a run is cut, as far as its first steps show.
struct RunCut {
  std::map<TensorName, TensorCut> tensors;
  std::set<TensorName> unknown;  // recorded by several ranks, which differ, without a placement
  std::set<TensorName> placed;   // with a placement that is not the whole, or a piece of the batch
  std::uint32_t ranks = 0;
  std::uint32_t micro_batches = 1, pieces = 1;
  std::uint32_t stages = 1;  // of a pipeline, which numbers micro-batches as it runs them
  bool batch_of_step =
      false;  // a micro-batch's activations are boxes of a batch that it has with others
  // In the first step, by activation: the elements of all passes of all ranks together, and the
  // number of passes; in training, and in evaluation.
  struct Passes {
    std::uint64_t elements = 0, passes = 0;
  };
  std::map<TensorName, Passes> trained, evaluated;
};

class LogicalRun : public RunReader {
 public:
  // Reads the definitions and the first two steps. kNotFound: no such run. Borrows the store.
  static Result<std::unique_ptr<LogicalRun>> Open(RunReader& store, const std::string& run);

  const RunCut& cut() const { return cut_; }
  // Before the first read. `hidden`: tensors that are left out. `fold`: all micro-batches of a step
  // are one batch, and gradients of activations, which depend on how a loss is averaged over
  // micro-batches, are left out. `tied`: parameters that the other run knows by another name, which
  // are left out, too. `evaluated`: with `fold`, activations of which all passes in evaluation are
  // one batch, too.
  void Choose(std::set<TensorName> hidden, std::set<std::string> tied, bool fold,
              std::set<TensorName> evaluated = {});
  // Instead of Choose, for questions about this run alone: leaves out tensors whose cut is unknown,
  // and keeps norms and counts of a batch that is cut over ranks.
  void ChooseAlone();
  // Takes over the choice of another run of the same training.
  void ChooseAs(const LogicalRun& other) {
    Choose(other.hidden_, other.tied_, other.fold_, other.evaluated_);
  }
  bool folds_micro_batches() const { return fold_; }
  // Ranks that hold a tensor in the newest attempt that has it; ascending.
  std::vector<std::uint32_t> RanksOf(const TensorName& tensor) const;
  // In that attempt.
  std::vector<std::uint32_t> RanksOf(AttemptId attempt, const TensorName& tensor) const;
  // The records of one tensor in one step, of every rank that holds it; empty if there is none.
  // Cost: reads the step of all ranks.
  struct HeldParts {
    std::deque<StatColumns> blocks;  // what the parts point to
    std::vector<Part> parts;
  };
  using IsWanted = std::function<bool(const TensorKey&)>;
  Result<HeldParts> ReadParts(std::uint64_t step, const IsWanted& wanted);
  // What was found while reading: replicas that differ, parts that are missing or overlap. One
  // sentence each.
  std::vector<std::string> Notes() const { return findings_.Sentences(run_); }

  Status CheckStop() const override { return store_.CheckStop(); }
  Result<std::vector<std::string>> ListRuns() override { return store_.ListRuns(); }
  Result<std::vector<AttemptMeta>> Attempts(const std::string& run) override {
    return store_.Attempts(run);
  }
  Result<std::map<std::uint32_t, RankMeta>> Ranks(AttemptId attempt) override;
  Result<SharedDefinitions> Definitions(AttemptId attempt, std::uint32_t rank) override;
  std::unique_ptr<StatScan> ScanStats(AttemptId attempt, std::uint32_t rank,
                                      StepBounds steps) override;
  Result<std::vector<StatPoint>> ActivationSeries(AttemptId attempt, std::uint32_t rank,
                                                  std::uint32_t activation,
                                                  StepBounds steps) override;
  Result<std::vector<std::uint64_t>> StatSteps(AttemptId attempt, std::uint32_t rank,
                                               StepBounds steps) override;
  Result<std::optional<std::uint64_t>> FirstStatStep(AttemptId attempt, std::uint32_t rank,
                                                     StepBounds steps) override;
  Result<std::vector<ScalarRecord>> Scalars(AttemptId attempt, std::uint32_t rank,
                                            StepBounds steps) override;
  Result<std::vector<EventRecord>> Events(AttemptId attempt, std::uint32_t rank) override;
  Result<std::vector<StepRecord>> StepEnds(AttemptId attempt, std::uint32_t rank,
                                           StepBounds steps) override;

 private:
  friend class LogicalScan;

  struct Member {  // a rank of an attempt
    std::uint32_t rank = 0;
    std::uint32_t stage = 0;  // of a pipeline
    std::vector<TensorDef> activations;
    std::deque<Layout> layouts;          // never move
    std::vector<std::uint32_t> logical;  // by activation id; kHidden
  };
  struct Attempt {
    AttemptId id = 0;
    std::uint32_t stages = 1;
    bool other_weights = false;  // ranks of a stage have weights that others of it lack: experts
    std::map<std::uint32_t, RankMeta> ranks;
    std::vector<Member> members;  // by rank
    std::vector<TensorDef> activations;
    std::map<TensorKey, std::uint32_t> ids;
    std::map<TensorName, std::set<std::uint32_t>> holders;
    // Of merged tensors, which have no placement; by all but their ids.
    std::map<std::tuple<DType, HashKind, std::uint32_t, std::uint32_t, std::vector<std::int64_t>>,
             std::uint32_t>
        layout_ids;
    std::vector<Layout> layouts;
    std::vector<std::shared_ptr<const MergePlan>> plans;  // by logical id: the newest
  };
  using Parts = std::pair<std::uint32_t, std::vector<Part>>;  // of a logical id
  // Records of all ranks in one step. Reuses its memory from step to step.
  struct Step {
    std::deque<StatColumns> blocks;  // what the parts point to
    std::size_t used = 0;            // of them
    std::vector<Parts> pool;
    std::vector<std::uint32_t>
        slots;               // by logical id: its place in the pool and 1; 0: not recorded
    std::span<Parts> parts;  // of the pool: what was recorded
    std::vector<std::shared_ptr<const MergePlan>>
        plans;  // by logical id, as far as they were needed

    StatColumns& NewBlock();
    std::vector<Part>& PartsOf(std::uint32_t id);
    void Clear();
  };

  // A step as if of one rank: its tensors with sketches, and those without. Reuses its memory from
  // step to step.
  struct Merged {
    std::array<StatColumns, 2> blocks;
    // Whether each record of a block is that of a whole tensor with a hash to rely on: equal
    // hashes, equal tensors.
    std::array<bool, 2> hashed{};
  };

  static constexpr std::uint32_t kHidden = ~std::uint32_t{0};

  LogicalRun(RunReader& store, std::string run) : store_(store), run_(std::move(run)) {}
  Status Read();
  void FindStages(Attempt& attempt);
  void DefineAgain() STATCOLLECT_REQUIRES(mutex_);
  Status Classify();
  void Judge(const TensorDef& def, const std::vector<Part>& parts,
             std::set<std::string>* replicated);
  void CountElements(const TensorDef& def, const std::vector<Part>& parts);
  Status Grow(Attempt& attempt) STATCOLLECT_REQUIRES(mutex_);
  void Define(Attempt& attempt) STATCOLLECT_REQUIRES(mutex_);
  std::uint32_t IdOf(Attempt& attempt, const Member& member, const TensorDef& def)
      STATCOLLECT_REQUIRES(mutex_);
  Attempt* Find(AttemptId id);
  const std::vector<Member>& MembersOf(AttemptId attempt);  // empty: no such attempt
  Status ReadStep(Attempt& attempt, std::uint64_t number, bool sketches,
                  Step& step);  // of all ranks
  // Adds a rank's records, which are in the step's last block. Reads definitions again if it must.
  Status Add(Attempt& attempt, std::size_t member, Step& step);
  Status ReadDefinitionsAgain(Attempt& attempt);  // of a run that is live
  static Part MakePart(const Member& member, std::uint32_t id, std::uint32_t layout,
                       const TensorStats* stats, std::uint32_t order);
  bool IsDefined(const Member& member, const StatColumns& block) const
      STATCOLLECT_REQUIRES_SHARED(mutex_);
  // The tensors of the step, each with a number that grows with its place.
  std::vector<std::pair<std::uint64_t, const Parts*>> InOrder(const Attempt& attempt,
                                                              const Step& step) const
      STATCOLLECT_REQUIRES_SHARED(mutex_);
  void Merge(Attempt& attempt, std::uint64_t step_number, Step& step, Merged* merged);
  void MergeInto(const MergePlan& plan, const Parts& parts, const TensorKey& key,
                 std::uint64_t step_number, Merged* merged);
  const MergePlan& PlanOf(Attempt& attempt, const Parts& parts, Step& step);
  std::uint32_t Intern(Attempt& attempt, const Layout& layout) STATCOLLECT_REQUIRES(plans_mutex_);

  RunReader& store_;
  const std::string run_;
  RunCut cut_;
  std::set<TensorName> hidden_, evaluated_;
  std::set<std::string> tied_;
  bool fold_ = false, sums_ = false;
  std::deque<Attempt> attempts_;
  mutable SharedMutex mutex_;  // for what Grow and Define write
  Mutex plans_mutex_;          // for the attempts' layouts and plans; taken after mutex_
  Findings findings_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_LOGICAL_LOGICAL_RUN_H_
