#include "agent/stats/cuda/index_map.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "agent/stats/cuda/plan.h"
#include "common/names.h"
#include "common/shape.h"

namespace statcollect::stats::cuda {
namespace {

Status RefuseMap(const std::string& found, const std::string& expected) {
  return {Code::kUnimplemented, "observe a shard on a CUDA device: its placement " + found +
                                    "; expected " + expected +
                                    " at most; observe a copy on the CPU"};
}

struct Segment {
  std::uint64_t begin = 0, first = 0;
};

// A dimension of the map.
struct MapDim {
  std::uint64_t size = 1, stride = 1;
  std::vector<Segment> segments;  // empty: places are what they are

  bool cut() const { return !segments.empty(); }
};

// What one dimension of a shard is made of: parts that follow each other.
class Parts {
 public:
  void Add(std::int64_t first, std::int64_t size) {
    if (size == 0) return;
    const auto at = static_cast<std::uint64_t>(first);
    const bool follows =
        !dim_.segments.empty() &&
        dim_.segments.back().first + (dim_.size - dim_.segments.back().begin) == at;
    if (dim_.segments.empty()) dim_.size = 0;
    if (!follows) dim_.segments.push_back({dim_.size, at});
    dim_.size += static_cast<std::uint64_t>(size);
  }
  // *first: where places begin, if there is a single part.
  MapDim Take(std::uint64_t stride, std::uint64_t* first) && {
    dim_.stride = stride;
    if (dim_.segments.size() == 1) {
      *first = dim_.segments.front().first * stride;
      dim_.segments.clear();
    }
    return std::move(dim_);
  }

 private:
  MapDim dim_;
};

// The map under construction, innermost dimension first.
class MapBuilder {
 public:
  void Prepend(MapDim outer) {
    if (outer.size == 1 && !outer.cut()) return;
    if (!dims_.empty() && !dims_.back().cut()) {
      MapDim& inner = dims_.back();
      if (outer.stride == inner.stride * inner.size) {
        for (Segment& segment : outer.segments) {
          segment.begin *= inner.size;
          segment.first *= inner.size;
        }
        inner.segments = std::move(outer.segments);
        inner.size *= outer.size;
        return;
      }
    }
    if (dims_.empty() && outer.stride != 1) dims_.emplace_back();
    dims_.push_back(std::move(outer));
  }
  void AddFirst(std::uint64_t first) { first_ += first; }

  Status Finish(std::vector<std::uint64_t>* words) {
    words->clear();
    if (dims_.empty()) dims_.emplace_back();
    if (first_ == 0 && dims_.size() == 1 && !dims_[0].cut()) return Status::Ok();
    if (dims_.size() > kMapDims)
      return RefuseMap("has " + std::to_string(dims_.size()) + " dimensions that do not join",
                       std::to_string(kMapDims));
    std::reverse(dims_.begin(), dims_.end());
    const auto cut =
        std::find_if(dims_.begin(), dims_.end(), [](const MapDim& dim) { return dim.cut(); });
    const std::uint64_t segments = cut == dims_.end() ? 0 : cut->segments.size();
    const auto number =
        cut == dims_.end() ? kNotCut : static_cast<std::uint64_t>(cut - dims_.begin());
    words->push_back(first_);
    words->push_back(dims_.size() | number << 8 | segments << 32);
    for (const MapDim& dim : dims_) words->insert(words->end(), {dim.size, dim.stride});
    if (cut == dims_.end()) return Status::Ok();
    for (const Segment& segment : cut->segments)
      words->insert(words->end(), {segment.begin, segment.first});
    return Status::Ok();
  }

 private:
  std::vector<MapDim> dims_;
  std::uint64_t first_ = 0;
};

void AddRanges(const Placement& placement, std::uint64_t parts, MapBuilder* map) {
  Parts along;
  for (std::size_t i = 0; i < placement.ranges.size(); i += 2)
    along.Add(placement.ranges[i], placement.ranges[i + 1] - placement.ranges[i]);
  std::uint64_t first = 0;
  MapDim dim = std::move(along).Take(parts, &first);
  map->AddFirst(first);
  map->Prepend(std::move(dim));
}

void AddBoxes(std::span<const std::int64_t> shape, const Placement& placement, std::uint64_t parts,
              MapBuilder* map) {
  const std::size_t dims = placement.global_shape.size(),
                    boxes = placement.boxes.size() / (2 * dims);
  const auto number = [&](std::size_t box, std::size_t i) {
    return placement.boxes[2 * dims * box + i];
  };
  std::uint64_t stride = parts;
  for (std::size_t d = dims; d-- > 0;) {
    // Several boxes differ in one dimension, along which they follow each other.
    bool differ = false;
    for (std::size_t box = 1; box < boxes; ++box)
      differ =
          differ || number(box, d) != number(0, d) || number(box, dims + d) != number(0, dims + d);
    Parts along;
    for (std::size_t box = 0; box < (differ ? boxes : 1); ++box)
      along.Add(number(box, d), number(box, dims + d));
    std::uint64_t first = 0;
    MapDim dim = std::move(along).Take(stride, &first);
    if (d + 1 == placement.unordered)
      dim = {.size = static_cast<std::uint64_t>(shape[d]), .stride = 0, .segments = {}};
    map->AddFirst(first);
    map->Prepend(std::move(dim));
    stride *= static_cast<std::uint64_t>(placement.global_shape[d]);
  }
}

}  // namespace

Status MakeIndexMap(const CpuTensor& tensor, const Placement& placement,
                    std::vector<std::uint64_t>* words) {
  words->clear();
  const std::size_t numbers = placement.boxes.size() + placement.ranges.size();
  if (numbers == 0 || NumelOf(tensor.shape) == 0) return Status::Ok();
  if (numbers > kMapNumbersMax)
    return RefuseMap("has " + std::to_string(numbers) + " numbers", std::to_string(kMapNumbersMax));
  const std::uint64_t parts = IsComplex(tensor.dtype) ? 2 : 1;
  MapBuilder map;
  map.Prepend({.size = parts, .stride = 1, .segments = {}});
  if (placement.boxes.empty()) {
    AddRanges(placement, parts, &map);
  } else {
    AddBoxes(tensor.shape, placement, parts, &map);
  }
  return map.Finish(words);
}

}  // namespace statcollect::stats::cuda
