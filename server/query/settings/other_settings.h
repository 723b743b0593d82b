// Numeric settings that differ between two runs: their effect is not rounding, however small.
#ifndef STATCOLLECT_SERVER_QUERY_SETTINGS_OTHER_SETTINGS_H_
#define STATCOLLECT_SERVER_QUERY_SETTINGS_OTHER_SETTINGS_H_

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/query/settings/module_keys.h"
#include "server/query/settings/optimizer_keys.h"

namespace statcollect::query {

// Leaves out learning rates and weight decays, which are recorded step by step, and settings that
// change only how something is computed (`fused`, a replaced forward()). Cost: a pass over both
// configurations.
class OtherSettings {
 public:
  OtherSettings(const Config& a, const Config& b);

  bool any_of_modules() const { return !of_modules_.empty(); }
  // Names of the module's settings that differ. `module`: its path; for the model itself its class.
  // Cost: two look-ups by name for a module without any.
  std::vector<std::string> OfModule(const std::string& module) const;

  struct OfOptimizer {
    Group group;
    std::string setting;
    bool in_first_update = true;  // whether it can have an effect in a run's first update
  };
  const std::vector<OfOptimizer>& of_optimizers() const { return of_optimizers_; }

 private:
  struct Both {
    Config a, b;
  };
  std::unordered_map<std::string, Both> of_modules_;  // only differing ones, by LookupNames
  std::vector<OfOptimizer> of_optimizers_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_SETTINGS_OTHER_SETTINGS_H_
