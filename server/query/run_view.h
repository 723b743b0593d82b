// A run as one sequence of steps, even if it was launched several times: each step comes from the
// newest attempt that has it.
#ifndef STATCOLLECT_SERVER_QUERY_RUN_VIEW_H_
#define STATCOLLECT_SERVER_QUERY_RUN_VIEW_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/records.h"
#include "common/status.h"
#include "common/step_set.h"
#include "common/thread_annotations.h"
#include "server/query/reports.h"
#include "server/store/run_reader.h"

namespace statcollect::query {

using RankCatalogue = RankDefinitions;

// One tensor of one step. Points into its StepData and RankCatalogue.
struct Observation {
  const TensorDef* def = nullptr;
  const Layout* layout = nullptr;
  const TensorStats* stats = nullptr;
  std::span<const double> sketch;
  std::uint32_t order = 0;
};

// All records of one rank in one step; tensors in the order of execution.
struct StepData {
  std::vector<StatColumns> blocks;
  std::vector<Observation> observations;
};

// Reads lazily and caches definitions. Thread-safe after Open. Borrows the reader, a store as a
// rule.
class RunView {
 public:
  // kNotFound: no such run; names the existing ones.
  static Result<RunView> Open(RunReader& store, const std::string& run);

  const std::string& run() const { return run_; }
  const std::vector<AttemptMeta>& attempts() const {
    return attempts_;
  }  // oldest first, never empty
  const std::map<std::uint32_t, RankMeta>& ranks(std::size_t attempt) const {
    return ranks_[attempt];
  }
  std::vector<std::uint32_t> AllRanks() const;      // of any attempt, ascending
  std::uint64_t Dropped(std::uint32_t rank) const;  // records that its agents reported as lost

  // Steps that have records, each with the index of its attempt. A step does not belong to an
  // attempt that has in it only the weights loaded before its first step was set.
  Result<std::map<std::uint64_t, std::size_t>> Steps(const StepSet& wanted) const;
  // From the first to the last of all attempts and ranks, as their tallies say.
  std::optional<StepRange> StepSpan() const;
  std::string StepSpanText() const;  // "steps 0..7", or "no steps yet"
  // Over all attempts; absent if nothing was recorded. Cost: that of NewestStep for each rank.
  Result<std::optional<std::uint64_t>> NewestStepWithStats() const;
  // As known so far; Read may extend it. Pointers stay valid as long as the view. Ranks with the
  // same definitions may share a catalogue.
  Result<const RankCatalogue*> Catalogue(std::size_t attempt, std::uint32_t rank);
  // Whether everything of the rank's step is stored. False if it is the rank's last step and has no
  // end: the rank died in it or is still in it.
  Result<bool> IsComplete(std::size_t attempt, std::uint32_t rank, std::uint64_t step) const;
  Result<StepData> Read(std::size_t attempt, std::uint32_t rank, std::uint64_t step);
  // Blocks of a rank, undecoded.
  std::unique_ptr<StatScan> Scan(std::size_t attempt, std::uint32_t rank, StepBounds steps) const;
  // The catalogue, extended as far as these blocks of a step need it. kDataLoss: they use undefined
  // ids.
  Result<const RankCatalogue*> CatalogueOf(std::size_t attempt, std::uint32_t rank,
                                           std::uint64_t step, std::span<const StatColumns> blocks);
  // The same of one record, which has an activation and a layout.
  template <typename Record>
  Result<const RankCatalogue*> CatalogueOf(std::size_t attempt, std::uint32_t rank,
                                           const Record& record) {
    const auto is_defined = [&](const RankCatalogue& catalogue) {
      return record.activation < catalogue.activations.size() &&
             record.layout < catalogue.layouts.size();
    };
    return CatalogueThat(is_defined, attempt, rank, record.step);
  }
  // The same of one block.
  Result<const RankCatalogue*> CatalogueOf(std::size_t attempt, std::uint32_t rank,
                                           std::uint64_t step, const NumberColumns& block);
  // One activation of a rank over these steps.
  struct Series {
    std::size_t attempt = 0;
    std::uint32_t rank = 0;
    std::uint32_t activation = 0;
    StepBounds steps;
    std::vector<StatPoint> points;  // ascending
  };
  // Reads the points of several series at once, on several threads: of the steps that keep(attempt,
  // step) wants (empty: all). Afterwards the catalogues have their layouts. kResourceExhausted:
  // more than kRowsMax points.
  using KeepStep = std::function<bool(std::size_t attempt, std::uint64_t step)>;
  Status ReadSeries(std::span<Series> series, const KeepStep& keep = {});
  Result<std::vector<ScalarRecord>> Scalars(std::size_t attempt, std::uint32_t rank,
                                            StepBounds steps) const;
  Result<std::vector<EventRecord>> Events(std::size_t attempt,
                                          std::uint32_t rank) const;  // by step

 private:
  // `is_defined`: by a catalogue.
  Result<const RankCatalogue*> CatalogueThat(
      const std::function<bool(const RankCatalogue&)>& is_defined, std::size_t attempt,
      std::uint32_t rank, std::uint64_t step);
  // Reads the catalogue again: the run is live and has defined more.
  Result<const RankCatalogue*> ReadCatalogueAgain(std::size_t attempt, std::uint32_t rank,
                                                  const RankCatalogue* outgrown);
  // Whether the step holds only the weights that a launch loaded before its first step was set.
  Result<bool> IsWhatWasFound(std::size_t attempt, std::uint32_t rank, std::uint64_t step) const;
  Result<bool> HasOnlyInitial(std::size_t attempt, std::uint32_t rank, std::uint64_t step) const;
  // The wanted steps of a range without gaps.
  Status AddAll(StepBounds range, const StepSet& wanted, std::size_t attempt,
                std::map<std::uint64_t, std::size_t>& steps) const;
  Status DefineLayouts(const Series& series);
  Status Undefined(std::uint32_t rank, std::uint64_t step) const;
  Result<StepData> ReadBlocks(std::size_t attempt, std::uint32_t rank, std::uint64_t step) const;
  RunView(RunReader& store, std::string run) : store_(&store), run_(std::move(run)) {}

  RunReader* store_;
  std::string run_;
  std::vector<AttemptMeta> attempts_;
  std::vector<std::map<std::uint32_t, RankMeta>> ranks_;  // by attempt
  std::unique_ptr<Mutex> mutex_ = std::make_unique<Mutex>();
  // Guarded by mutex_:
  std::map<std::pair<std::size_t, std::uint32_t>, std::shared_ptr<const RankCatalogue>> catalogues_;
  std::vector<std::shared_ptr<const RankCatalogue>> outgrown_;  // observations still point to them
};

// A rank of a run's launch.
struct RankOfRun {
  RunView* view = nullptr;
  std::size_t attempt = 0;
  std::uint32_t rank = 0;
};
// All ranks of these attempts (indexes of RunView::attempts).
std::vector<RankOfRun> RanksOf(RunView& view, std::size_t first_attempt, std::size_t last_attempt);
// Reads their definitions into the views' caches, on several threads. A failure shows again where a
// catalogue is asked for.
void ReadCatalogues(std::span<const RankOfRun> ranks);

// The numbers of a side; its texts and its shape stay as they are.
void SetValues(const TensorStats& stats, const Layout& layout, ObservationSide& side);
// For reports.
ObservationSide MakeSide(const TensorStats& stats, const Layout& layout);
inline ObservationSide MakeSide(const Observation& observation) {
  return MakeSide(*observation.stats, *observation.layout);
}

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_RUN_VIEW_H_
