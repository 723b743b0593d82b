#include "server/query/logical/common_order.h"

#include <algorithm>
#include <compare>
#include <numeric>
#include <tuple>
#include <utility>

namespace statcollect::query {

std::vector<std::uint64_t> CommonOrder(std::span<const Ordered> records, std::size_t tensors) {
  std::vector<Ordered> sorted(records.begin(), records.end());
  std::sort(sorted.begin(), sorted.end(), [](const Ordered& x, const Ordered& y) {
    return std::tuple(x.rank, x.order, x.tensor) < std::tuple(y.rank, y.order, y.tensor);
  });
  // On how many ranks each tensor is.
  constexpr std::uint32_t kNone = ~std::uint32_t{0};
  std::vector<std::uint32_t> ranks_of(tensors, 0), last_rank(tensors, kNone);
  std::uint32_t ranks = 0, rank = kNone;
  for (const Ordered& record : sorted) {
    if (record.rank != rank) ++ranks;
    rank = record.rank;
    if (last_rank[record.tensor] != rank) ++ranks_of[record.tensor];
    last_rank[record.tensor] = rank;
  }
  // Those of all ranks are numbered as the first one records them; others follow the last of them,
  // rank by rank.
  struct Place {
    std::uint32_t behind = kNone, rank = 0, offset = 0;
    auto operator<=>(const Place&) const = default;
  };
  std::vector<std::uint32_t> number(tensors, 0);
  std::vector<Place> place(tensors);
  std::uint32_t numbered = 0;
  Place next;
  rank = kNone;
  for (const Ordered& record : sorted) {
    if (record.rank != rank) next = {0, record.rank, 0};
    rank = record.rank;
    const bool on_all = ranks_of[record.tensor] == ranks;
    if (on_all && number[record.tensor] == 0) number[record.tensor] = ++numbered;
    if (on_all && number[record.tensor] > next.behind) next = {number[record.tensor], rank, 0};
    if (!on_all) ++next.offset;
    place[record.tensor] =
        std::min(place[record.tensor], on_all ? Place{number[record.tensor], 0, 0} : next);
  }
  std::vector<std::uint32_t> order(tensors);
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](std::uint32_t x, std::uint32_t y) {
    return std::pair(place[x], x) < std::pair(place[y], y);
  });
  std::vector<std::uint64_t> places(tensors);
  for (std::size_t i = 0; i < order.size(); ++i) places[order[i]] = i;
  return places;
}

}  // namespace statcollect::query
