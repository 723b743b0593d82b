#include "server/query/event_kinds.h"

#include "common/edit_distance.h"
#include "common/names.h"

namespace statcollect::query {

const std::vector<std::string>& KnownEventKinds() {
  static const std::vector<std::string> kKinds = {
      "alarm_cleared",     "capture_missed",    "dead_relu",        "definitions_repeated",
      "graph_transition",  "loss_not_finite",   "loss_scale_min",   "loss_spike",
      "nan_first_seen",    "norm_explosion",    "not_recorded",     "overflow",
      "overhead",          "rank_disagreement", "ring_written",     "recording_changed",
      "records_dropped",   "setting_changed",   "unused_parameter", "update_norm",
      "vanishing_gradient"};
  return kKinds;
}

bool IsAlarm(const EventRecord& event) {
  const auto severity = event.fields.find("severity");
  return event.from_collector && severity != event.fields.end() && severity->second == "alarm";
}

Status CheckEventKinds(const std::string& run, const std::vector<std::string>& wanted,
                       const std::set<std::string>& in_run) {
  std::set<std::string> all(in_run);
  all.insert(KnownEventKinds().begin(), KnownEventKinds().end());
  for (const std::string& kind : wanted) {
    if (all.contains(kind)) continue;
    const std::string nearest = NearestName(kind, {all.begin(), all.end()});
    std::string known;
    for (const std::string& one : all) known += (known.empty() ? "" : ", ") + Printable(one, 60);
    return {Code::kInvalidArgument,
            "events of run '" + run + "': no kind '" + Printable(kind, 60) + "'" +
                (nearest.empty() ? "" : " (did you mean '" + Printable(nearest) + "'?)") +
                "; expected one of " + known};
  }
  return Status::Ok();
}

}  // namespace statcollect::query
