#include "server/daemon/descriptors.h"

#include <sys/resource.h>

#include <algorithm>

namespace statcollect {
namespace {

constexpr std::uint64_t kFew = 1024;
constexpr std::uint64_t kUnknown = 1024;  // what every system grants

// Logs, manifests, tables that are being written, checkpoints.
constexpr std::uint64_t kOtherFiles = 64;

}  // namespace

DescriptorBudget DivideDescriptors(std::uint64_t all) {
  all = std::min<std::uint64_t>(all, 1u << 30);
  const std::uint64_t reserve = std::min(std::clamp<std::uint64_t>(all / 4, 256, 8192), all / 2);
  return {.store_files =
              static_cast<int>(reserve > 2 * kOtherFiles ? reserve - kOtherFiles : reserve / 2),
          .connections_end = static_cast<int>(all - reserve)};
}

DescriptorBudget TakeDescriptors(const std::function<void(const std::string& line)>& warn) {
  rlimit limit{};
  std::uint64_t all = kUnknown;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) all = limit.rlim_cur;
  }
  const DescriptorBudget budget = DivideDescriptors(all);
  if (all < kFew) {
    warn("only " + std::to_string(all) + " file descriptors, of which " +
         std::to_string(budget.connections_end) +
         " for connections; for more ranks raise ulimit -n or LimitNOFILE");
  }
  return budget;
}

}  // namespace statcollect
