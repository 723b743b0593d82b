#include "server/query/diff/report_parts.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace statcollect::query {

void AddBracket(const DiffPlan& plan, DiffReport& report) {
  if (!plan.full || !report.first) return;
  const Divergence& first =
      report.root && report.root->at.step < report.first->step ? report.root->at : *report.first;
  if (first.stage == Stage::kBatch || first.stage == Stage::kWeights)
    return;  // recorded whatever the budget
  const auto seen = std::lower_bound(plan.full->begin(), plan.full->end(), first.step);
  const bool in_first_step = first.step == plan.steps.begin()->first;
  const bool follows = seen != plan.full->begin() && *std::prev(seen) + 1 == first.step;
  if (in_first_step || follows) return;
  report.bracket = Bracket{.last_agreeing = {}, .first_seen = first.step};
  const std::string at = std::to_string(first.step);
  std::string text = "first seen at step " + at + "; ";
  if (seen == plan.full->begin()) {
    text += "no earlier step was recorded in full in both runs";
  } else {
    report.bracket->last_agreeing = *std::prev(seen);
    const std::string agreeing = std::to_string(*report.bracket->last_agreeing);
    text += "last agreeing step " + agreeing + "; run both again with steps=" + agreeing + "-" +
            at + " to see where it began";
  }
  if (report.root) {
    report.root->because.push_back(text);
    // A guess from the values of a step that only carries the difference on.
    if (!report.root->causes.empty() &&
        report.root->causes.front().confidence == Confidence::kPossible)
      report.root->causes.clear();
  }
  report.notes.push_back(std::move(text));
}

}  // namespace statcollect::query
