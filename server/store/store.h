// The collector's storage, as an interface narrow enough for a different engine: append batches
// with their watermarks in one atomic write, scan a key range in order, read a point, drop.
//
// A run has attempts; each has a numeric id (AttemptId) that is part of every key and is never
// reused. Thread-safe, but each part has only one committer that calls Append.
#ifndef STATCOLLECT_SERVER_STORE_STORE_H_
#define STATCOLLECT_SERVER_STORE_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/records.h"
#include "common/status.h"
#include "server/store/block_digest.h"
#include "server/store/hash_columns.h"
#include "server/store/number_columns.h"

namespace statcollect {

using AttemptId = std::uint32_t;

inline constexpr std::size_t kDocumentBytesMax = std::size_t{256} << 20;

// One launch of a run.
struct AttemptMeta {
  AttemptId id = 0;          // unique in the store, from 1
  std::uint32_t number = 0;  // within the run, from 1
  std::string run;
  std::string launch;
  std::uint32_t world_size = 0;
  std::int64_t start_unix_nanos = 0;  // collector's clock at the first hello
  bool operator==(const AttemptMeta&) const = default;
};

// One rank of an attempt: its session, watermark and tallies. Rewritten atomically with each
// append.
struct RankMeta {
  SessionInfo info;
  std::uint64_t durable_seq = 0;  // watermark
  std::uint64_t records = 0;      // stored, of all kinds
  std::uint64_t stat_records = 0;
  std::uint64_t steps = 0;                             // distinct steps with statistics
  std::optional<std::uint64_t> first_step, last_step;  // of statistics, scalars and step ends
  std::map<std::string, std::uint64_t> dropped;        // reported by the agent
  std::int64_t last_write_unix_nanos = 0;
  bool finished = false;             // it said goodbye
  std::uint32_t ranks_expected = 0;  // of its launch, as its hello said; 0: all of the world
};

// A batch in its stored form.
class PreparedBatch {
 public:
  virtual ~PreparedBatch() = default;
};

// Prepares the batches of one stream, in order: the CPU-bound part of storing, which several
// streams do in parallel. Not thread-safe. Prepared batches must be appended in order, and none
// after one that could not be appended, because later ones may refer to it.
class StreamWriter {
 public:
  virtual ~StreamWriter() = default;
  virtual std::unique_ptr<PreparedBatch> Prepare(const RecordBatch& batch) = 0;
};

// A batch to store, validated and trimmed to what is new. `meta` is the rank's state after it. Only
// PutRank changes a stored `meta->info`; Append stores it if the rank has none.
struct AppendItem {
  AttemptId attempt = 0;
  std::uint32_t rank = 0;
  const RecordBatch* batch = nullptr;  // ignored if `prepared` is set
  const RankMeta* meta = nullptr;
  const PreparedBatch* prepared =
      nullptr;  // null: Append prepares `batch`, without references to earlier ones
};

// An event that the collector itself adds to a rank. `number` (below 2^63) is chosen by the
// collector: an event with the same number in the same step is replaced.
struct CollectorEvent {
  std::uint32_t rank = 0;
  std::uint64_t number = 0;
  EventRecord event;
};

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

// Raw values of one tensor in one step, as far as they have arrived.
struct StoredCapture {
  std::uint64_t step = 0;
  std::uint32_t activation = 0;
  std::uint32_t layout = 0;
  std::uint64_t elements = 0;      // that were kept
  std::uint64_t bytes_stored = 0;  // from the first byte on, without gaps
};

struct StoreUsage {
  std::uint64_t disk_bytes = 0;           // of the store's files
  std::uint64_t disk_free_bytes = 0;      // of its file system
  std::uint64_t disk_capacity_bytes = 0;  // of its file system
  bool disk_known = true;                 // false: free space and capacity are not
  std::uint64_t unflushed_bytes = 0;      // in memory and in the log, not yet written to tables
  std::uint64_t retired_attempts = 0;     // whose data is still to be deleted
};

// Summary of a stored attempt, for retention and status.
struct AttemptTally {
  AttemptMeta meta;
  std::uint32_t ranks = 0;
  std::uint32_t ranks_expected = 0;  // as its ranks say
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;                       // on disk, approximate
  std::map<std::string, std::uint64_t> dropped;  // reported by the agents, by cause
  std::int64_t last_write_unix_nanos = 0;        // the start, if nothing was written
  bool finished = false;  // every rank of the launch that records said goodbye
  bool kept = false;      // its run is exempt from retention
};

struct CheckpointReport {
  std::string directory;  // the resolved path
  std::uint64_t files = 0;
  std::uint64_t bytes = 0;  // of the files
  bool linked = false;      // its tables share disk space with the store (same file system)
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

// Receives what a read finds, in its order, so that a read needs no copy of all. A status that is
// not OK ends the read, which returns it. Called from the reading thread.
template <typename T>
struct Visitor {
  // A value of so many stored bytes was read; some lead to no record. Empty: of no interest.
  std::function<Status(std::size_t bytes)> read;
  std::function<Status(T record)> take;

  Status Read(std::size_t bytes) const { return read ? read(bytes) : Status::Ok(); }
};

// The visitor of one kind of record; borrowed for the call.
using RecordVisitor = std::variant<const Visitor<ScalarRecord>*, const Visitor<EventRecord>*,
                                   const Visitor<StepRecord>*, const Visitor<MemoryRecord>*,
                                   const Visitor<DensityRecord>*, const Visitor<ExponentRecord>*,
                                   const Visitor<TokenRecord>*, const Visitor<StoredCapture>*>;

// For std::visit: one lambda for each kind.
template <typename... Calls>
struct Overloaded : Calls... {
  using Calls::operator()...;
};

// The most that a read returns as a list: stored bytes of records, bytes in memory of points and
// steps.
inline constexpr std::uint64_t kListBytesMax = std::uint64_t{1} << 30;

class Store : public RunReader {
 public:
  // --- catalogue
  // Durable when it returns. Assigns id and number. `wanted.number`: the number that the caller
  // expects, 0 for none; the attempt gets it or, if others are as high, the next one. A store that
  // several collectors share returns the attempt that another one has created meanwhile under that
  // number for the same launch.
  virtual Result<AttemptMeta> CreateAttempt(const AttemptMeta& wanted) = 0;
  // Removes the attempts, durable when it returns: no list or census has them, the names of their
  // runs are free, and what belongs to a run (kept, documents) is gone with its last attempt.
  // Unknown ids are ignored. Their data stays until PurgeRetired. A small write, whatever their
  // size; on failure nothing has changed.
  virtual Status RetireAttempts(std::span<const AttemptId> ids) = 0;
  // Deletes the data of all retired attempts, also of those that an earlier process retired. Blocks
  // that other attempts share with them stay right throughout. Running scans keep their snapshot.
  // May take minutes, and makes no other call wait, except another one of itself. `stopped` is
  // called again and again without locks that other calls need; true ends it with kCancelled. After
  // a failure the next call continues.
  virtual Status PurgeRetired(const std::function<bool()>& stopped) = 0;
  // Both, for callers that can wait.
  Status DropAttempts(std::span<const AttemptId> ids) {
    STATCOLLECT_RETURN_IF_ERROR(RetireAttempts(ids));
    return PurgeRetired([] { return false; });
  }
  // One entry of Ranks; none: the rank has no state.
  virtual Result<std::optional<RankMeta>> Rank(AttemptId attempt, std::uint32_t rank) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto ranks, Ranks(attempt));
    const auto found = ranks.find(rank);
    return found == ranks.end() ? std::optional<RankMeta>() : std::move(found->second);
  }
  // Call before continuing an existing stream here. From now on, nothing that another collector on
  // the same store is still writing for the rank counts. Returns Rank's answer, which is then
  // final; with a single collector that is all it does.
  virtual Result<std::optional<RankMeta>> ClaimRank(AttemptId attempt, std::uint32_t rank) {
    return Rank(attempt, rank);
  }
  // Call before a newer attempt's stream begins. What another collector on the same store still
  // writes for the rank of this older attempt is neither acknowledged nor counted. False: the
  // attempt does not have the rank. With a single collector there is nothing to do: true.
  virtual Result<bool> EndRank(AttemptId /*attempt*/, std::uint32_t /*rank*/) { return true; }
  // Durable when it returns.
  virtual Status PutRank(AttemptId attempt, std::uint32_t rank, const RankMeta& meta) = 0;
  // Every attempt, by run and number. Reads only the catalogue's small values.
  virtual Result<std::vector<AttemptTally>> Census() = 0;
  // Exempts a run from retention, or ends the exemption; durable when it returns. The exemption
  // ends when the run's last attempt is dropped. kNotFound: no such run.
  virtual Status KeepRun(const std::string& run, bool keep) = 0;
  // Small documents of a run (a noise profile), by name; removed with its last attempt. Durable
  // when it returns. Without a value: removes the document. kNotFound: no such run;
  // kInvalidArgument: larger than kDocumentBytesMax.
  virtual Status PutDocument(const std::string& run, const std::string& name,
                             const std::optional<std::string>& content) = 0;
  virtual Result<std::optional<std::string>> Document(const std::string& run,
                                                      const std::string& name) = 0;

  // --- records
  // For the batches of one stream. Must not outlive the store.
  virtual std::unique_ptr<StreamWriter> NewWriter(AttemptId attempt, std::uint32_t rank) = 0;
  // One atomic write of all items (of each item, where several collectors share the store):
  // definitions, records and rank metas; synced if the store was opened with fsync durability.
  // kAborted is transient, and some items may have been written: claim a rank before writing it
  // again. After a failed write, every later one fails, too, until Recover succeeds.
  virtual Status Append(std::span<const AppendItem> items) = 0;
  // Adds events of the collector, durable when it returns. Events returns them with the agents',
  // with `from_collector` set; they are removed with the attempt and not counted in tallies.
  // kNotFound: no such attempt.
  virtual Status PutEvents(AttemptId attempt, std::span<const CollectorEvent> events) = 0;
  // OK: writes are accepted. After a write that failed for lack of space or descriptors
  // (kResourceExhausted), reopens the store, which takes as long as a start and blocks readers.
  // Call it when there is space again, and repeat while it returns kResourceExhausted: it waits for
  // running scans, but never for the store's own background work. After OK, ranks and records are
  // durable as read; the failed write may be among them. Other failures are permanent.
  virtual Status Recover() = 0;

  // Records of a rank by step, those with an activation by step and activation. Captures come
  // without values.
  template <typename T>
  Status Visit(AttemptId attempt, std::uint32_t rank, StepBounds steps, const Visitor<T>& visitor) {
    return VisitRecords(attempt, rank, steps, &visitor);
  }
  // What engines implement.
  virtual Status VisitRecords(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                              RecordVisitor visitor) = 0;
  // See ActivationSeries and StatSteps.
  virtual Status VisitSeries(AttemptId attempt, std::uint32_t rank, std::uint32_t activation,
                             StepBounds steps, const Visitor<StatPoint>& visitor) = 0;
  virtual Status VisitStatSteps(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                                const Visitor<std::uint64_t>& visitor) = 0;

  // The same as lists. kResourceExhausted: more than kListBytesMax.
  Result<std::vector<ScalarRecord>> Scalars(AttemptId attempt, std::uint32_t rank,
                                            StepBounds steps) final {
    return ListOf<ScalarRecord>("scalars", attempt, rank, steps);
  }
  Result<std::vector<EventRecord>> Events(AttemptId attempt, std::uint32_t rank) final {
    return ListOf<EventRecord>("events", attempt, rank, {});
  }
  Result<std::vector<StepRecord>> StepEnds(AttemptId attempt, std::uint32_t rank,
                                           StepBounds steps) final {
    return ListOf<StepRecord>("step ends", attempt, rank, steps);
  }
  Result<std::vector<MemoryRecord>> Memory(AttemptId attempt, std::uint32_t rank,
                                           StepBounds steps) {
    return ListOf<MemoryRecord>("memory", attempt, rank, steps);
  }
  Result<std::vector<DensityRecord>> Densities(AttemptId attempt, std::uint32_t rank,
                                               StepBounds steps) {
    return ListOf<DensityRecord>("densities", attempt, rank, steps);
  }
  Result<std::vector<ExponentRecord>> Exponents(AttemptId attempt, std::uint32_t rank,
                                                StepBounds steps) {
    return ListOf<ExponentRecord>("exponents", attempt, rank, steps);
  }
  Result<std::vector<StoredCapture>> Captures(AttemptId attempt, std::uint32_t rank,
                                              StepBounds steps) {
    return ListOf<StoredCapture>("captures", attempt, rank, steps);
  }
  Result<std::vector<StatPoint>> ActivationSeries(AttemptId attempt, std::uint32_t rank,
                                                  std::uint32_t activation,
                                                  StepBounds steps) final {
    return Collect<StatPoint>("points of a series", rank, [&](const Visitor<StatPoint>& visitor) {
      return VisitSeries(attempt, rank, activation, steps, visitor);
    });
  }
  Result<std::vector<std::uint64_t>> StatSteps(AttemptId attempt, std::uint32_t rank,
                                               StepBounds steps) final {
    return Collect<std::uint64_t>("steps", rank, [&](const Visitor<std::uint64_t>& visitor) {
      return VisitStatSteps(attempt, rank, steps, visitor);
    });
  }
  Result<std::optional<std::uint64_t>> FirstStatStep(AttemptId attempt, std::uint32_t rank,
                                                     StepBounds steps) final {
    std::optional<std::uint64_t> first;
    Visitor<std::uint64_t> visitor;
    visitor.take = [&](std::uint64_t step) {
      first = step;
      return Status(Code::kAborted, "found");
    };
    Status read = VisitStatSteps(attempt, rank, steps, visitor);
    if (!first && !read.ok()) return read;
    return first;
  }
  // The chunk of a capture's values that begins at this byte. kNotFound: there is none.
  virtual Result<std::string> CaptureChunkAt(AttemptId attempt, std::uint32_t rank,
                                             std::uint64_t step, std::uint32_t activation,
                                             std::uint32_t offset) = 0;

  // --- parts that fail one by one
  // A store made of several engines has a part for each: the ranks of a part can be written and
  // read while others are down. Each part has a committer of its own, which calls the part's
  // Append, Recover and Usage. The catalogue is asked for at the store itself.
  virtual std::size_t parts() const { return 1; }
  virtual std::size_t PartOf(std::uint32_t /*rank*/) const { return 0; }
  virtual Store& part(std::size_t /*index*/) { return *this; }
  // Hellos that a part serves at the same time; the others wait.
  virtual std::size_t hellos_at_once() const { return 16; }

  // --- the store itself
  // Writes a consistent copy into an absent or empty directory (absolute path, outside the store):
  // a complete store with everything that was appended before the call. It appears completely or
  // not at all. Takes as long as copying the store if the directory is on a different file system.
  // kInvalidArgument: the directory; kResourceExhausted: no space.
  virtual Result<CheckpointReport> Checkpoint(const std::string& directory) = 0;
  virtual Result<StoreUsage> Usage() = 0;
  virtual bool fsync() const = 0;  // whether Append syncs
  // The process is about to end: failing writes are given up soon instead of delaying it. Any
  // thread.
  virtual void BeginStop() {}
  // The clock of an engine that several collectors share, in nanoseconds since the Unix epoch,
  // exact to a second. None: the store has none.
  virtual Result<std::optional<std::int64_t>> EngineUnixNanos() {
    return std::optional<std::int64_t>();
  }
  // Tells this store from others, and from itself before a checkpoint was restored. Unknown: it has
  // none.
  virtual StoreIdentity identity() const { return {}; }

 private:
  template <typename T>
  Result<std::vector<T>> ListOf(const char* what, AttemptId attempt, std::uint32_t rank,
                                StepBounds steps) {
    return Collect<T>(what, rank, [&](const Visitor<T>& list) {
      std::uint64_t bytes = 0;
      Visitor<T> counted;
      counted.read = [&](std::size_t more) {
        bytes += more;
        return bytes <= kListBytesMax ? Status::Ok() : ListTooLong(what, rank);
      };
      counted.take = list.take;
      return Visit(attempt, rank, steps, counted);
    });
  }
  template <typename T, typename Read>
  Result<std::vector<T>> Collect(const char* what, std::uint32_t rank, const Read& read) {
    std::vector<T> list;
    Visitor<T> visitor;
    visitor.take = [&](T record) {
      if (list.size() >= kListBytesMax / sizeof(T)) return ListTooLong(what, rank);
      list.push_back(std::move(record));
      return Status::Ok();
    };
    STATCOLLECT_RETURN_IF_ERROR(read(visitor));
    return list;
  }
  static Status ListTooLong(const std::string& what, std::uint32_t rank) {
    return {Code::kResourceExhausted,
            "list " + what + " of rank " + std::to_string(rank) + ": found more than " +
                std::to_string(kListBytesMax >> 20) +
                " MiB of them; expected no more at once; narrow the question with --steps"};
  }
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_STORE_H_
