#include "server/ingest/project_quotas.h"

#include <algorithm>
#include <utility>

#include "common/byte_size.h"
#include "common/project.h"

namespace statcollect {

ProjectQuotas::ProjectQuotas(Store& store, const Clock& clock, ProjectLimits limits)
    : store_(store), clock_(clock), limits_(std::move(limits)) {
  Tick();
}

void ProjectQuotas::Tick() {
  if (!limits_.any()) return;
  const auto now = clock_.Now();
  {
    MutexLock lock(mutex_);
    if (summed_ && now - *summed_ < kInterval) return;
    summed_ = now;
  }
  const auto census = store_.Census();
  if (!census.ok()) return;
  std::map<std::string, std::uint64_t, std::less<>> bytes;
  for (const AttemptTally& tally : *census)
    bytes[std::string(SplitRun(tally.meta.run).project)] += tally.bytes;
  MutexLock lock(mutex_);
  bytes_ = std::move(bytes);
}

Status ProjectQuotas::Admit(const std::string& project) {
  const std::uint64_t most = limits_.Of(project);
  if (most == 0) return Status::Ok();
  std::uint64_t taken = 0;
  {
    MutexLock lock(mutex_);
    const auto found = bytes_.find(project);
    if (found != bytes_.end()) taken = found->second;
  }
  if (taken < most) return Status::Ok();
  refused_.fetch_add(1);
  return {Code::kResourceExhausted,
          "store records: the runs of project '" + project + "' take " + Mebibytes(taken) +
              "; expected less than " + Mebibytes(most) +
              "; remove runs with statctl rm, or raise --project-disk-max"};
}

std::map<std::string, ProjectQuotas::Use> ProjectQuotas::uses() {
  std::map<std::string, Use> uses;
  if (!limits_.any()) return uses;
  MutexLock lock(mutex_);
  for (const auto& [project, bytes] : bytes_) uses[project].bytes = bytes;
  for (const auto& [project, limit] : limits_.named) uses[project];
  for (auto& [project, use] : uses) use.bytes_max = limits_.Of(project);
  return uses;
}

std::uint64_t ProjectQuotas::full() {
  const auto uses = this->uses();
  return static_cast<std::uint64_t>(
      std::count_if(uses.begin(), uses.end(), [](const auto& project) {
        return project.second.bytes_max > 0 && project.second.bytes >= project.second.bytes_max;
      }));
}

}  // namespace statcollect
