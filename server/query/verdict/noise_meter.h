// How far B and the twins are from A at each record of a step: what MeasuredRule judges.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_NOISE_METER_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_NOISE_METER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <vector>

#include "server/query/pairs/tensor_pair.h"
#include "server/query/reports.h"
#include "server/query/verdict/row_counts.h"

namespace statcollect::query {

// How far a record of another run is from A's. Norms are absolute L2 norms.
struct Apart {
  static constexpr std::size_t kSums = 16;
  using Sums = std::array<double, kSums>;

  bool known = false;  // there is a record
  bool alike = false;  // of the same dtype and shape, with a finite difference
  bool same = false;   // equal bits
  Sums value{};        // of the difference: each sum's square is a sixteenth of its own, on average
  Sums change{};       // of a trained weight, that of its update; otherwise the same
  double whole = 0;    // of `change`
  double by_value = 0;  // of `value`
};

// One step: all pairs in the order of a report, and for each twin what it recorded in place of A's
// side.
struct MeasuredStep {
  std::span<const TensorPair> pairs;
  std::vector<std::vector<Observation>> twins;             // by twin, then by pair
  std::vector<std::vector<std::optional<double>>> losses;  // the same of losses
};

// What is known of a pair before it is judged.
struct MeasuredRecord {
  Stage stage = Stage::kUnspecified;
  std::uint32_t group = 0;          // records of a group are computed at once, or in no known order
  double unit = 0;                  // unit roundoff; 0: integers
  double size = 0;                  // A's norm
  double update = 0;                // norm of A's update of a trained weight; 0: unknown
  std::size_t sums = Apart::kSums;  // how many independent ones its differences have
  Apart b;
  std::vector<double> noise;  // of `change`, by scale; infinite: not measured
  std::vector<double> ratios,
      carried;         // of the change, and of the value that the next step begins with, by scale
  bool lost = false;   // noise alone
  bool noisy = false;  // a twin differs
  bool reshaped = false;          // a twin has it in another shape, too
  bool regrouped = false;         // B has, or seems to have, other rows, which depend on the data
  bool own_inputs_agree = false;  // an update from equal gradient, weight and state
};

// A tensor in all its calls and micro-batches: name, kind, path, mode.
using TensorIdentity = std::tuple<std::string_view, Kind, std::string_view, Mode>;
TensorIdentity IdentityOf(const TensorPair& pair);
// The identity of what a step leaves to the next one, however it was computed.
TensorIdentity LeftIdentity(const TensorPair& pair);
// Whether the next step begins with it.
bool IsLeft(const TensorPair& pair, Stage stage);

// Twins of the same noise.
struct NoiseScale {
  double ulps = 1;
  std::size_t first = 0, count = 0;
};
// Of one rank. Steps must ascend; remembers weights. Not thread-safe. Cost and memory: as
// MeasuredRule.
class NoiseMeter {
 public:
  // `ulps`: as of MeasuredRule.
  explicit NoiseMeter(std::vector<double> ulps);

  std::vector<MeasuredRecord> Measure(const MeasuredStep& step);
  const std::vector<NoiseScale>& scales() const { return scales_; }
  const std::vector<double>& ulps() const { return ulps_; }
  const RowCounts& rows() const { return rows_; }
  bool noise_arrived() const { return noise_arrived_; }
  const std::unordered_set<std::string_view>& noise_driven() const { return noise_driven_; }

 private:
  void MeasureTensor(const MeasuredStep& step, std::size_t i, MeasuredRecord& to);
  void MeasureLoss(const MeasuredStep& step, std::size_t i, MeasuredRecord& to) const;
  void SetNoise(std::span<const Apart> twins, MeasuredRecord& to) const;
  Apart ApartIn(const TensorPair& pair, const Observation& other, std::size_t run);

  const std::vector<double> ulps_;
  std::vector<NoiseScale> scales_;
  RowCounts rows_;
  // By weight, then by run: B, then the twins.
  std::map<TensorIdentity, std::vector<Apart::Sums>> weights_;
  std::map<TensorIdentity, Apart::Sums> own_;  // A's
  bool noise_arrived_ = false;
  std::unordered_set<std::string_view> noise_driven_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_NOISE_METER_H_
