// The result of a rule.
#ifndef STATCOLLECT_SERVER_ALARMS_FINDING_H_
#define STATCOLLECT_SERVER_ALARMS_FINDING_H_

#include <cstdint>
#include <map>
#include <string>

#include "server/control/alarm_settings.h"

namespace statcollect::alarms {

// Kinds of event that are not alarms.
inline constexpr char kOverflow[] = "overflow";  // non-finite gradients that no update used
inline constexpr char kUnusedParameter[] =
    "unused_parameter";  // its gradient has been zero from the start
inline constexpr char kCleared[] = "alarm_cleared";

struct Finding {
  enum class Sort { kAlarm, kNote, kCleared };
  Sort sort = Sort::kAlarm;
  AlarmRule rule = AlarmRule::kNanFirstSeen;
  std::string kind;  // of the event
  std::uint64_t step = 0;
  std::string subject;  // an alarm of a rule about a subject is active until it is cleared
  std::string text;     // one sentence
  std::map<std::string, std::string> fields;
};

}  // namespace statcollect::alarms

#endif  // STATCOLLECT_SERVER_ALARMS_FINDING_H_
