// Plain records, exchanged by agent, wire conversion, store and queries. They have no invariants
// except those written here; code that receives records from outside validates them first
// (proto/convert.h).
#ifndef STATCOLLECT_COMMON_RECORDS_H_
#define STATCOLLECT_COMMON_RECORDS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/types.h"

namespace statcollect {

inline constexpr std::uint32_t kSketchMax = 64;     // k is 0, 16, 32 or 64
inline constexpr std::uint32_t kSamplesMax = 1024;  // leading samples per record
inline constexpr std::uint32_t kDimsMax = 64;
inline constexpr std::uint32_t kDensitySamplesMax =
    4096;  // samples per batch with a separate count of valid elements
inline constexpr std::size_t kSettingsMax =
    8192;  // in a rank's configuration, including later additions
inline constexpr std::size_t kCaptureChunkBytesMax = std::size_t{1} << 20;  // of a CaptureChunk
inline constexpr std::size_t kTokenRowsMax = 4096;                          // of a TokenRecord
inline constexpr std::size_t kRowSketch = 8;  // sums of a row's sketch
// Exponents that an ExponentRecord distinguishes, which cover every float32. Values beyond are
// counted in the first or the last.
inline constexpr std::int32_t kExponentLowest = -150, kExponentHighest = 128;
inline constexpr std::size_t kExponentsMax = kExponentHighest - kExponentLowest + 1;

// Random 128-bit id of one agent process's stream.
using SessionId = std::array<std::uint8_t, 16>;

// Where the elements of a rank's tensor lie in the logical tensor that several ranks hold together.
struct Placement {
  std::vector<std::int64_t>
      global_shape;  // elements per dimension of the logical tensor; empty: 0-d
  // Boxes in it: offset, then size, in each dimension. Several boxes are equal but in one
  // dimension, along which they follow each other in the rank's tensor. Ranks with the same boxes
  // hold replicas.
  std::vector<std::int64_t> boxes;
  // Or ranges of the flattened logical tensor: start and stop of each, in the order of the rank's
  // tensor.
  std::vector<std::int64_t> ranges;
  bool partial = false;  // a sum that is still to be reduced over the ranks with the same place
  // The batch is cut over `pieces` data-parallel ranks or micro-batches in an order that is not
  // known. The global shape is then that of this piece, the piece-th of them. Pieces add up but for
  // hash and sketch.
  std::uint32_t piece = 0, pieces = 1;
  // 1 + the dimension along which this rank has a set of entries, in an order that means nothing
  // (the rows of an expert's tokens); 0: none. The logical tensor and its boxes then have the size
  // 1 there, so that all entries have the same place, and pieces add up to a larger set, hash and
  // sketch as well. Ranks with the same piece and boxes hold replicas.
  std::uint32_t unordered = 0;
  bool operator==(const Placement&) const = default;
};

// Layout of a tensor's records, interned per session (ids from 0, dense): shape, dtype, place in a
// logical tensor and, for records of other tools, the statistics that they lack.
struct Layout {
  std::uint32_t id = 0;
  DType dtype = DType::kUnspecified;
  std::vector<std::int64_t> shape;
  std::uint32_t absent =
      0;  // BitOf(Statistic) of statistics that were not recorded; their numbers are 0
  std::uint32_t untrusted =
      0;  // of statistics that are shown but never compared; disjoint from `absent`
  HashKind hash_kind = HashKind::kContent3;
  // Absent: the whole tensor if the launch has one rank, otherwise not known.
  std::optional<Placement> placement;
  bool operator==(const Layout&) const = default;
  bool Has(Statistic statistic) const { return (absent & BitOf(statistic)) == 0; }
  bool Trusts(Statistic statistic) const { return ((absent | untrusted) & BitOf(statistic)) == 0; }
};

// Identity of an observed tensor. Two observations in a step never share one.
struct TensorKey {
  std::string name;  // qualified module path or the user's name
  Kind kind = Kind::kUnspecified;
  // position in a nested output: "0", "past_key_values.3.1"; empty for a single tensor
  std::string output_path;
  std::uint32_t micro_batch = 0;
  std::uint32_t call = 0;  // n-th call of the module in the micro-batch, from 0
  Mode mode = Mode::kTrain;
  auto operator<=>(const TensorKey&) const = default;
};

// Definition of an activation, interned per session (ids from 0, dense, in the order of first
// execution).
struct TensorDef {
  std::uint32_t id = 0;
  TensorKey key;
  std::string parent;      // qualified path of the parent module; empty at the root
  std::string class_name;  // "LayerNorm"; empty if unknown
  std::int32_t depth = 0;  // root 1, children +1; -1 for inspect
  bool operator==(const TensorDef&) const = default;
};

// Statistics of one tensor (defined in agent/stats/stats.h). min..l2 are valid only if has_finite;
// otherwise they are 0.
struct TensorStats {
  std::uint64_t numel =
      0;  // product of the shape; counts and moments of complex tensors cover 2*numel real parts
  std::uint64_t nan = 0, pos_inf = 0, neg_inf = 0, zero = 0, neg = 0, pos = 0;
  bool has_finite = false;
  double min = 0, max = 0, mean = 0, std = 0, l1 = 0, l2 = 0;
  std::uint64_t hash = 0;
  bool operator==(const TensorStats&) const = default;
};

// Statistics records as one array per field. Every array has size() entries, except `sketch`
// (size() * sketch_width, row-major) and `samples` (concatenated; sample_count gives the number per
// record).
struct StatColumns {
  std::vector<std::uint32_t> activation;  // TensorDef::id
  std::vector<std::uint32_t> layout;      // Layout::id
  std::vector<std::uint64_t> step;
  std::vector<std::uint32_t> order;  // position in the step's execution order, from 0
  std::vector<TensorStats> stats;
  std::uint32_t sketch_width = 0;  // k: 0, 16, 32 or 64
  std::vector<double> sketch;
  std::vector<std::uint32_t> sample_count;
  std::vector<double> samples;

  std::size_t size() const { return activation.size(); }
  bool empty() const { return activation.empty(); }
  std::span<const double> SketchOf(std::size_t i) const {
    return std::span<const double>(sketch).subspan(i * sketch_width, sketch_width);
  }
};

struct ScalarRecord {
  std::string name;
  std::uint64_t step = 0;
  std::uint32_t micro_batch = 0;
  double value = 0;  // may be NaN or infinite
  bool operator==(const ScalarRecord&) const = default;
};

struct EventRecord {
  std::string kind;  // "records_dropped", "graph_transition", "nan_first_seen", ...
  std::uint64_t step = 0;
  std::int64_t unix_nanos = 0;
  std::string text;
  std::map<std::string, std::string> fields;
  bool from_collector = false;  // raised by the collector (docs/alarms.md), not by the agent
  bool operator==(const EventRecord&) const = default;
};

// End of a step, with the agent's wall-clock time.
struct StepRecord {
  std::uint64_t step = 0;
  std::int64_t unix_nanos = 0;
  std::uint32_t micro_batches = 0;
  bool operator==(const StepRecord&) const = default;
};

// Memory of one rank at one point in time.
struct MemoryRecord {
  std::uint64_t step = 0;
  std::uint32_t micro_batch = 0;
  MemoryPhase phase = MemoryPhase::kUnspecified;
  std::string device;         // "cuda:0", "cpu"
  std::string module;         // qualified path, if measured for one module's pass; otherwise empty
  std::uint32_t present = 0;  // BitOf(MemoryQuantity) of known quantities; the others are 0
  std::array<std::int64_t, kMemoryQuantityCount> bytes{};
  bool operator==(const MemoryRecord&) const = default;
  bool Has(MemoryQuantity quantity) const { return (present & BitOf(quantity)) != 0; }
  std::int64_t Of(MemoryQuantity quantity) const {
    return bytes[static_cast<std::size_t>(quantity)];
  }
};

// Fraction of one input of a step that is not padding.
struct DensityRecord {
  std::uint64_t step = 0;
  std::uint32_t micro_batch = 0;
  std::string input;
  DensityType type = DensityType::kUnspecified;
  std::int64_t pad_index = 0;
  std::uint64_t valid = 0, total = 0;  // elements; valid <= total
  std::vector<std::uint64_t>
      valid_per_sample;  // at most kDensitySamplesMax; empty if not available
  bool operator==(const DensityRecord&) const = default;
};

// A setting that became known after the session's hello. The newest value of a name wins.
struct SettingRecord {
  std::string name, value;
  bool operator==(const SettingRecord&) const = default;
};

// A part of the raw values of one tensor in one step: its first `elements` elements in row-major
// order, as in memory, little-endian. The tensor is complete once its chunks cover elements *
// DTypeBytes bytes.
struct CaptureChunk {
  std::uint64_t step = 0;
  std::uint32_t activation = 0;  // TensorDef::id
  std::uint32_t layout = 0;      // Layout::id, of the whole tensor
  std::uint64_t elements = 0;  // of all chunks; fewer than the layout's if the tensor was too large
  std::uint32_t offset = 0;    // position of `data` in the values, in bytes
  std::string data;            // at most kCaptureChunkBytesMax; empty only if there are no elements
  bool operator==(const CaptureChunk&) const = default;
};

// Histogram of the binary exponents floor(log2(|x|)) of one tensor in one step, over its finite
// nonzero components. Complex elements have two components.
struct ExponentRecord {
  std::uint64_t step = 0;
  std::uint32_t activation = 0;  // TensorDef::id
  std::uint32_t layout = 0;      // Layout::id
  std::int32_t lowest = 0;       // exponent of counts[0]; 0 if there are no counts
  std::vector<std::uint64_t>
      counts;  // components per exponent, ascending; the first and the last are not 0
  bool operator==(const ExponentRecord&) const = default;
};

// Statistics of one row of a matrix (defined in agent/stats/rows.h).
struct RowStats {
  float l2 = 0;  // NaN: some components are not finite; infinite: beyond float32
  std::uint64_t hash = 0;
  std::array<float, kRowSketch> sketch{};
  bool operator==(const RowStats&) const = default;
};

struct TokenRow {
  std::uint64_t key = 0;       // of the token and everything before it (agent/stats/rows.h)
  std::uint32_t position = 0;  // of the token in its sequence
  RowStats stats;
  bool operator==(const TokenRow&) const = default;
};

// What a tap (a module's output, or "logprob") had for some tokens: one row of a matrix each.
struct TokenRecord {
  std::uint64_t step = 0;
  std::string tap;
  std::uint32_t call = 0;  // n-th call of the tap in the step
  DType dtype = DType::kUnspecified;
  std::uint32_t columns = 0;  // components of each row
  // The rows are the part from here on of longer ones, whose other parts other ranks have.
  std::uint32_t first_column = 0;
  std::vector<TokenRow> rows;  // at most kTokenRowsMax
  bool operator==(const TokenRecord&) const = default;
};

// Which store a collector writes to. Another restored checkpoint of the same store has another
// epoch.
struct StoreIdentity {
  std::array<std::uint8_t, 16> id{};  // random, made with the data directory; zeros: unknown
  std::uint64_t epoch = 0;  // random, made with the data directory and after every restore
  bool known() const { return *this != StoreIdentity{}; }
  bool operator==(const StoreIdentity&) const = default;
};

// Calls f with the records of each kind, in the order in which a RecordBatch numbers them. A new
// member of a batch must be named here before anything compiles.
template <typename Batch, typename F>
void ForEachKind(Batch& batch, const F& f) {
  auto& [first_seq, skipped, activations, layouts, stats, scalars, events, memory, densities,
         settings, steps, captures, exponents, tokens] = batch;
  f(stats);
  f(scalars);
  f(events);
  f(memory);
  f(densities);
  f(settings);
  f(steps);
  f(captures);
  f(exponents);
  f(tokens);
}

// One numbered batch of a session. Records are numbered first_seq .. last_seq() in the order of
// ForEachKind. Definitions are not numbered.
struct RecordBatch {
  std::uint64_t first_seq = 0;
  // Numbers directly before first_seq that stay unused here, because their records no longer exist.
  std::uint64_t skipped = 0;
  std::vector<TensorDef> activations;
  std::vector<Layout> layouts;
  StatColumns stats;
  std::vector<ScalarRecord> scalars;
  std::vector<EventRecord> events;
  std::vector<MemoryRecord> memory;
  std::vector<DensityRecord> densities;
  std::vector<SettingRecord> settings;
  std::vector<StepRecord> steps;
  std::vector<CaptureChunk> captures;
  std::vector<ExponentRecord> exponents;
  std::vector<TokenRecord> tokens;

  std::size_t records() const {
    std::size_t count = 0;
    ForEachKind(*this, [&](const auto& records) { count += records.size(); });
    return count;
  }
  std::uint64_t last_seq() const { return first_seq + records() - 1; }  // records() > 0
};

// Counters of an agent. Invariant: produced == acked + dropped() + pending.
struct AgentCounters {
  std::uint64_t produced = 0, acked = 0, pending = 0;
  std::map<std::string, std::uint64_t> dropped_by_cause;  // buffer_full, closed, rejected, ...
  bool unused =
      false;  // the program failed before it recorded anything: a run without records is not kept
  std::uint64_t dropped() const {
    std::uint64_t sum = 0;
    for (const auto& [cause, n] : dropped_by_cause) sum += n;
    return sum;
  }
};

// Identity of a stream's sender and its launch.
struct SessionInfo {
  std::string run;
  SessionId session{};
  std::string launch;  // equal in all ranks of a launch; empty if the launcher is unknown
  IfExists if_exists = IfExists::kError;
  std::uint32_t rank = 0, local_rank = 0, world_size = 1;
  std::string host;
  std::int64_t pid = 0;
  std::int64_t start_unix_nanos = 0;
  std::string agent_version;
  std::map<std::string, std::string> config;  // flattened; the user's own and what the agent found
  std::string
      ranks;  // that record in this launch, as RankSet::Text writes them; empty: all of the world
  // Of the attempt that the session was last welcomed to, as the collector's clock said; 0: none
  // yet. Not stored.
  std::int64_t attempt_start_unix_nanos = 0;
};

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_RECORDS_H_
