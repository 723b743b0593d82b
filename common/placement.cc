#include "common/placement.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/records.h"
#include "common/shape.h"

namespace statcollect {
namespace {

constexpr std::uint64_t kElementsMax = std::uint64_t{1} << 62;

// What a peer sends may have millions of numbers; a message shows as many as a tensor may have
// dimensions.
std::string Numbers(std::span<const std::int64_t> values) {
  std::string text = "(";
  for (std::size_t i = 0; i < std::min<std::size_t>(values.size(), kDimsMax); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  return text + (values.size() > kDimsMax ? ", ...)" : ")");
}

Status Refuse(const PlacementView& placement, const std::string& found,
              const std::string& expected) {
  return {Code::kInvalidArgument, "place a shard in the tensor of global shape " +
                                      Numbers(placement.global_shape) + ": " + found +
                                      "; expected " + expected +
                                      "; pass the offset and size that this process holds"};
}

struct Box {
  std::span<const std::int64_t> offset, size;
  std::string Text() const { return "the box at " + Numbers(offset) + " of size " + Numbers(size); }
};

Box BoxAt(const PlacementView& placement, std::size_t i) {
  const std::size_t dims = placement.global_shape.size();
  return {placement.boxes.subspan(2 * dims * i, dims),
          placement.boxes.subspan(2 * dims * i + dims, dims)};
}

Status CheckGlobalShape(const PlacementView& placement) {
  const auto whole = placement.global_shape;
  if (whole.size() > kDimsMax) {
    return Refuse(placement, "it has " + std::to_string(whole.size()) + " dimensions",
                  std::to_string(kDimsMax) + " at most");
  }
  std::uint64_t elements = 1;
  for (const std::int64_t size : whole) {
    if (size < 0) return Refuse(placement, "a size is negative", "sizes from 0");
    if (size > 0 && static_cast<std::uint64_t>(size) > kElementsMax / elements) {
      return Refuse(placement, "it has more than 2^62 elements", "2^62 at most");
    }
    elements *= static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1));
  }
  return Status::Ok();
}

Status CheckInside(const PlacementView& placement, const Box& box) {
  for (std::size_t d = 0; d < box.offset.size(); ++d) {
    const std::int64_t whole = placement.global_shape[d];
    if (box.offset[d] < 0 || box.size[d] < 0) {
      return Refuse(placement,
                    box.Text() + " has a negative number in dimension " + std::to_string(d),
                    "offsets and sizes from 0");
    }
    if (box.offset[d] > whole || box.size[d] > whole - box.offset[d]) {
      return Refuse(placement, box.Text() + " extends beyond dimension " + std::to_string(d),
                    "offset + size of " + std::to_string(whole) + " at most there");
    }
  }
  return Status::Ok();
}

// Spans [begin, end) that must not overlap.
using Spans = std::vector<std::pair<std::int64_t, std::int64_t>>;
bool Overlap(Spans spans) {
  std::erase_if(spans, [](const auto& span) { return span.first == span.second; });
  std::sort(spans.begin(), spans.end());
  for (std::size_t i = 1; i < spans.size(); ++i) {
    if (spans[i].first < spans[i - 1].second) return true;
  }
  return false;
}

// Along the unordered dimension, the tensor has any number of entries, and each box the size 1.
Status CheckUnordered(std::span<const std::int64_t> shape, const PlacementView& placement) {
  const std::size_t dims = placement.global_shape.size(), d = placement.unordered - 1;
  const std::string which = "dimension " + std::to_string(d) + " is unordered";
  if (d >= dims || shape.size() != dims || placement.boxes.empty()) {
    return Refuse(placement, which + " in a shard of the shape " + Numbers(shape),
                  "one of its dimensions, and boxes");
  }
  bool without_place = placement.global_shape[d] == 1;
  for (std::size_t at = 0; at + 2 * dims <= placement.boxes.size(); at += 2 * dims) {
    without_place =
        without_place && placement.boxes[at + d] == 0 && placement.boxes[at + dims + d] == 1;
  }
  if (without_place) return Status::Ok();
  return Refuse(placement, which + ", and the tensor or a box has a place or a size there",
                "the offset 0 and the size 1");
}

// Whether the boxes together have the shape of the shard.
bool HasShape(std::span<const std::int64_t> size, std::span<const std::int64_t> shape,
              std::uint32_t unordered) {
  if (size.size() != shape.size()) return false;
  for (std::size_t d = 0; d < size.size(); ++d) {
    if (size[d] != shape[d] && d + 1 != unordered) return false;
  }
  return true;
}

Status CheckBoxes(std::span<const std::int64_t> shape, const PlacementView& placement) {
  const std::size_t dims = placement.global_shape.size();
  if (dims == 0 || placement.boxes.size() % (2 * dims) != 0) {
    return Refuse(
        placement, "boxes have " + std::to_string(placement.boxes.size()) + " numbers",
        "an offset and a size in each of its " + std::to_string(dims) + " dimensions for each box");
  }
  const std::size_t boxes = placement.boxes.size() / (2 * dims);
  const std::size_t joined = JoinedDimension(placement);
  if (joined == kDimsMax) {
    return Refuse(placement,
                  "its " + std::to_string(boxes) + " boxes differ in more than one dimension",
                  "boxes that follow each other along one dimension of the shard");
  }
  const Box first = BoxAt(placement, 0);
  if (boxes == 1 && HasShape(first.size, shape, placement.unordered)) {
    return CheckInside(placement,
                       first);  // the usual case, on the observing thread: without allocation
  }
  Spans along;
  std::vector<std::int64_t> expected(first.size.begin(), first.size.end());
  expected[joined] = 0;
  for (std::size_t i = 0; i < boxes; ++i) {
    const Box box = BoxAt(placement, i);
    STATCOLLECT_RETURN_IF_ERROR(CheckInside(placement, box));
    along.emplace_back(box.offset[joined], box.offset[joined] + box.size[joined]);
    expected[joined] += box.size[joined];
    if (expected[joined] > placement.global_shape[joined]) break;
  }
  if (Overlap(along) || expected[joined] > placement.global_shape[joined]) {
    return Refuse(placement, "boxes overlap in dimension " + std::to_string(joined),
                  "boxes without overlap");
  }
  if (!HasShape(expected, shape, placement.unordered)) {
    return Refuse(
        placement, "the shard has the shape " + Numbers(shape),
        Numbers(expected) + ", the size of " + (boxes == 1 ? first.Text() : "its boxes together"));
  }
  return Status::Ok();
}

Status CheckRanges(std::span<const std::int64_t> shape, const PlacementView& placement) {
  if (placement.ranges.size() % 2 != 0) {
    return Refuse(placement, "ranges have " + std::to_string(placement.ranges.size()) + " numbers",
                  "a start and a stop for each");
  }
  const auto whole = static_cast<std::int64_t>(NumelOf(placement.global_shape));
  Spans spans;
  std::uint64_t elements = 0;
  for (std::size_t i = 0; i < placement.ranges.size(); i += 2) {
    const std::int64_t start = placement.ranges[i], stop = placement.ranges[i + 1];
    if (start < 0 || stop < start || stop > whole) {
      return Refuse(placement,
                    "a range goes from " + std::to_string(start) + " to " + std::to_string(stop),
                    "0 <= start <= stop <= " + std::to_string(whole));
    }
    spans.emplace_back(start, stop);
  }
  if (Overlap(spans)) return Refuse(placement, "ranges overlap", "ranges without overlap");
  for (const auto& [start, stop] : spans) elements += static_cast<std::uint64_t>(stop - start);
  if (elements == NumelOf(shape)) return Status::Ok();
  return Refuse(placement, "the shard has " + std::to_string(NumelOf(shape)) + " elements",
                std::to_string(elements) + ", as many as its ranges");
}

}  // namespace

std::size_t JoinedDimension(const PlacementView& placement) {
  const std::size_t dims = placement.global_shape.size();
  const std::size_t boxes = dims == 0 ? 0 : placement.boxes.size() / (2 * dims);
  std::size_t joined = kDimsMax;
  const Box first = boxes == 0 ? Box{} : BoxAt(placement, 0);
  for (std::size_t i = 1; i < boxes; ++i) {
    const Box box = BoxAt(placement, i);
    for (std::size_t d = 0; d < dims; ++d) {
      if (box.offset[d] == first.offset[d] && box.size[d] == first.size[d]) continue;
      if (joined != kDimsMax && joined != d) return kDimsMax;
      joined = d;
    }
  }
  if (joined != kDimsMax) return joined;
  // Several equal boxes are empty, or overlap.
  for (std::size_t d = 0; boxes > 1 && d < dims; ++d) {
    if (first.size[d] == 0) return d;
  }
  return 0;
}

Status CheckPlacement(std::span<const std::int64_t> shape, const PlacementView& placement) {
  STATCOLLECT_RETURN_IF_ERROR(CheckGlobalShape(placement));
  if (placement.pieces == 0 || placement.piece >= placement.pieces) {
    return Refuse(placement,
                  "it is piece " + std::to_string(placement.piece) + " of " +
                      std::to_string(placement.pieces),
                  "a number below that of the pieces");
  }
  if (placement.boxes.size() > kPlacementNumbersMax ||
      placement.ranges.size() > kPlacementNumbersMax) {
    return Refuse(placement,
                  "its boxes have " + std::to_string(placement.boxes.size()) +
                      " numbers, its ranges " + std::to_string(placement.ranges.size()),
                  std::to_string(kPlacementNumbersMax) + " at most");
  }
  if (!placement.boxes.empty() && !placement.ranges.empty()) {
    return Refuse(placement, "it has boxes and ranges",
                  "either boxes or ranges of the flattened tensor");
  }
  if (placement.unordered != 0) STATCOLLECT_RETURN_IF_ERROR(CheckUnordered(shape, placement));
  if (!placement.boxes.empty()) return CheckBoxes(shape, placement);
  if (!placement.ranges.empty()) return CheckRanges(shape, placement);
  if (std::equal(placement.global_shape.begin(), placement.global_shape.end(), shape.begin(),
                 shape.end()))
    return Status::Ok();
  return Refuse(placement, "the shard has the shape " + Numbers(shape) + " and no offset",
                "the global shape, or boxes or ranges");
}

bool IsWhole(const PlacementView& placement) {
  const std::size_t dims = placement.global_shape.size();
  if (placement.unordered != 0) return false;
  std::uint64_t next = 0;  // element, or place along the joined dimension, that must follow
  if (!placement.ranges.empty()) {
    for (std::size_t i = 0; i + 1 < placement.ranges.size(); i += 2) {
      if (static_cast<std::uint64_t>(placement.ranges[i]) != next) return false;
      next = static_cast<std::uint64_t>(placement.ranges[i + 1]);
    }
    return next == NumelOf(placement.global_shape);
  }
  if (placement.boxes.size() < 2 * dims || dims == 0) return placement.boxes.empty();
  const std::size_t joined = JoinedDimension(placement);
  const Box first = BoxAt(placement, 0);
  for (std::size_t d = 0; d < dims; ++d) {
    if (d != joined && (first.offset[d] != 0 || first.size[d] != placement.global_shape[d]))
      return false;
  }
  if (joined >= dims) return false;
  for (std::size_t i = 0; i < placement.boxes.size() / (2 * dims); ++i) {
    const Box box = BoxAt(placement, i);
    if (static_cast<std::uint64_t>(box.offset[joined]) != next) return false;
    next += static_cast<std::uint64_t>(box.size[joined]);
  }
  return next == static_cast<std::uint64_t>(placement.global_shape[joined]);
}

PlacementView View(const Placement& placement) {
  return {placement.global_shape, placement.boxes,  placement.ranges,   placement.partial,
          placement.piece,        placement.pieces, placement.unordered};
}

Placement Copy(const PlacementView& view) {
  return {{view.global_shape.begin(), view.global_shape.end()},
          {view.boxes.begin(), view.boxes.end()},
          {view.ranges.begin(), view.ranges.end()},
          view.partial,
          view.piece,
          view.pieces,
          view.unordered};
}

bool Matches(const Placement& placement, const PlacementView& view) {
  const auto equal = [](const auto& x, const auto& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end());
  };
  return placement.partial == view.partial && placement.piece == view.piece &&
         placement.pieces == view.pieces && placement.unordered == view.unordered &&
         equal(placement.global_shape, view.global_shape) && equal(placement.boxes, view.boxes) &&
         equal(placement.ranges, view.ranges);
}

}  // namespace statcollect
