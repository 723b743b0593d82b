#include "agent/export/exporter_state.h"

#include <algorithm>
#include <string>

namespace statcollect {

std::string_view Name(ExporterState state) {
  switch (state) {
    case ExporterState::kWaiting:
      return "waiting";
    case ExporterState::kConnecting:
      return "connecting";
    case ExporterState::kSending:
      return "sending";
    case ExporterState::kLeaving:
      return "leaving";
    case ExporterState::kFailed:
      return "failed";
    case ExporterState::kEnded:
      return "ended";
  }
  return "unknown";
}

Status ExporterStates::Move(ExporterState to) {
  const ExporterTransition wanted{.from = now_, .to = to};
  if (std::ranges::find(kExporterTransitions, wanted) == kExporterTransitions.end())
    return {Code::kInternal, "move the exporter from " + std::string(Name(now_)) + " to " +
                                 std::string(Name(to)) +
                                 ": found no such transition in exporter_state.h; report this as a bug"};
  now_ = to;
  return Status::Ok();
}

}  // namespace statcollect
