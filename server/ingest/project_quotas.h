// How much disk the runs of a project may take. A project that takes more sends nothing until runs
// were removed or the limit was raised; meanwhile its records wait with the agents.
#ifndef STATCOLLECT_SERVER_INGEST_PROJECT_QUOTAS_H_
#define STATCOLLECT_SERVER_INGEST_PROJECT_QUOTAS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "common/clock.h"
#include "common/status.h"
#include "common/thread_annotations.h"
#include "server/control/project_limits.h"
#include "server/store/store.h"

namespace statcollect {

// Thread-safe. Without limits it does nothing. `store` and `clock` must outlive it.
class ProjectQuotas {
 public:
  // Between two sums. What arrives meanwhile may exceed a limit.
  static constexpr std::chrono::seconds kInterval{5};

  ProjectQuotas(Store& store, const Clock& clock, ProjectLimits limits);

  // Sums, if it is time. Reads the store's catalogue. After a failure the sums before it count.
  void Tick();
  // kResourceExhausted, and counted: the project takes as much as it may, or more.
  Status Admit(const std::string& project);

  struct Use {
    std::uint64_t bytes = 0, bytes_max = 0;  // as of the last sum; 0: no limit
  };
  std::map<std::string, Use>
  uses();  // of the projects that have runs or a limit of their own; empty without limits
  std::uint64_t full();  // projects at their limit or over it
  std::uint64_t refused() const { return refused_.load(); }

 private:
  Store& store_;
  const Clock& clock_;
  const ProjectLimits limits_;
  std::atomic<std::uint64_t> refused_{0};
  Mutex mutex_;
  std::optional<std::chrono::steady_clock::time_point> summed_ STATCOLLECT_GUARDED_BY(mutex_);
  std::map<std::string, std::uint64_t, std::less<>> bytes_ STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_INGEST_PROJECT_QUOTAS_H_
