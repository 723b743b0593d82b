// Valid placements for tests, from a seed.
#ifndef STATCOLLECT_TESTS_SUPPORT_RANDOM_PLACEMENT_H_
#define STATCOLLECT_TESTS_SUPPORT_RANDOM_PLACEMENT_H_

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "common/records.h"
#include "common/shape.h"

namespace statcollect::testing {

inline std::int64_t PickFrom(std::mt19937_64& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

// Spans [start, stop) of 0..length without overlap, in any order; at least one.
inline std::vector<std::int64_t> RandomSpans(std::mt19937_64& random, std::int64_t length) {
  std::vector<std::int64_t> cuts(static_cast<std::size_t>(2 * PickFrom(random, 1, 4)));
  for (std::int64_t& cut : cuts) cut = PickFrom(random, 0, length);
  std::sort(cuts.begin(), cuts.end());
  std::vector<std::int64_t> spans;
  for (std::size_t i = 0; i < cuts.size(); i += 2) {
    const auto at = random() % 2 == 0 ? spans.begin() : spans.end();
    spans.insert(at, {cuts[i], cuts[i + 1]});
  }
  return spans;
}

// A rank's shard: its layout has shape and placement. Whole tensors, boxes, zigzags, ranges,
// partial sums, pieces, rows in any order; sizes of 0 and of 2^40 are among them.
inline Layout RandomShard(std::mt19937_64& random, std::uint32_t id = 0) {
  Placement place;
  for (std::int64_t dims = PickFrom(random, 0, 4); dims > 0; --dims)
    place.global_shape.push_back(random() % 16 == 0 ? std::int64_t{1} << 10
                                                    : PickFrom(random, 0, 12));
  if (random() % 8 == 0)
    place.global_shape.insert(place.global_shape.begin(), std::int64_t{1} << 20);
  place.partial = random() % 4 == 0;
  if (random() % 4 == 0) {
    place.pieces = static_cast<std::uint32_t>(PickFrom(random, 2, 64));
    place.piece = static_cast<std::uint32_t>(random() % place.pieces);
  }
  Layout layout{.id = id, .dtype = DType::kF32, .shape = place.global_shape};
  const std::size_t dims = place.global_shape.size();
  const auto form = random() % 3;
  if (form == 1 && dims > 0) {
    std::vector<std::int64_t> offset, size;
    for (const std::int64_t whole : place.global_shape) {
      offset.push_back(PickFrom(random, 0, whole));
      size.push_back(PickFrom(random, 0, whole - offset.back()));
    }
    const std::size_t joined = random() % dims;
    const std::vector<std::int64_t> spans = RandomSpans(random, place.global_shape[joined]);
    std::int64_t together = 0;
    for (std::size_t i = 0; i < spans.size(); i += 2) {
      offset[joined] = spans[i];
      size[joined] = spans[i + 1] - spans[i];
      together += size[joined];
      place.boxes.insert(place.boxes.end(), offset.begin(), offset.end());
      place.boxes.insert(place.boxes.end(), size.begin(), size.end());
    }
    layout.shape = size;
    layout.shape[joined] = together;
  } else if (form == 2) {
    place.ranges = RandomSpans(random, static_cast<std::int64_t>(NumelOf(place.global_shape)));
    std::int64_t elements = 0;
    for (std::size_t i = 0; i < place.ranges.size(); i += 2)
      elements += place.ranges[i + 1] - place.ranges[i];
    layout.shape = {elements};
  }
  if (!place.boxes.empty() && random() % 4 == 0) {
    const std::size_t d = random() % dims;
    place.unordered = static_cast<std::uint32_t>(d + 1);
    place.global_shape[d] = 1;
    place.boxes.resize(2 * dims);  // one
    for (std::size_t i = 0; i < dims; ++i) layout.shape[i] = place.boxes[dims + i];
    place.boxes[d] = 0;
    place.boxes[dims + d] = 1;
    layout.shape[d] = PickFrom(random, 0, 12);
  }
  layout.placement = std::move(place);
  return layout;
}

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_SUPPORT_RANDOM_PLACEMENT_H_
