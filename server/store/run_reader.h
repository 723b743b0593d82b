// Reads one run after another, rank by rank and step by step: what a comparison needs. The store is
// one; so is a run that is put together from its ranks (query/logical/).
//
// Who: queries, alarms, ingest (where a stream continues). Thread-safe. Runs grow meanwhile: two
// reads need not see the same records.
#ifndef STATCOLLECT_SERVER_STORE_RUN_READER_H_
#define STATCOLLECT_SERVER_STORE_RUN_READER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/records.h"
#include "common/status.h"
#include "server/store/attempt.h"
#include "server/store/block_digest.h"
#include "server/store/hash_columns.h"
#include "server/store/number_columns.h"

namespace statcollect {

// A block of one step: consecutive activations, in execution order.
struct StatBlock {
  std::uint64_t step = 0;
  StatColumns columns;
};

// The part of a block that is known before decoding.
struct BlockHead {
  std::uint64_t step = 0;
  std::uint32_t activation = 0;  // the lowest in the block
  std::size_t records = 0;
  BlockDigest digest{};
  std::uint64_t activations = 0;  // of merged blocks: a hash of which they are; otherwise 0
};

// Which numbers of a block are decoded into columns.
enum class NumberSet : std::uint8_t {
  kNorms,  // all before l1: counts, mean, std, l2
  kAll,
};

// Ordered forward scan. Usage: while (it->Next()) use it->block(); then check it->status(). If many
// blocks need not be decoded: while (it->NextHead()) look at it->head(), and Load the block if
// needed.
class StatScan {
 public:
  virtual ~StatScan() = default;
  bool Next() {
    if (!NextHead()) return false;
    block_.step = head().step;
    return Load(/*sketches=*/true, &block_.columns);
  }
  const StatBlock& block() const { return block_; }  // valid until the next call of Next

  virtual bool NextHead() = 0;                // false at the end or on failure
  virtual const BlockHead& head() const = 0;  // of the block of the last NextHead
  // Decodes that block into `columns`, replacing their content. `sketches`: including sketches and
  // samples; otherwise its sketch_width is 0. False on failure.
  virtual bool Load(bool sketches, StatColumns* columns) = 0;
  // The same, only the hashes. A block is loaded in one of these ways.
  virtual bool LoadHashes(HashColumns* columns) = 0;
  // Decodes that block, with sketches, for a comparison in columns, and points to it: valid until
  // the next call of anything else. It can still be loaded. nullptr: on failure, or, with an OK
  // status, this scan has no columns.
  virtual const NumberColumns* Columns() { return nullptr; }
  // The same without sketches, of these numbers only.
  virtual const NumberColumns* Numbers(NumberSet) { return nullptr; }
  virtual const Status& status() const = 0;      // kDataLoss names the key that fails its checksum
  virtual std::uint64_t bytes_read() const = 0;  // encoded bytes so far

 private:
  StatBlock block_;
};

struct StepBounds {
  std::uint64_t first = 0;
  std::uint64_t last = ~std::uint64_t{0};  // inclusive
};

// One activation in one step, without its sketch.
struct StatPoint {
  std::uint64_t step = 0;
  std::uint32_t layout = 0;
  std::uint32_t order = 0;
  TensorStats stats;
};

// Definitions of one rank of one attempt; ids are indexes.
struct RankDefinitions {
  std::vector<TensorDef> activations;
  std::vector<Layout> layouts;
};
using SharedDefinitions = std::shared_ptr<const RankDefinitions>;

// What a run's queries read. A view of a run that a store does not hold as such, like one merged
// over its ranks, implements it as well.
class RunReader {
 public:
  virtual ~RunReader() = default;

  // kCancelled: the query that reads here has to end. Every read checks this; a long loop without
  // reads calls it.
  virtual Status CheckStop() const { return Status::Ok(); }

  virtual Result<std::vector<std::string>> ListRuns() = 0;  // sorted
  // Oldest first; empty if there is no such run.
  virtual Result<std::vector<AttemptMeta>> Attempts(const std::string& run) = 0;
  // Their configuration includes the settings added after the hello.
  virtual Result<std::map<std::uint32_t, RankMeta>> Ranks(AttemptId attempt) = 0;
  // Everything that was defined before the call. A store may cache it for later calls and other
  // ranks.
  virtual Result<SharedDefinitions> Definitions(AttemptId attempt, std::uint32_t rank) = 0;
  // Blocks of a rank by (step, first activation).
  virtual std::unique_ptr<StatScan> ScanStats(AttemptId attempt, std::uint32_t rank,
                                              StepBounds steps) = 0;
  // One activation over the steps, ascending, without reading the others. Cost: one point read per
  // step, about 5 us.
  virtual Result<std::vector<StatPoint>> ActivationSeries(AttemptId attempt, std::uint32_t rank,
                                                          std::uint32_t activation,
                                                          StepBounds steps) = 0;
  // Distinct steps with statistics, ascending. Cost: one seek per step.
  virtual Result<std::vector<std::uint64_t>> StatSteps(AttemptId attempt, std::uint32_t rank,
                                                       StepBounds steps) = 0;
  // The first of them; absent: there is none. Cost: one seek.
  virtual Result<std::optional<std::uint64_t>> FirstStatStep(AttemptId attempt, std::uint32_t rank,
                                                             StepBounds steps) = 0;
  virtual Result<std::vector<ScalarRecord>> Scalars(AttemptId attempt, std::uint32_t rank,
                                                    StepBounds steps) = 0;  // by step
  virtual Result<std::vector<EventRecord>> Events(AttemptId attempt,
                                                  std::uint32_t rank) = 0;  // by step
  virtual Result<std::vector<StepRecord>> StepEnds(AttemptId attempt, std::uint32_t rank,
                                                   StepBounds steps) = 0;  // by step
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_RUN_READER_H_
