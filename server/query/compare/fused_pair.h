// Two sides whose elements do not lie at the same places: a fused module against its parts, another
// order of dimensions or rows, a padded vocabulary. What can be compared of them is made
// comparable.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_FUSED_PAIR_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_FUSED_PAIR_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "server/query/compare/alignment.h"
#include "server/query/compare/combine.h"
#include "server/query/compare/name_map.h"
#include "server/query/run_view.h"

namespace statcollect::query {

struct FusedPair {
  Combined a, b;
};

// Hash and sketch remain where each element has the same index on both sides: the dimensions in
// another order are of size 1 (a batch of one sequence), or rows of zeros at the end are all that
// one side has more. Otherwise the sides have statistics of all their elements, whatever their
// order. A padded side whose additional rows are not zero has no statistics at all, because theirs
// cannot be told from the others'. Both sides get the shape of the one that is a single tensor, if
// they have as many elements. Precondition: no side is empty.
FusedPair Fuse(const NameRelation& relation, std::span<const Observation> a,
               std::span<const Observation> b);

// The parts of a side of a group that a step has. `Records` finds one by its id.
template <typename Records>
std::vector<Observation> PartsOf(std::span<const std::uint32_t> ids, const Records& records) {
  std::vector<Observation> parts;
  for (const std::uint32_t id : ids) {
    if (const auto found = records.Find(id)) parts.push_back(*found);
  }
  return parts;
}

// Absent unless these are all parts of the group: only together they are a pair.
std::optional<FusedPair> FuseGroup(const AlignedGroup& group, std::span<const Observation> a,
                                   std::span<const Observation> b);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_FUSED_PAIR_H_
