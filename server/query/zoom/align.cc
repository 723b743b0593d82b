#include "server/query/zoom/align.h"

#include <algorithm>
#include <cstdint>

namespace statcollect::query {
namespace {

bool HasSameTensors(const ZoomOperator& a, const ZoomOperator& b) {
  return std::equal(a.arguments.begin(), a.arguments.end(), b.arguments.begin(), b.arguments.end(),
                    [](const ZoomArgument& one, const ZoomArgument& other) {
                      return one.refs.size() == other.refs.size() &&
                             (one.refs.empty() || one.value == other.value);
                    });
}

bool IsSame(const ZoomOperator& a, const ZoomOperator& b) {
  return a.name == b.name && a.results == b.results && HasSameTensors(a, b);
}

// 0: they may not be paired.
std::uint32_t Likeness(const ZoomSequence& in_a, std::size_t i, const ZoomSequence& in_b,
                       std::size_t j) {
  const ZoomOperator &a = in_a.operators[i], &b = in_b.operators[j];
  if (a.name != b.name) return 0;
  const bool equal = in_a.digests[i] != 0 && in_a.digests[i] == in_b.digests[j];
  return 8u + (equal ? 4u : 0u) + (a.results == b.results ? 2u : 0u) +
         (HasSameTensors(a, b) ? 1u : 0u) + (a.function == b.function ? 1u : 0u) +
         (a.place == b.place ? 2u : 0u);
}

}  // namespace

std::vector<std::pair<std::size_t, std::size_t>> AlignOperators(const ZoomSequence& in_a,
                                                                const ZoomSequence& in_b) {
  const std::span<const ZoomOperator> a = in_a.operators, b = in_b.operators;
  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  std::size_t begin = 0, end_a = a.size(), end_b = b.size();
  while (begin < end_a && begin < end_b && IsSame(a[begin], b[begin])) {
    pairs.emplace_back(begin, begin);
    ++begin;
  }
  std::vector<std::pair<std::size_t, std::size_t>> tail;
  while (end_a > begin && end_b > begin && IsSame(a[end_a - 1], b[end_b - 1]))
    tail.emplace_back(--end_a, --end_b);
  const std::size_t rows = end_a - begin, columns = end_b - begin;
  if (rows > 0 && columns > 0 && rows <= kZoomCellsMax / columns) {
    // best[i][j]: the likeness that the first i and j can reach; the last row's path is read
    // backwards.
    std::vector<std::uint32_t> best((rows + 1) * (columns + 1), 0);
    const auto at = [&](std::size_t i, std::size_t j) -> std::uint32_t& {
      return best[i * (columns + 1) + j];
    };
    for (std::size_t i = 1; i <= rows; ++i) {
      for (std::size_t j = 1; j <= columns; ++j) {
        const std::uint32_t like = Likeness(in_a, begin + i - 1, in_b, begin + j - 1);
        at(i, j) = std::max({at(i - 1, j), at(i, j - 1), like > 0 ? at(i - 1, j - 1) + like : 0u});
      }
    }
    std::vector<std::pair<std::size_t, std::size_t>> middle;
    for (std::size_t i = rows, j = columns; i > 0 && j > 0;) {
      if (at(i, j) == at(i - 1, j)) {
        --i;
      } else if (at(i, j) == at(i, j - 1)) {
        --j;
      } else {
        middle.emplace_back(begin + --i, begin + --j);
      }
    }
    pairs.insert(pairs.end(), middle.rbegin(), middle.rend());
  }
  pairs.insert(pairs.end(), tail.rbegin(), tail.rend());
  return pairs;
}

}  // namespace statcollect::query
