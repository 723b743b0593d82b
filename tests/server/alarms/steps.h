// Batches of one rank, a step each, with the statistics that a test wants.
#ifndef STATCOLLECT_TESTS_SERVER_ALARMS_STEPS_H_
#define STATCOLLECT_TESTS_SERVER_ALARMS_STEPS_H_

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "common/records.h"
#include "server/alarms/finding.h"

namespace statcollect::testing {

inline constexpr std::uint64_t kNumel = 100;

inline TensorDef Def(std::uint32_t id, const std::string& name, Kind kind,
                     const std::string& class_name = "") {
  return {.id = id,
          .key = {.name = name, .kind = kind, .mode = Mode::kTrain},
          .class_name = class_name};
}

inline TensorStats Rms(double rms, std::uint64_t hash = 0) {
  TensorStats s{.numel = kNumel,
                .has_finite = true,
                .l2 = rms * std::sqrt(static_cast<double>(kNumel)),
                .hash = hash};
  (rms > 0 ? s.pos : s.zero) = kNumel;
  return s;
}
inline TensorStats WithNan(std::uint64_t nan) {
  TensorStats s = Rms(1);
  s.nan = nan;
  s.pos = kNumel - nan;
  return s;
}
inline TensorStats WithInfinities(std::uint64_t pos, std::uint64_t neg) {
  TensorStats s = Rms(1);
  s.pos_inf = pos;
  s.neg_inf = neg;
  s.pos = kNumel - pos - neg;
  return s;
}
inline TensorStats WithZeros(std::uint64_t zero) {
  TensorStats s = Rms(1);
  s.zero = zero;
  s.pos = kNumel - zero;
  return s;
}

// One step of activations 0, 1, ..., in this order of execution.
inline StatColumns StepOf(std::uint64_t step, const std::vector<TensorStats>& stats) {
  StatColumns columns;
  for (std::size_t i = 0; i < stats.size(); ++i) {
    columns.activation.push_back(static_cast<std::uint32_t>(i));
    columns.layout.push_back(0);
    columns.step.push_back(step);
    columns.order.push_back(static_cast<std::uint32_t>(i));
    columns.stats.push_back(stats[i]);
  }
  return columns;
}

// Values that a healthy series might have: within a few percent of `level`.
inline double Healthy(double level, std::uint64_t step) {
  return level * (1 + 0.05 * std::sin(static_cast<double>(step) * 1.7));
}

inline std::vector<alarms::Finding> Only(const std::vector<alarms::Finding>& findings,
                                         const std::string& kind) {
  std::vector<alarms::Finding> found;
  for (const alarms::Finding& finding : findings) {
    if (finding.kind == kind) found.push_back(finding);
  }
  return found;
}

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_SERVER_ALARMS_STEPS_H_
