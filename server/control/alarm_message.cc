#include "server/control/alarm_message.h"

#include <nlohmann/json.hpp>

#include "common/names.h"
#include "common/project.h"

namespace statcollect {

std::string AlarmMessage(const FeedEvent& alarm) {
  nlohmann::json fields = nlohmann::json::object();
  for (const auto& [key, value] : alarm.event.fields) fields[Printable(key)] = Printable(value);
  const ProjectRun of = SplitRun(alarm.run);
  const nlohmann::json message = {{"run", Printable(of.run)},
                                  {"project", Printable(of.project)},
                                  {"attempt", alarm.attempt},
                                  {"rank", alarm.rank},
                                  {"step", alarm.event.step},
                                  {"kind", Printable(alarm.event.kind)},
                                  {"text", Printable(alarm.event.text, 4000)},
                                  {"unix_nanos", alarm.event.unix_nanos},
                                  {"origin", "collector"},
                                  {"fields", fields}};
  return message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace statcollect
