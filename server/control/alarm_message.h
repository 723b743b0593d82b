// The webhook's message about an alarm: an object with the fields of an event as `statctl show RUN
// --events` prints it.
#ifndef STATCOLLECT_SERVER_CONTROL_ALARM_MESSAGE_H_
#define STATCOLLECT_SERVER_CONTROL_ALARM_MESSAGE_H_

#include <string>

#include "server/control/event_feed.h"

namespace statcollect {

std::string AlarmMessage(const FeedEvent& alarm);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_CONTROL_ALARM_MESSAGE_H_
