// Tensors whose number of rows depends on the data, such as those of an expert to which a router
// sends tokens.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_ROW_COUNTS_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_ROW_COUNTS_H_

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "server/query/pairs/tensor_pair.h"

namespace statcollect::query {

// One rank. Steps must ascend. Not thread-safe. Cost: two look-ups for each output and each
// gradient of an output.
class RowCounts {
 public:
  // `twins`: by twin, then by pair. Names must outlive this.
  void Step(std::span<const TensorPair> pairs, std::span<const std::vector<Observation>> twins);
  // Whether B differs only in having other rows, in a tensor that is known to vary.
  bool Differ(const TensorPair& pair) const;
  // Whether rows may be other ones in this step although their number is the same: in the tensor's
  // list of modules, B or a twin has other numbers of rows.
  bool MayBeOthers(const TensorPair& pair) const;
  // SpreadName of the tensors in lists of modules of which A, or a twin, had several numbers of
  // rows.
  const std::set<std::string>& varying() const { return varying_; }

 private:
  std::map<std::tuple<std::string_view, Kind, std::string_view>, std::int64_t>
      first_;                                      // A's, by name, kind and path
  std::set<std::string> varying_, of_other_rows_;  // the latter of the step at hand
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_ROW_COUNTS_H_
