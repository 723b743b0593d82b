// What was found while the ranks of a run were put together: one sentence for each kind of finding.
#ifndef STATCOLLECT_SERVER_QUERY_LOGICAL_FINDINGS_H_
#define STATCOLLECT_SERVER_QUERY_LOGICAL_FINDINGS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "common/records.h"
#include "common/thread_annotations.h"

namespace statcollect::query {

enum class Finding : std::uint8_t { kConflicting, kIncomplete, kReplicasDiffer };

// Thread-safe. The sentences do not depend on the order in which findings are added.
class Findings {
 public:
  // `what` is said of the first tensor of the first step; `order`: its place in the step.
  void Add(Finding finding, const TensorKey& tensor, std::uint64_t step, std::uint64_t order,
           const std::string& what);
  std::vector<std::string> Sentences(const std::string& run) const;

 private:
  struct Found {
    std::set<std::tuple<Kind, std::string, std::string>> tensors;
    std::uint64_t step = 0, order = 0;
    TensorKey first;
    std::string what;
  };

  mutable Mutex mutex_;
  std::map<Finding, Found> found_ STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_LOGICAL_FINDINGS_H_
