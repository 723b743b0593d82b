// Sets of ranks, "0,8-15": those of a launch that record.
#ifndef STATCOLLECT_COMMON_RANK_SET_H_
#define STATCOLLECT_COMMON_RANK_SET_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"

namespace statcollect {

// Closed ranges below a world size.
class RankSet {
 public:
  // Empty text: every rank. Otherwise ranks N and closed ranges N-M, separated by ','.
  // kInvalidArgument names the invalid part and the grammar, or the rank that the world does not
  // have.
  static Result<RankSet> Parse(std::string_view text, std::uint32_t world_size);

  bool Contains(std::uint32_t rank) const;
  std::uint32_t count() const;
  std::uint32_t CountBelow(std::uint32_t rank) const;
  // Equal for equal sets; empty for all ranks.
  std::string Text() const;
  // `other` is of the same world; an object made without Parse is an empty set of any.
  void Add(const RankSet& other);

 private:
  using Range = std::pair<std::uint32_t, std::uint32_t>;  // first, last
  void Merge();

  std::uint32_t world_size_ = 0;
  std::vector<Range> ranges_;  // sorted, disjoint
};

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_RANK_SET_H_
