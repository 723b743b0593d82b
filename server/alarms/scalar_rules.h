// Rules about a rank's scalars: losses and the loss scale.
#ifndef STATCOLLECT_SERVER_ALARMS_SCALAR_RULES_H_
#define STATCOLLECT_SERVER_ALARMS_SCALAR_RULES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "common/records.h"
#include "common/spike_rule.h"
#include "server/alarms/finding.h"

namespace statcollect::alarms {

// "found_inf", "amp/found_inf". Losses and their scale: common/loss_names.h.
bool IsFoundInf(std::string_view name);

// Not thread-safe. Values that arrive after one of a later step are ignored.
class ScalarRules {
 public:
  explicit ScalarRules(const AlarmSettings& settings) : settings_(settings) {}
  void Add(const ScalarRecord& scalar, std::vector<Finding>* findings);
  std::size_t bytes() const { return states_.size() * (sizeof(State) + 128); }

 private:
  struct State {
    std::optional<std::tuple<std::uint64_t, std::uint32_t>> last;  // step, micro-batch
    SpikeRule spikes;
    std::optional<double> scale;  // the previous value
    std::uint32_t falls = 0;
    double scale_max = 0;
    bool not_finite = false, low_scale = false;
  };

  void AddLoss(const ScalarRecord& scalar, State* state, std::vector<Finding>* findings);
  void AddFiniteLoss(const ScalarRecord& scalar, State* state, std::vector<Finding>* findings);
  void AddScale(const ScalarRecord& scalar, State* state, std::vector<Finding>* findings);

  const AlarmSettings& settings_;
  std::map<std::string, State> states_;
};

}  // namespace statcollect::alarms

#endif  // STATCOLLECT_SERVER_ALARMS_SCALAR_RULES_H_
