#include "server/query/ranks/nonfinite.h"

#include <utility>

namespace statcollect::query {

void FindNonfinite(const GroupStep& at, const KeyTable& keys, FindingList& findings) {
  if (at.ranks->size() < 2) return;
  for (std::uint32_t id = 0; id < keys.size(); ++id) {
    if (IsReplicated(keys[id].role)) continue;  // a difference between replicas
    Ranks broken, sound;
    TensorCell last_broken;
    for (std::size_t i = 0; i < at.ranks->size(); ++i) {
      const TensorCell& cell = at.cells[i][id];
      if (!cell.present) continue;
      const bool bad = cell.nan || cell.pos_inf;
      (bad ? broken : sound).push_back((*at.ranks)[i]);
      if (bad) last_broken = cell;
    }
    if (broken.empty() || sound.size() < broken.size()) continue;
    RankFinding finding = findings.About(id, RankReason::kNonfinite, at.step);
    finding.ranks = std::move(broken);
    finding.others = std::move(sound);
    finding.outvoted = finding.others.size() > finding.ranks.size();
    findings.Add(std::move(finding), last_broken);
  }
}

}  // namespace statcollect::query
