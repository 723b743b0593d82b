// What a setting is about, as far as the words of its key tell.
#ifndef STATCOLLECT_SERVER_QUERY_SETTINGS_SETTING_AREA_H_
#define STATCOLLECT_SERVER_QUERY_SETTINGS_SETTING_AREA_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace statcollect::query {

// With the numbers of v1::ConfigCategory, which says what belongs to each.
enum class SettingArea : std::uint8_t {
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

SettingArea AreaOf(std::string_view key);

// Counts and hashes that the agent takes of a whole model: a setting that another difference
// explains.
bool FollowsFromOthers(std::string_view key);

// Whether it is a setting of what is computed, and not of where or by what.
bool MayChangeNumbers(std::string_view key);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_SETTINGS_SETTING_AREA_H_
