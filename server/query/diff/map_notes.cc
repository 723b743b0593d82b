#include "server/query/diff/report_parts.h"

#include <set>
#include <utility>

#include "common/names.h"

namespace statcollect::query {
namespace {

void NoteLeftOut(const std::set<std::string>& names, const std::string& run, DiffReport& report) {
  if (names.empty()) return;
  report.notes.push_back("the map leaves out " + std::to_string(names.size()) + " name" +
                         (names.size() == 1 ? "" : "s") + " of " + run + ", such as " +
                         Printable(*names.begin()));
}

}  // namespace

void AddMapNotes(const NameMap& names, const Aligner& aligner, DiffReport& report,
                 const std::string& run_a, const std::string& run_b) {
  for (std::string& unused : names.Unused(run_a, run_b)) report.notes.push_back(std::move(unused));
  std::set<std::string> left_out_a, left_out_b, fused;
  for (const Aligner::Entry& entry : aligner.all()) {
    const Alignment& alignment = *entry.alignment;
    left_out_a.insert(alignment.left_out_a().begin(), alignment.left_out_a().end());
    left_out_b.insert(alignment.left_out_b().begin(), alignment.left_out_b().end());
    for (const AlignedGroup& group : alignment.groups()) {
      if (group.a.size() > 1 || group.b.size() > 1 || group.relation.any_order)
        fused.insert(alignment.a().activations[group.a.front()].key.name);
    }
  }
  NoteLeftOut(left_out_a, run_a, report);
  NoteLeftOut(left_out_b, run_b, report);
  if (fused.empty()) return;
  report.notes.push_back("the elements of " + std::to_string(fused.size()) + " name" +
                         (fused.size() == 1 ? "" : "s") + " of " + run_a + ", such as " +
                         Printable(*fused.begin()) + ", are in a different order in " + run_b +
                         ": compared by statistics, which do not see rows that are exchanged; a "
                         "wrong order shows in what is computed from them");
}

}  // namespace statcollect::query
