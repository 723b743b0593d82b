#include "agent/export/exporter_state.h"

#include <algorithm>
#include <string>

#include "common/enum_names.h"

namespace statcollect {

std::string_view Name(ExporterState state) {
  static constexpr std::array<std::string_view, 6> kNames = {"waiting", "connecting", "sending",
                                                             "leaving", "failed",     "ended"};
  return NameIn(kNames, state);
}

Status ExporterStates::Move(ExporterState to) {
  const ExporterTransition wanted{.from = now_, .to = to};
  if (std::ranges::find(kExporterTransitions, wanted) == kExporterTransitions.end())
    return {Code::kInternal,
            "move the exporter from " + std::string(Name(now_)) + " to " + std::string(Name(to)) +
                ": found no such transition in exporter_state.h; report this as a bug"};
  now_ = to;
  return Status::Ok();
}

}  // namespace statcollect
