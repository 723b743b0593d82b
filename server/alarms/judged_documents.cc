#include "server/alarms/judged_documents.h"

#include <algorithm>
#include <sstream>

#include <fmt/format.h>

namespace statcollect::alarms {

JudgedDocuments::Judged JudgedDocuments::Read(const std::string& run) {
  Judged judged;
  const auto document = store_.Document(run, kDocument);
  if (!document.ok() || !*document) return judged;
  written_.insert(run);
  std::istringstream lines(**document);
  AttemptRank place;
  std::uint64_t step = 0;
  while (lines >> place.first >> place.second >> step) judged[place] = step;
  return judged;
}

void JudgedDocuments::Write(bool all,
                            const std::function<Judged(const std::string& run)>& judged_of) {
  for (auto run = outdated_.begin(); run != outdated_.end();) {
    if (!all && written_.contains(*run)) {
      ++run;
      continue;
    }
    WriteOne(*run, judged_of(*run));
    run = outdated_.erase(run);
  }
}

void JudgedDocuments::WriteOne(const std::string& run, const Judged& judged) {
  const auto attempts = store_.Attempts(run);
  if (!attempts.ok() || attempts->empty()) return;
  const Judged before = Read(run);
  Judged after = before;
  std::set<AttemptId> ids;
  for (const AttemptMeta& attempt : *attempts) ids.insert(attempt.id);
  std::erase_if(after, [&](const auto& entry) { return !ids.contains(entry.first.first); });
  for (const auto& [place, step] : judged) after[place] = std::max(after[place], step);
  if (after == before && written_.contains(run)) return;
  std::string text;
  for (const auto& [place, step] : after)
    text += fmt::format("{} {} {}\n", place.first, place.second, step);
  if (store_.PutDocument(run, kDocument, text).ok()) written_.insert(run);
}

}  // namespace statcollect::alarms
