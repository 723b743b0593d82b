// Columns of a map that stand for several steps each.
#ifndef STATCOLLECT_SERVER_QUERY_DIFF_MERGED_COLUMNS_H_
#define STATCOLLECT_SERVER_QUERY_DIFF_MERGED_COLUMNS_H_

#include <algorithm>
#include <cstddef>
#include <vector>

namespace statcollect::query {

// How many parts of `each` hold all.
inline std::size_t PartsOf(std::size_t all, std::size_t each) { return (all + each - 1) / each; }

// Two neighbours become one, the greater of both.
template <typename Level>
void MergeNeighbours(std::vector<Level>& levels) {
  for (std::size_t i = 0; i < levels.size(); ++i)
    levels[i / 2] = i % 2 == 0 ? levels[i] : std::max(levels[i / 2], levels[i]);
  levels.resize(PartsOf(levels.size(), 2));
}

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_DIFF_MERGED_COLUMNS_H_
