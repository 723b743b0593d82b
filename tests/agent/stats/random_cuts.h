// Random tensors, cut into shards at random.
#ifndef STATCOLLECT_TESTS_AGENT_STATS_RANDOM_CUTS_H_
#define STATCOLLECT_TESTS_AGENT_STATS_RANDOM_CUTS_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "agent/stats/stats.h"
#include "agent/stats/tensor_walk.h"
#include "common/names.h"
#include "tests/agent/stats/test_tensor.h"

namespace statcollect::stats {

using Random = std::mt19937_64;
using Sizes = std::vector<std::int64_t>;

inline std::uint64_t Setting(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

inline std::int64_t Pick(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

// A shard of a tensor of this shape.
struct Shard {
  TestTensor tensor;
  Sizes boxes, ranges;

  Placement Of(const Sizes& global_shape) const { return {global_shape, boxes, ranges}; }
};

struct Cut {
  const char* name = "";
  std::vector<Shard> shards;
};

// The elements of the logical tensor with these numbers, as a contiguous tensor.
inline TestTensor Elements(const TestTensor& whole, const std::vector<std::int64_t>& numbers,
                           Sizes shape) {
  const std::size_t bytes = DTypeBytes(whole.dtype);
  TestTensor part{whole.dtype, std::move(shape), {}, 0, {}};
  part.storage.resize(numbers.size() * bytes / 8 + 2);
  auto* to = reinterpret_cast<unsigned char*>(part.storage.data());
  const auto* from = static_cast<const unsigned char*>(whole.View().data);
  for (const std::int64_t number : numbers) {
    std::memcpy(to, from + static_cast<std::size_t>(number) * bytes, bytes);
    to += bytes;
  }
  return part;
}

// Numbers of the elements whose index in each dimension is among `indices[dimension]`, in row-major
// order.
inline std::vector<std::int64_t> NumbersOf(const Sizes& shape, const std::vector<Sizes>& indices) {
  std::vector<std::int64_t> numbers = {0};
  for (std::size_t d = 0; d < shape.size(); ++d) {
    std::vector<std::int64_t> next;
    for (const std::int64_t number : numbers) {
      for (const std::int64_t index : indices[d]) next.push_back(number * shape[d] + index);
    }
    numbers = std::move(next);
  }
  return numbers;
}

inline Sizes Between(std::int64_t begin, std::int64_t end) {
  Sizes numbers(static_cast<std::size_t>(end - begin));
  std::iota(numbers.begin(), numbers.end(), begin);
  return numbers;
}

// 0, places in between, `size`; with equal neighbours now and then: an empty shard.
inline Sizes CutPlaces(Random& random, std::int64_t size, std::int64_t pieces) {
  Sizes places = {0, size};
  for (std::int64_t i = 1; i < pieces; ++i) places.push_back(Pick(random, 0, size));
  std::sort(places.begin(), places.end());
  return places;
}

inline Cut IntoBoxes(Random& random, const TestTensor& whole) {
  Cut cut{"boxes", {{}}};
  const std::size_t dims = whole.shape.size();
  std::vector<std::vector<Sizes>> boxes = {{}};  // begin, end in each dimension so far
  for (std::size_t d = 0; d < dims; ++d) {
    const Sizes places = CutPlaces(random, whole.shape[d], Pick(random, 1, 3));
    std::vector<std::vector<Sizes>> next;
    for (const auto& box : boxes) {
      for (std::size_t i = 0; i + 1 < places.size(); ++i) {
        next.push_back(box);
        next.back().push_back({places[i], places[i + 1]});
      }
    }
    boxes = std::move(next);
  }
  cut.shards.clear();
  for (const auto& box : boxes) {
    Shard shard;
    Sizes size;
    std::vector<Sizes> indices;
    for (const Sizes& side : box) {
      shard.boxes.push_back(side[0]);
      size.push_back(side[1] - side[0]);
      indices.push_back(Between(side[0], side[1]));
    }
    shard.boxes.insert(shard.boxes.end(), size.begin(), size.end());
    shard.tensor = Elements(whole, NumbersOf(whole.shape, indices), size);
    cut.shards.push_back(std::move(shard));
  }
  return cut;
}

// Each shard has one piece from the front of a dimension and its counterpart from the back.
inline Cut IntoZigzag(Random& random, const TestTensor& whole) {
  Cut cut{"zigzag", {}};
  const auto dim =
      static_cast<std::size_t>(Pick(random, 0, static_cast<std::int64_t>(whole.shape.size()) - 1));
  const std::int64_t ranks = Pick(random, 1, 4);
  const Sizes places = CutPlaces(random, whole.shape[dim], 2 * ranks);
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    Shard shard;
    std::vector<Sizes> indices;
    for (const std::int64_t size : whole.shape) indices.push_back(Between(0, size));
    indices[dim].clear();
    for (const std::int64_t piece : {rank, 2 * ranks - 1 - rank}) {
      const std::int64_t begin = places[static_cast<std::size_t>(piece)],
                         end = places[static_cast<std::size_t>(piece) + 1];
      for (const std::int64_t index : Between(begin, end)) indices[dim].push_back(index);
      Sizes offset(whole.shape.size(), 0), size = whole.shape;
      offset[dim] = begin;
      size[dim] = end - begin;
      shard.boxes.insert(shard.boxes.end(), offset.begin(), offset.end());
      shard.boxes.insert(shard.boxes.end(), size.begin(), size.end());
    }
    Sizes shape = whole.shape;
    shape[dim] = static_cast<std::int64_t>(indices[dim].size());
    shard.tensor = Elements(whole, NumbersOf(whole.shape, indices), shape);
    cut.shards.push_back(std::move(shard));
  }
  return cut;
}

// Ranges of the flattened tensor, dealt out in any order.
inline Cut IntoRanges(Random& random, const TestTensor& whole) {
  Cut cut{"ranges", {}};
  const auto elements = static_cast<std::int64_t>(TensorWalk(whole.View()).size());
  const std::int64_t ranks = Pick(random, 1, 4);
  const Sizes places = CutPlaces(random, elements, Pick(random, 1, 12));
  std::vector<std::size_t> order(places.size() - 1);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  std::vector<std::vector<std::int64_t>> numbers(static_cast<std::size_t>(ranks));
  cut.shards.resize(static_cast<std::size_t>(ranks));
  for (const std::size_t piece : order) {
    const auto rank = static_cast<std::size_t>(Pick(random, 0, ranks - 1));
    for (const std::int64_t number : Between(places[piece], places[piece + 1]))
      numbers[rank].push_back(number);
    cut.shards[rank].ranges.insert(cut.shards[rank].ranges.end(),
                                   {places[piece], places[piece + 1]});
  }
  for (std::size_t rank = 0; rank < numbers.size(); ++rank) {
    Shard& shard = cut.shards[rank];
    if (shard.ranges.empty()) shard.ranges = {0, 0};
    shard.tensor =
        Elements(whole, numbers[rank], {static_cast<std::int64_t>(numbers[rank].size())});
  }
  return cut;
}

inline Sizes CutShape(Random& random) {
  Sizes shape(static_cast<std::size_t>(Pick(random, 1, 4)));
  std::int64_t left = random() % 50 == 0 ? 60000 : random() % 3 == 0 ? 5000 : 300;
  for (std::int64_t& size : shape) {
    size = Pick(random, 1, std::max<std::int64_t>(1, left));
    left /= size;
  }
  std::shuffle(shape.begin(), shape.end(), random);
  return shape;
}

inline Cut AnyCut(Random& random, const TestTensor& whole) {
  const std::uint64_t kind = random() % 3;
  return kind == 0   ? IntoBoxes(random, whole)
         : kind == 1 ? IntoZigzag(random, whole)
                     : IntoRanges(random, whole);
}

}  // namespace statcollect::stats

#endif  // STATCOLLECT_TESTS_AGENT_STATS_RANDOM_CUTS_H_
