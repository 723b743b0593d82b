// Configuration differences between two runs, as a checklist: by category, most likely culprits
// first.
#ifndef STATCOLLECT_SERVER_QUERY_SETTINGS_CONFIG_REPORT_H_
#define STATCOLLECT_SERVER_QUERY_SETTINGS_CONFIG_REPORT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/query/run_view.h"

namespace statcollect::query {

// As ConfigCategory in proto/statcollect/v1/query.proto, which describes each one; in the order in
// which they usually explain a difference.
enum class ConfigCategory : std::uint8_t {
  kUnspecified = 0,
  kModel = 1,
  kData = 2,
  kOptimizer = 3,
  kPrecision = 4,
  kDeterminism = 5,
  kParallel = 6,
  kVersions = 7,
  kEnvironment = 8,
  kOther = 9,
};
std::string_view Name(ConfigCategory category);  // "determinism"

struct ConfigRequest {
  std::string run_a, run_b;  // b empty: only a
  bool all = false;
};

struct ConfigItem {
  ConfigCategory category = ConfigCategory::kOther;
  std::string key;
  std::optional<std::string> a, b;
  bool same = false;
};

struct ConfigReport {
  std::string run_a, run_b;
  bool same = true;
  std::vector<ConfigItem> items;
  std::uint64_t compared = 0, differ = 0;
  std::vector<std::string> notes;
};

// From words of the key ("model.ln_eps": model), never from the value.
ConfigCategory CategoryOf(std::string_view key);

// The stored settings of the newest attempt's lowest rank, and these facts: "world_size", "host",
// "agent.version".
std::map<std::string, std::string> Settings(const RunView& view);

// `b` may be null: only `a`. What cannot be compared is left out, with a note (recorded_config.h).
Result<ConfigReport> ReportConfig(const RunView& a, const RunView* b, bool all);

// One sentence, at most 20, for each setting that differs between ranks of the newest attempt: "lr
// is 0.1 on ranks 0-6 and 0.2 on rank 7". Leaves out settings that naturally differ between ranks.
std::vector<std::string> DifferencesBetweenRanks(const RunView& view);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_SETTINGS_CONFIG_REPORT_H_
