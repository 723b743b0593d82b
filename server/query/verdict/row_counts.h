// Which tensors have a number of rows that depends on the data, as of an expert that a router sends
// tokens to.
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

// Of one rank. Steps must ascend. Not thread-safe. Cost: two look-ups for each output and gradient
// of one.
class RowCounts {
 public:
  // `twins`: by twin, then by pair. Names must outlive this.
  void Step(std::span<const TensorPair> pairs, std::span<const std::vector<Observation>> twins);
  // Whether B has other rows, and nothing else, of a tensor that is known to vary.
  bool Differ(const TensorPair& pair) const;
  // Whether as many rows may be other rows in this step: B, or a twin, has other numbers of them in
  // the tensor's list of modules.
  bool MayBeOthers(const TensorPair& pair) const;
  // SpreadName of the tensors of a list of modules of which A, or a twin, has several numbers of
  // rows.
  const std::set<std::string>& varying() const { return varying_; }

 private:
  std::map<std::tuple<std::string_view, Kind, std::string_view>, std::int64_t>
      first_;                                      // A's, by name, kind and path
  std::set<std::string> varying_, of_other_rows_;  // the latter of the step at hand
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_ROW_COUNTS_H_
