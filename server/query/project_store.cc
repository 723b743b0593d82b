#include "server/query/project_store.h"

#include <utility>

#include "common/project.h"

namespace statcollect::query {

Result<std::vector<std::string>> ProjectStore::ListRuns() {
  auto all = store_.ListRuns();
  if (!all.ok()) return all;
  std::vector<std::string> runs;
  for (const std::string& qualified : *all) {
    const ProjectRun of = SplitRun(qualified);
    if (of.project == project_) runs.emplace_back(of.run);
  }
  return runs;
}

Result<std::vector<AttemptMeta>> ProjectStore::Attempts(const std::string& run) {
  auto attempts = store_.Attempts(QualifiedRun(project_, run));
  if (!attempts.ok()) return attempts;
  for (AttemptMeta& attempt : *attempts) attempt.run = run;
  return attempts;
}

Result<std::vector<AttemptTally>> ProjectStore::Census() {
  auto all = store_.Census();
  if (!all.ok()) return all;
  std::vector<AttemptTally> own;
  for (AttemptTally& tally : *all) {
    const ProjectRun of = SplitRun(tally.meta.run);
    if (of.project != project_) continue;
    tally.meta.run = std::string(of.run);
    own.push_back(std::move(tally));
  }
  return own;
}

Status ProjectStore::KeepRun(const std::string& run, bool keep) {
  return store_.KeepRun(QualifiedRun(project_, run), keep);
}

Status ProjectStore::PutDocument(const std::string& run, const std::string& name,
                                 const std::optional<std::string>& content) {
  return store_.PutDocument(QualifiedRun(project_, run), name, content);
}

Result<std::optional<std::string>> ProjectStore::Document(const std::string& run,
                                                          const std::string& name) {
  return store_.Document(QualifiedRun(project_, run), name);
}

}  // namespace statcollect::query
