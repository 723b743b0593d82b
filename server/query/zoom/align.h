// Which operator of one run's call is which of the other's.
#ifndef STATCOLLECT_SERVER_QUERY_ZOOM_ALIGN_H_
#define STATCOLLECT_SERVER_QUERY_ZOOM_ALIGN_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "server/query/zoom/document.h"

namespace statcollect::query {

// Operators in the order of a call, and a digest of each one's results; 0: unknown.
struct ZoomSequence {
  std::span<const ZoomOperator> operators;
  std::vector<std::uint64_t> digests;
};

// Pairs of positions, ascending on both sides. Operators of a pair have the same name; those with
// equal results, the same shapes, line and function are preferred. Cost: the product of what is
// left of both sides without their common beginning and end; beyond kZoomCellsMax nothing of that
// is paired.
std::vector<std::pair<std::size_t, std::size_t>> AlignOperators(const ZoomSequence& a,
                                                                const ZoomSequence& b);

inline constexpr std::size_t kZoomCellsMax = 25'000'000;

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ZOOM_ALIGN_H_
