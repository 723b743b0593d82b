// Tensors cut over ranks as a training cuts them, with the statistics that an agent computes of
// each part.
#ifndef STATCOLLECT_TESTS_SERVER_QUERY_LOGICAL_CUT_TENSOR_H_
#define STATCOLLECT_TESTS_SERVER_QUERY_LOGICAL_CUT_TENSOR_H_

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "agent/stats/stats.h"
#include "common/placement.h"
#include "common/shape.h"
#include "tests/server/query/run_writer.h"

namespace statcollect::testing {

using Sizes = std::vector<std::int64_t>;

struct Whole {
  Sizes shape;
  std::vector<float> values;
};

// What one rank holds; without a placement: its tensor is `whole`, and nothing is known about the
// others.
struct Held {
  std::uint32_t rank = 0;
  std::optional<Placement> placement;
};

struct Computed {
  Layout layout;
  TensorStats stats;
  std::vector<double> sketch;
};

inline Placement Box(const Sizes& shape, const Sizes& offset, const Sizes& size) {
  Placement placement;
  placement.global_shape = shape;
  placement.boxes = offset;
  placement.boxes.insert(placement.boxes.end(), size.begin(), size.end());
  return placement;
}
inline Placement AllOf(const Sizes& shape) { return Box(shape, Sizes(shape.size()), shape); }

inline Placement Piece(const Sizes& shape, std::uint32_t piece, std::uint32_t pieces) {
  Placement placement = AllOf(shape);
  placement.piece = piece;
  placement.pieces = pieces;
  return placement;
}

// Equal parts along a dimension for ranks first .. first + count - 1; the last ones may be smaller
// or empty.
inline std::vector<Held> Shards(const Sizes& shape, std::size_t dim, std::uint32_t count,
                                std::uint32_t first = 0) {
  const std::int64_t each = (shape[dim] + count - 1) / count;
  std::vector<Held> held;
  for (std::uint32_t i = 0; i < count; ++i) {
    Sizes offset(shape.size()), size = shape;
    offset[dim] = std::min(each * i, shape[dim]);
    size[dim] = std::min(each, shape[dim] - offset[dim]);
    held.push_back({first + i, Box(shape, offset, size)});
  }
  return held;
}
inline std::vector<Held> Copies(const Sizes& shape, std::uint32_t count) {
  std::vector<Held> held;
  for (std::uint32_t rank = 0; rank < count; ++rank) held.push_back({rank, AllOf(shape)});
  return held;
}

// Calls visit(number) for each element of a box, in row-major order of the box.
template <typename Visit>
void ForEachInBox(const Placement& place, std::size_t dim, std::int64_t number,
                  const Visit& visit) {
  const std::size_t dims = place.global_shape.size();
  if (dim == dims) return visit(number);
  for (std::int64_t i = 0; i < place.boxes[dims + dim]; ++i)
    ForEachInBox(place, dim + 1, number * place.global_shape[dim] + place.boxes[dim] + i, visit);
}

// Of a part of `whole` as the rank's agent computes it. Boxes: one.
inline Computed Compute(const Whole& whole, const std::optional<Placement>& place) {
  Computed computed;
  std::vector<float> values = whole.values;
  Sizes shape = whole.shape;
  if (place) {
    values.clear();
    const std::size_t dims = place->global_shape.size();
    if (place->ranges.empty()) {
      ForEachInBox(*place, 0, 0, [&](std::int64_t number) {
        values.push_back(whole.values[static_cast<std::size_t>(number)]);
      });
      shape.assign(place->boxes.begin() + static_cast<std::ptrdiff_t>(dims), place->boxes.end());
    }
    for (std::size_t i = 0; i < place->ranges.size(); i += 2)
      values.insert(values.end(), whole.values.begin() + place->ranges[i],
                    whole.values.begin() + place->ranges[i + 1]);
    if (!place->ranges.empty()) shape = {static_cast<std::int64_t>(values.size())};
  }
  values.reserve(1);  // an empty tensor has an address, too
  computed.layout.dtype = DType::kF32;
  computed.layout.shape = shape;
  computed.layout.placement = place;
  computed.sketch.resize(16);
  std::uint32_t written = 0;
  const PlacementView view = place ? View(*place) : PlacementView();
  computed.stats = stats::ComputeCpu({values.data(), DType::kF32, shape, {}}, computed.sketch, {},
                                     &written, nullptr, place ? &view : nullptr);
  return computed;
}

inline void Record(RunWriter& run, std::uint64_t step, const TensorKey& key, const Whole& whole,
                   const std::vector<Held>& held) {
  for (const auto& [rank, place] : held) {
    const Computed computed = Compute(whole, place);
    run.Record(rank, step, key, computed.layout, computed.stats, computed.sketch);
  }
}

using Random = std::mt19937_64;

inline Whole RandomTensor(Random& random, const Sizes& shape) {
  Whole whole{shape, {}};
  std::normal_distribution<float> normal(0.2F, 1.0F);
  for (std::uint64_t i = 0; i < NumelOf(shape); ++i) whole.values.push_back(normal(random));
  return whole;
}

inline std::int64_t Pick(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

// 0, places between, `size`; equal neighbours make an empty part.
inline Sizes CutPlaces(Random& random, std::int64_t size, std::int64_t parts) {
  Sizes places = {0, size};
  for (std::int64_t i = 1; i < parts; ++i) places.push_back(Pick(random, 0, size));
  std::sort(places.begin(), places.end());
  return places;
}

// A grid of boxes, or ranges of the flattened tensor; some of the parts twice.
inline std::vector<Held> RandomCut(Random& random, const Sizes& shape) {
  std::vector<Placement> places;
  if (Pick(random, 0, 1) == 0) {
    const Sizes at =
        CutPlaces(random, static_cast<std::int64_t>(NumelOf(shape)), Pick(random, 1, 5));
    for (std::size_t i = 0; i + 1 < at.size(); ++i) {
      places.emplace_back().global_shape = shape;
      places.back().ranges = {at[i], at[i + 1]};
    }
  } else {
    places = {AllOf(shape)};
    for (std::size_t d = 0; d < shape.size(); ++d) {
      const Sizes at = CutPlaces(random, shape[d], Pick(random, 1, 3));
      std::vector<Placement> finer;
      for (const Placement& place : places) {
        for (std::size_t i = 0; i + 1 < at.size(); ++i) {
          finer.push_back(place);
          finer.back().boxes[d] = at[i];
          finer.back().boxes[shape.size() + d] = at[i + 1] - at[i];
        }
      }
      places = std::move(finer);
    }
  }
  std::vector<Held> held;
  for (const Placement& place : places)
    held.push_back({static_cast<std::uint32_t>(held.size()), place});
  for (const Placement& place : places) {
    if (Pick(random, 0, 3) == 0) held.push_back({static_cast<std::uint32_t>(held.size()), place});
  }
  return held;
}

// These rows of a matrix in any order, columns from `first` on, as a rank has them.
inline Computed SomeRows(const Whole& whole, std::span<const std::int64_t> rows, std::int64_t first,
                         std::int64_t columns, std::uint32_t piece, std::uint32_t pieces) {
  const std::int64_t width = whole.shape[1];
  std::vector<float> values;
  for (const std::int64_t row : rows) {
    const auto begin = whole.values.begin() + row * width + first;
    values.insert(values.end(), begin, begin + columns);
  }
  values.reserve(1);
  Computed computed;
  computed.layout = {.dtype = DType::kF32,
                     .shape = {static_cast<std::int64_t>(rows.size()), columns},
                     .hash_kind = HashKind::kRows3};
  computed.layout.placement = Placement{.global_shape = {1, width},
                                        .boxes = {0, first, 1, columns},
                                        .piece = piece,
                                        .pieces = pieces,
                                        .unordered = 1};
  computed.sketch.resize(16);
  std::uint32_t written = 0;
  const PlacementView view = View(*computed.layout.placement);
  computed.stats = stats::ComputeCpu({values.data(), DType::kF32, computed.layout.shape, {}},
                                     computed.sketch, {}, &written, nullptr, &view);
  return computed;
}

inline Sizes Numbered(std::int64_t count) {
  Sizes numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_SERVER_QUERY_LOGICAL_CUT_TENSOR_H_
