// Checks what one stream adds to its rank: validates every batch against what the session has sent
// before, trims what is already stored, and computes the rank's state after it.
//
// Not thread-safe: a stream's messages arrive one after the other.
#ifndef STATCOLLECT_SERVER_INGEST_SESSION_H_
#define STATCOLLECT_SERVER_INGEST_SESSION_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/records.h"
#include "common/status.h"
#include "server/ingest/definition_budget.h"
#include "server/store/run_reader.h"

namespace statcollect {

inline constexpr std::size_t kDefinitionsMax = std::size_t{1} << 20;  // of each kind, per session

// Adds the losses that records_dropped events report in their fields `cause` and `count`. Returns
// the number of records added.
std::uint64_t CountDropEvents(std::span<const EventRecord> events,
                              std::map<std::string, std::uint64_t>* dropped);

// A set of small ids that can be cleared cheaply.
class IdSet {
 public:
  void Clear() { ++generation_; }
  bool Contains(std::uint32_t id) const {
    return id < stamps_.size() && stamps_[id] == generation_;
  }
  // False if it was already in the set.
  bool Insert(std::uint32_t id) {
    if (id >= stamps_.size())
      stamps_.resize(std::max<std::size_t>(std::size_t{id} + 1, 2 * stamps_.size()));
    return std::exchange(stamps_[id], generation_) != generation_;
  }

 private:
  std::vector<std::uint64_t> stamps_;  // by id: the generation in which it was inserted
  std::uint64_t generation_ = 1;
};

class IngestSession {
 public:
  // A batch to store, with the rank's state after it; nothing to store if it is a duplicate.
  struct Accepted {
    std::optional<RecordBatch> batch;
    RankMeta meta;  // without the configuration, which the store has from the hello and the batches
    std::uint64_t duplicates = 0;  // records that were already stored
    std::uint64_t dropped = 0;     // records that the agent newly reports as lost
  };

  // For a rank in the state `meta`: its watermark is durable, and nothing of the session is in
  // flight to the store. Reads definitions and the last step's activations from the store.
  // `budget`, which must outlive the session: its definitions count there. kResourceExhausted: no
  // room.
  static Result<std::unique_ptr<IngestSession>> Load(RunReader& store, AttemptId attempt,
                                                     const RankMeta& meta,
                                                     DefinitionBudget& budget);
  ~IngestSession();
  IngestSession(const IngestSession&) = delete;
  IngestSession& operator=(const IngestSession&) = delete;

  // There are two watermarks: received() counts everything that Accept returned, durable or queued,
  // and decides what is new; the committer tracks the durable one. After a failure of Accept, which
  // changes nothing here, or of storing an accepted batch, the caller must end the stream.
  // kOutOfRange: a gap. kInvalidArgument: contradicts what the session has sent.
  // kFailedPrecondition: too many definitions for one session, which trying again does not change.
  // kResourceExhausted: no room in the budget at the moment.
  Result<Accepted> Accept(RecordBatch batch, std::int64_t unix_nanos);

  // The rank's final state. The goodbye's tallies count since the session's start, events only what
  // is new since the event before, so a tally is the larger of the events' sum and the goodbye's,
  // never both. `dropped` is what the goodbye adds to the events.
  Accepted Finish(const AgentCounters& counters, std::int64_t unix_nanos);

  std::uint64_t received() const { return meta_.durable_seq; }
  std::span<const TensorDef> activations() const { return activations_; }
  std::span<const Layout> layouts() const { return layouts_; }
  const RankMeta& meta() const { return meta_; }

 private:
  struct KeyLess {
    using is_transparent = void;
    const std::vector<TensorDef>* defs;
    bool operator()(std::uint32_t a, std::uint32_t b) const {
      return (*defs)[a].key < (*defs)[b].key;
    }
    bool operator()(std::uint32_t a, const TensorKey& b) const { return (*defs)[a].key < b; }
    bool operator()(const TensorKey& a, std::uint32_t b) const { return a < (*defs)[b].key; }
  };

  IngestSession(RankMeta meta, DefinitionBudget& budget)
      : budget_(budget), meta_(std::move(meta)), by_key_(KeyLess{&activations_}) {}

  RankMeta Tallies();  // meta_ without the configuration
  Status Reload(RunReader& store, AttemptId attempt);
  Status ReloadLastStep(RunReader& store, AttemptId attempt);
  Status CheckOrder(const RecordBatch& batch) const;
  Status CheckActivations(const RecordBatch& batch) const;
  Status CheckLayouts(const RecordBatch& batch) const;
  Status CheckStats(const RecordBatch& batch) const;
  // Whether all of them belong to activations that the session or the batch defines.
  template <typename Record>
  Status CheckDefined(const std::string& field, const std::vector<Record>& records,
                      const RecordBatch& batch) const;
  Status CheckSettings(const RecordBatch& batch) const;
  // Counts what the batch newly defines.
  Status ReserveDefinitions(const RecordBatch& batch);
  Status Reserve(std::size_t bytes);
  void AddDefinitions(const RecordBatch& batch);
  void AddStats(const StatColumns& stats);
  void AddTallies(const RecordBatch& batch);

  DefinitionBudget& budget_;
  std::size_t definition_bytes_ = 0;
  RankMeta meta_;  // after everything received
  std::vector<TensorDef> activations_;
  std::set<std::uint32_t, KeyLess> by_key_;  // ids, sorted by identity
  std::vector<Layout> layouts_;
  std::optional<std::uint64_t> stat_step_;  // the last one with statistics
  IdSet seen_;                              // activations of stat_step_
  mutable IdSet in_batch_;                  // scratch of CheckStats: the current step of the batch
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_INGEST_SESSION_H_
