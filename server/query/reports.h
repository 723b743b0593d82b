// Requests and answers of the query engine as plain structs. They mirror the messages in
// proto/statcollect/v1/query.proto: same names, same enum values, std::optional where the message
// has optional.
#ifndef STATCOLLECT_SERVER_QUERY_REPORTS_H_
#define STATCOLLECT_SERVER_QUERY_REPORTS_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/records.h"
#include "common/types.h"

namespace statcollect::query {

enum class Verdict : std::uint8_t {
  kUnspecified = 0,
  kIdentical = 1,        // every compared record is bit-identical, and nothing is unmatched
  kWithinTolerance = 2,  // nothing diverged
  kDiverged = 3,
  kIncomparable = 4,  // nothing to compare; DiffReport::message says why
};

// In the order of execution: earlier stages explain later ones.
enum class Stage : std::uint8_t {
  kUnspecified = 0,
  kConfig = 1,
  kWeights = 2,  // as loaded, before the first step
  kBatch = 3,
  kForward = 4,
  kLoss = 5,
  kBackward = 6,
  kGrad = 7,       // weight gradients
  kOptimizer = 8,  // weights and optimizer state after the update
};

enum class Reason : std::uint8_t {
  kUnspecified = 0,
  kMissingInA = 1,
  kMissingInB = 2,
  kOrder = 3,
  kShape = 4,
  kDType = 5,
  kNonfinite = 6,
  kNumeric = 7,
  kBitwise = 8,
};

// Where the difference of a router and its experts begins, by what is certain of it. The order is
// that of importance.
enum class RouterFinding : std::uint8_t {
  kSame = 0,      // the same choices, and nothing behind them beyond rounding
  kRounding = 1,  // other choices, all of them near ties
  kBefore = 2,    // something before the router differs by more than rounding
  kTokens = 3,  // some tokens, although their experts are the same: dropped, or weighted otherwise
  kExpert = 4,  // the tokens of one expert
  kRouter = 5,  // logits differ by more than rounding, or choices with a larger margin
};

// What makes a comparison valid, in the order in which it is said.
enum class Premise : std::uint8_t {
  kSteps = 0,      // in common
  kRanks = 1,      // in common
  kTensors = 2,    // recorded in both of those recorded in one
  kWeights = 3,    // equal in the first step
  kBatches = 4,    // equal in the first step
  kDTypes = 5,     // the same
  kRecording = 6,  // asked for the same, in the same way
  kSettings = 7,   // the same, of those that change numbers
};

enum class DistanceKind : std::uint8_t { kUnspecified = 0, kSketch = 1, kStatistics = 2 };

// "within_tolerance", "forward", "missing_in_a", "sketch"; "unspecified" for values out of range.
std::string_view Name(Verdict verdict);
std::string_view Name(Stage stage);
std::string_view Name(Reason reason);
std::string_view Name(DistanceKind kind);
std::string_view Name(Premise premise);
std::string_view Name(RouterFinding finding);

struct RunSummary {
  std::string run;
  std::uint32_t attempts = 0;
  std::uint32_t world_size = 0;  // of the newest attempt
  std::uint32_t ranks_expected =
      0;                    // of it, that record: all of the world, unless init(ranks=) named some
  std::uint32_t ranks = 0;  // seen in the newest attempt
  std::uint64_t records = 0;  // stored, all kinds, all attempts
  std::uint64_t steps = 0;    // distinct steps with statistics
  std::optional<std::uint64_t> first_step, last_step;
  std::int64_t start_unix_nanos = 0;  // first hello of the newest attempt
  std::int64_t end_unix_nanos = 0;    // last write
  std::string state;                  // "running", "finished", "interrupted"
  std::uint64_t dropped = 0;          // records that agents reported as lost
  // The least of the last steps of the newest attempt's ranks: what is before it changes no more,
  // unless a spill file is sent late.
  std::optional<std::uint64_t> settled_step = {};
};

// Where rounding alone sent tokens to other experts, by step.
struct NearTie {
  std::string router;  // its module, in A
  std::string within;  // a module that has the router and its experts; empty: not known
  double share = 0;    // the largest part of an expert's tokens that may have been others; 0: none
  std::uint64_t choices = 0;  // those compared: experts of each token, whatever their order
};
using NearTies = std::map<std::uint64_t, std::vector<NearTie>>;

struct DiffRequest {
  std::string run_a, run_b;
  std::optional<double> tolerance;   // relative L2, finite and >= 0; default by dtype
  bool exact = false;                // a bitwise difference of any size is a divergence
  std::vector<std::uint32_t> ranks;  // empty: all that both runs have
  std::string steps;                 // as for StepSet::Parse
  std::vector<Kind> kinds;           // empty: all kinds and the losses; otherwise only these
  std::uint32_t top = 0;             // maximum number of rows in `diverged`; 0: 20
  bool all = false;                  // every diverged row (up to kDivergedRowsMax)
  std::string map;                   // rules of a NameMap: names of B for names of A
  bool no_alignment = false;         // do not match different names by order, class and shape
  bool first_only = false;           // end after the first step that diverged
  std::vector<std::string> noise;    // repeats of A; differences between them do not count
  bool no_noise = false;             // do not use a stored noise profile of A either
  bool logical = false;              // as one model each, whatever the layouts (logical/choose.h)
  // Set by the engine for runs that cut a batch into other numbers of parts: how many times as many
  // B has. A loss may be logged for its part.
  std::vector<double> loss_factors;
  NearTies near_ties;        // set by the engine
  bool by_rank = false;      // rank by rank, whatever the layouts
  bool merge_ranks = false;  // compare replicas, whatever the numbers of ranks (merge_ranks.h)
  std::uint32_t heat_map_columns = 0;  // also make a heat map of at most so many columns; 0: none
  std::uint32_t heat_map_rows = 0;     // and rows; 0: kHeatMapRowsDefault
};
inline constexpr std::uint32_t kHeatMapSideMax = 4096, kHeatMapRowsDefault = 1024;
// As columns and rows: the finest resolution, of 16 Mi cells at most.
inline constexpr std::uint32_t kHeatMapWhole = ~std::uint32_t{0};

inline constexpr std::uint32_t kTopDefault = 20;
inline constexpr std::uint64_t kDivergedRowsMax = 1'000'000;

struct Progress {
  std::uint64_t done = 0, total = 0;  // steps x ranks
};

// One side of a comparison.
struct ObservationSide {
  std::optional<double> min, max, mean, std, l1, l2;
  std::optional<std::uint64_t> nan, pos_inf, neg_inf, zero, neg, pos, numel;
  std::optional<std::uint64_t> inf;  // of both signs, if they were counted together
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::optional<std::uint64_t> hash;
  std::string hash_kind;               // empty: statagent's own, of today's definition
  std::optional<double> value;         // stage loss: value of the scalar
  std::vector<std::string> untrusted;  // statistics that are shown but never compared
  std::string place;                   // "[0:4, 0:10] of (8, 10)"; empty: the whole, or not known
};

// One activation (or loss) of one rank and step that differs.
// A part of a tensor that both runs have in whole parts of their ranks.
struct DifferingPart {
  std::string place;  // "[4:8, 0:10] of (8, 10)"
  std::vector<std::uint32_t> ranks_a, ranks_b;
  double distance = 0;  // infinite: there is no finite measure
};

struct Divergence {
  std::uint64_t step = 0;
  std::uint32_t micro_batch = 0;
  std::uint32_t rank = 0;               // of A
  std::optional<std::uint32_t> rank_b;  // of B, if different: ranks were merged
  Stage stage = Stage::kUnspecified;
  Kind kind = Kind::kUnspecified;  // unspecified for losses
  std::string activation;          // stage loss: the scalar's name
  std::string output_path;
  std::uint32_t call = 0;
  Reason reason = Reason::kUnspecified;
  std::optional<double> distance;  // absent for missing_* and shape; infinite for nonfinite
  std::optional<double> distance_low, distance_high;
  DistanceKind distance_kind = DistanceKind::kUnspecified;
  std::optional<double> tolerance;
  std::optional<double> times_noise;
  bool origin = false;
  std::optional<ObservationSide> a, b;  // a is absent for missing_in_a, b for missing_in_b
  std::string class_name;
  std::string mode;          // "train", "eval", "init"
  std::string activation_b;  // its name in B, if different
  std::string previous;  // only for origins: the activation before it that agrees; empty if none
  std::optional<double> previous_distance;
  std::uint32_t segment = 0;  // number of updates before it in the step (step_order.h)
  bool given_late = false;    // a batch behind forward records, which may have computed it
  bool logical = false;       // of a tensor that several ranks may hold; then `rank` means nothing
  // That hold it, if logical. Of a root whose reason is kNumeric only one of them is empty if the
  // ranks of the other run differ from each other in what they should hold alike.
  std::vector<std::uint32_t> ranks_a, ranks_b;
  // Of the first divergence and the root, if the runs cut the tensor differently: which of the
  // smallest parts that both have differ, and how many such parts there are (0: none smaller than
  // the whole).
  std::vector<DifferingPart> parts;
  std::uint32_t parts_total = 0;
};

// Confidence of an answer. Name(): "certain", "likely", "possible".
enum class Confidence : std::uint8_t { kCertain = 0, kLikely = 1, kPossible = 2 };
std::string_view Name(Confidence confidence);

// Why the runs differ at the root, as far as the stored records show (docs/causes.md).
struct Cause {
  std::string rule;  // "learning_rate", "module_setting", ...
  std::string text;  // one sentence, with both values and the step
  Confidence confidence = Confidence::kPossible;
  std::string key;   // what differs, if it has a name: a key of the configuration, a scalar
  std::string a, b;  // its values; empty if there is none
  std::optional<Divergence> at;  // the root, where the cause tells its place better than the values
  std::string why_there;         // because of what; with `at`
};

// The first difference that rounding does not explain.
struct Root {
  Divergence at;
  Confidence confidence = Confidence::kPossible;
  std::vector<std::string> because;      // one sentence each, strongest first
  std::vector<Divergence> alternatives;  // at most two, most likely first
  std::vector<Cause> causes;             // most specific first; empty: no rule fits
  std::optional<double> times_expected;  // the distance divided by what inputs and rounding explain
  std::optional<std::uint64_t> agreeing;  // records before it in causal order, if all are equal
  std::optional<std::uint64_t>
      above_tolerance;  // first step in which a record exceeds its tolerance
};

// Invariant: records == identical + within_tolerance + diverged.
struct Compared {
  std::uint64_t records = 0, identical = 0, within_tolerance = 0, diverged = 0;
};

struct Unmatched {
  std::vector<std::string> only_a,
      only_b;  // "kind name[path] call c", in order of first appearance
};

struct ConfigDifference {
  std::string key;
  std::optional<std::string> a, b;  // absent: not set on that side
};

struct DiffInputs {
  std::vector<ConfigDifference> config;  // by key
  std::string weights =
      "unknown";  // "identical" (bit for bit), "differ", "unknown" (nothing to compare)
  std::string batches = "unknown";
};

struct StepRange {
  std::uint64_t first = 0, last = 0;
};

// Different names in A and B that were matched.
struct AlignedNames {
  std::string a, b;    // several names, joined by ", ", if they are compared together
  std::string method;  // "map" (the user's), "order" (order of execution, class, depth and shape)
  double confidence = 1;  // 0..1; 1 for "map"
  bool operator==(const AlignedNames&) const = default;
};

// The distance of the runs in a step.
struct GrowthPoint {
  std::uint64_t step = 0;
  std::uint64_t diverged = 0;  // number of records
  std::optional<double>
      distance;  // geometric mean of the finite distances of records that are not identical
  std::optional<double> distance_max;  // maximum of the same
};

// How the distance grows from the first step that is not identical.
struct Growth {
  std::vector<GrowthPoint>
      points;  // at most kGrowthPointsMax, thinned evenly on a logarithmic scale
  std::optional<double>
      factor_per_step;  // of `distance` while it is below 0.1; needs at least 3 steps
};
inline constexpr std::size_t kGrowthPointsMax = 40;

// Source of the noise.
struct NoiseSource {
  std::vector<std::string> runs;  // repeats of A
  bool stored = false;            // from a saved profile, not from runs read now
  // The sizes of the runs' noise in units in the last place, of a repeat 1; as many as runs, or
  // none if rounding was not measured from them.
  std::vector<double> scale;
};

// Extent of a divergence.
struct Spread {
  std::uint64_t activations = 0;        // distinct (kind, name, path) that diverged
  std::uint64_t activations_total = 0;  // distinct ones compared
  std::uint64_t steps = 0;              // with a divergence
  std::vector<std::uint32_t> ranks;     // with a divergence; of A
  std::vector<std::uint32_t> ranks_b;   // of B, if ranks were merged
};

// Whether a premise of the comparison holds, with counts. A premise may have several.
struct PremiseCheck {
  Premise premise = Premise::kSteps;
  bool ok = true;
  std::string detail;
};

// Where an overhead budget left steps out of the full statistics.
struct Bracket {
  std::optional<std::uint64_t> last_agreeing;  // that both runs recorded in full; absent: none
  std::uint64_t first_seen = 0;
};

// Tensors of a row of a heat map, named after the first.
struct HeatMapRow {
  Stage stage = Stage::kUnspecified;
  Kind kind = Kind::kUnspecified;
  std::string activation, output_path;
  std::string activation_b;  // its name in B, if different
  Mode mode = Mode::kTrain;
  std::uint64_t tensors = 1;
};

// The distance of the runs by step and tensor.
struct HeatMap {
  std::vector<HeatMapRow> rows;    // in the order of execution
  std::vector<StepRange> columns;  // ascending
  std::string cells;               // row by row, a byte each: compare/heat_cell.h
  std::optional<std::uint32_t> origin_row,
      origin_column;                     // of the root, otherwise of the first divergence
  std::uint64_t tensors = 0, steps = 0;  // before merging
  std::vector<RunSummary> runs = {};     // A and B, as they were before they were compared
};

// As the message of this name.
struct RouterDiff {
  std::string router, router_b;
  std::uint64_t step = 0;
  RouterFinding finding = RouterFinding::kSame;
  std::uint64_t tokens = 0;
  std::uint32_t chosen = 0;
  std::uint64_t agreeing = 0, flips = 0, near_ties = 0;
  std::optional<double> margin, margin_limit, distance, distance_limit;
  DType dtype_a = DType::kUnspecified, dtype_b = DType::kUnspecified;  // of the logits
  std::string layer;
  std::optional<double> explained;
  std::uint64_t apart = 0;
  std::optional<std::uint32_t> expert;
  std::uint64_t expert_tokens = 0;
  std::vector<std::uint64_t> load_a, load_b;
};

struct DiffReport {
  std::string run_a, run_b;
  std::string source_a, source_b;  // as of SourceOf()
  Verdict verdict = Verdict::kUnspecified;
  std::vector<PremiseCheck> comparable;  // whether the comparison is valid; by premise
  std::optional<Divergence> first;       // present if and only if diverged
  std::vector<Divergence> diverged;
  Compared compared;
  Unmatched unmatched;
  DiffInputs inputs;
  std::vector<std::uint32_t> ranks;    // compared ranks of A
  std::vector<std::uint32_t> ranks_b;  // of B; empty: the same
  std::optional<StepRange> steps;      // compared
  std::string message;                 // if incomparable: why, and what to do
  std::optional<Divergence> first_bitwise;
  std::vector<Divergence> origins;  // the root, or without one `first`; then independent ones
  Spread spread;
  std::vector<std::string> notes;  // one sentence each
  std::vector<AlignedNames> aligned;
  Growth growth;
  std::optional<NoiseSource> noise;
  bool twins_unmoved = false;  // all equal A bit for bit, so that they measured nothing
  std::optional<Root> root;
  std::uint64_t without_hash =
      0;  // part of compared.identical: without content hashes that prove it
  std::optional<Bracket> bracket;      // absent: the step of the first difference is certain
  bool explained_by_rounding = false;  // rounding explains every difference, so nothing diverges
  std::optional<HeatMap> heat_map;     // if requested and something was compared
  std::vector<RouterDiff> routers;     // in A's order
};

struct SaveNoiseRequest {
  std::string run;
  std::vector<std::string> repeats;
};

// Maximum number of rows in an answer of GetSeries, ListScalars, ListEvents, ListMemory,
// ListDensity, ListCaptures and ListExponents. More are kResourceExhausted, with advice on what to
// narrow.
inline constexpr std::uint64_t kRowsMax = 1'000'000;

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_REPORTS_H_
