#include "agent/stats/placement.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/records.h"
#include "common/shape.h"

namespace statcollect::stats {
namespace {

constexpr std::uint64_t kElementsMax = std::uint64_t{1} << 62;

std::string Numbers(std::span<const std::int64_t> values) {
  std::string text = "(";
  for (std::size_t i = 0; i < values.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  return text + ")";
}

Status Refuse(const Placement& placement, const std::string& found, const std::string& expected) {
  return {Code::kInvalidArgument, "place a shard in the tensor of global shape " +
                                      Numbers(placement.global_shape) + ": " + found + "; expected " +
                                      expected + "; pass the offset and size that this process holds"};
}

struct Box {
  std::span<const std::int64_t> offset, size;
  std::string Text() const { return "the box at " + Numbers(offset) + " of size " + Numbers(size); }
};

Box BoxAt(const Placement& placement, std::size_t i) {
  const std::size_t dims = placement.global_shape.size();
  return {placement.boxes.subspan(2 * dims * i, dims), placement.boxes.subspan(2 * dims * i + dims, dims)};
}

Status CheckGlobalShape(const Placement& placement) {
  const auto shape = placement.global_shape;
  if (shape.size() > kDimsMax) {
    return Refuse(placement, "it has " + std::to_string(shape.size()) + " dimensions",
                  std::to_string(kDimsMax) + " at most");
  }
  std::uint64_t elements = 1;
  for (const std::int64_t size : shape) {
    if (size < 0) return Refuse(placement, "a size is negative", "sizes from 0");
    if (size > 0 && static_cast<std::uint64_t>(size) > kElementsMax / elements) {
      return Refuse(placement, "it has more than 2^62 elements", "2^62 at most");
    }
    elements *= static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1));
  }
  return Status::Ok();
}

Status CheckInside(const Placement& placement, const Box& box) {
  for (std::size_t d = 0; d < box.offset.size(); ++d) {
    const std::int64_t whole = placement.global_shape[d];
    if (box.offset[d] < 0 || box.size[d] < 0) {
      return Refuse(placement, box.Text() + " has a negative number in dimension " + std::to_string(d),
                    "offsets and sizes from 0");
    }
    if (box.offset[d] > whole || box.size[d] > whole - box.offset[d]) {
      return Refuse(placement, box.Text() + " ends behind dimension " + std::to_string(d),
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

// Dimension in which boxes differ, if they do. kDimsMax: more than one.
std::size_t JoinedDimension(const Placement& placement) {
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

Status CheckBoxes(const CpuTensor& tensor, const Placement& placement) {
  const std::size_t dims = placement.global_shape.size();
  if (dims == 0 || placement.boxes.size() % (2 * dims) != 0) {
    return Refuse(placement, "boxes have " + std::to_string(placement.boxes.size()) + " numbers",
                  "an offset and a size in each of its " + std::to_string(dims) + " dimensions for each box");
  }
  const std::size_t boxes = placement.boxes.size() / (2 * dims);
  const std::size_t joined = JoinedDimension(placement);
  if (joined == kDimsMax) {
    return Refuse(placement, "its " + std::to_string(boxes) + " boxes differ in more than one dimension",
                  "boxes that follow each other along one dimension of the shard");
  }
  Spans along;
  const Box first = BoxAt(placement, 0);
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
    return Refuse(placement, "boxes overlap in dimension " + std::to_string(joined), "boxes without overlap");
  }
  if (!std::equal(expected.begin(), expected.end(), tensor.shape.begin(), tensor.shape.end())) {
    return Refuse(placement, "the shard has the shape " + Numbers(tensor.shape),
                  Numbers(expected) + ", the size of " + (boxes == 1 ? first.Text() : "its boxes together"));
  }
  return Status::Ok();
}

Status CheckRanges(const CpuTensor& tensor, const Placement& placement) {
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
      return Refuse(placement, "a range goes from " + std::to_string(start) + " to " + std::to_string(stop),
                    "0 <= start <= stop <= " + std::to_string(whole));
    }
    spans.emplace_back(start, stop);
  }
  if (Overlap(spans)) return Refuse(placement, "ranges overlap", "ranges without overlap");
  for (const auto& [start, stop] : spans) elements += static_cast<std::uint64_t>(stop - start);
  if (elements == NumelOf(tensor.shape)) return Status::Ok();
  return Refuse(placement, "the shard has " + std::to_string(NumelOf(tensor.shape)) + " elements",
                std::to_string(elements) + ", as many as its ranges");
}

}  // namespace

Status Validate(const CpuTensor& tensor, const Placement& placement) {
  STATCOLLECT_RETURN_IF_ERROR(Validate(tensor));
  STATCOLLECT_RETURN_IF_ERROR(CheckGlobalShape(placement));
  if (!placement.boxes.empty() && !placement.ranges.empty()) {
    return Refuse(placement, "it has boxes and ranges", "either boxes or ranges of the flattened tensor");
  }
  if (!placement.boxes.empty()) return CheckBoxes(tensor, placement);
  if (!placement.ranges.empty()) return CheckRanges(tensor, placement);
  const auto whole = placement.global_shape;
  if (std::equal(whole.begin(), whole.end(), tensor.shape.begin(), tensor.shape.end())) return Status::Ok();
  return Refuse(placement, "the shard has the shape " + Numbers(tensor.shape) + " and no offset",
                "the global shape, or boxes or ranges");
}

PlacementRuns::PlacementRuns(const CpuTensor& tensor, const Placement& placement) noexcept
    : placement_(placement),
      shape_(tensor.shape),
      dims_(placement.global_shape.size()),
      boxes_(dims_ == 0 ? 0 : placement.boxes.size() / (2 * dims_)),
      joined_(JoinedDimension(placement)) {
  if (boxes_ == 0) return;
  run_dim_ = dims_ - 1;
  const auto whole = [&](std::size_t d) {
    return boxes_ > 1 && d == joined_ ? false : shape_[d] == placement.global_shape[d];
  };
  while (run_dim_ > 0 && whole(run_dim_)) {
    inner_ *= static_cast<std::uint64_t>(shape_[run_dim_]);
    --run_dim_;
  }
}

std::uint64_t PlacementRuns::BoxOffset(std::size_t box, std::size_t dim) const noexcept {
  return static_cast<std::uint64_t>(placement_.boxes[2 * dims_ * box + dim]);
}
std::uint64_t PlacementRuns::BoxSize(std::size_t box, std::size_t dim) const noexcept {
  return static_cast<std::uint64_t>(placement_.boxes[2 * dims_ * box + dims_ + dim]);
}

ElementRun PlacementRuns::AlongJoined(std::uint64_t place) const noexcept {
  std::size_t box = 0;
  while (place >= BoxSize(box, joined_)) place -= BoxSize(box++, joined_);
  return {BoxOffset(box, joined_) + place, BoxSize(box, joined_) - place};
}

ElementRun PlacementRuns::At(std::uint64_t element) const noexcept {
  if (boxes_ != 0) return InBoxes(element);
  if (!placement_.ranges.empty()) return InRanges(element);
  return {element, NumelOf(shape_) - element};
}

ElementRun PlacementRuns::InBoxes(std::uint64_t element) const noexcept {
  const std::uint64_t within = element % inner_;
  std::uint64_t rest = element / inner_, first = within, stride = inner_, count = 0;
  for (std::size_t d = run_dim_ + 1; d-- > 0;) {
    const auto size = static_cast<std::uint64_t>(shape_[d]);
    const std::uint64_t place = rest % size;
    rest /= size;
    const ElementRun along =
        d == joined_ ? AlongJoined(place) : ElementRun{BoxOffset(0, d) + place, size - place};
    if (d == run_dim_) count = along.count * inner_ - within;
    first += along.first * stride;
    stride *= static_cast<std::uint64_t>(placement_.global_shape[d]);
  }
  return {first, count};
}

ElementRun PlacementRuns::InRanges(std::uint64_t element) const noexcept {
  for (std::size_t i = 0;; i += 2) {
    const auto start = static_cast<std::uint64_t>(placement_.ranges[i]);
    const std::uint64_t count = static_cast<std::uint64_t>(placement_.ranges[i + 1]) - start;
    if (element < count) return {start + element, count - element};
    element -= count;
  }
}

}  // namespace statcollect::stats
