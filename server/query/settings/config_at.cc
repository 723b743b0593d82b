#include "server/query/settings/config_at.h"

#include <algorithm>
#include <bit>

namespace statcollect::query {
namespace {

constexpr std::uint64_t kCheckedEvery = 1024;  // steps; before that, after 1, 2, 4, 8, ... of them

}  // namespace

std::uint64_t ChangedNotBefore(std::uint64_t found, std::uint64_t first_step) {
  if (found <= first_step) return first_step;
  const std::uint64_t ended = found - first_step;
  if (ended == 1) return first_step;
  const std::uint64_t power = std::bit_floor(ended - 1);
  const std::uint64_t regular = (ended - 1) / kCheckedEvery * kCheckedEvery;
  return first_step + std::max(power, regular);
}

void TakeBackLaterChanges(std::uint64_t step, std::uint64_t first_step,
                          const std::vector<EventRecord>& events,
                          std::map<std::string, std::string>& config, bool found) {
  for (auto event = events.rbegin(); event != events.rend(); ++event) {
    if (event->kind != "setting_changed") continue;
    const auto key = event->fields.find("key"), from = event->fields.find("from");
    if (key == event->fields.end() || from == event->fields.end()) continue;
    if (step >= (found ? event->step : ChangedNotBefore(event->step, first_step))) continue;
    if (from->second == "not set") {
      config.erase(key->second);
    } else {
      config[key->second] = from->second;
    }
  }
}

}  // namespace statcollect::query
