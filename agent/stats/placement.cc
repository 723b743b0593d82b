#include "agent/stats/placement.h"

#include "common/shape.h"

namespace statcollect::stats {

Status Validate(const CpuTensor& tensor, const Placement& placement) {
  STATCOLLECT_RETURN_IF_ERROR(Validate(tensor));
  return CheckPlacement(tensor.shape, placement);
}

PlacementRuns::PlacementRuns(const CpuTensor& tensor, const Placement& placement) noexcept
    : placement_(placement),
      shape_(tensor.shape),
      dims_(placement.global_shape.size()),
      boxes_(dims_ == 0 ? 0 : placement.boxes.size() / (2 * dims_)),
      unordered_(placement.unordered == 0 ? kDimsMax : placement.unordered - 1),
      joined_(JoinedDimension(placement)) {
  if (boxes_ == 0) return;
  run_dim_ = dims_ - 1;
  const auto whole = [&](std::size_t d) {
    if (d == unordered_ || (boxes_ > 1 && d == joined_)) return false;
    return shape_[d] == placement.global_shape[d];
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
  std::uint64_t rest = element / inner_, stride = inner_;
  ElementRun run;
  run.first = within;
  for (std::size_t d = run_dim_ + 1; d-- > 0;) {
    const auto size = static_cast<std::uint64_t>(shape_[d]);
    const std::uint64_t place = rest % size;
    rest /= size;
    if (d == unordered_) {  // all entries lie where the first does
      if (d == run_dim_) run.count = inner_ - within;
      if (d == run_dim_ || (d + 1 == run_dim_ && boxes_ == 1)) {
        run.rows = size - 1 - place;
        run.row = d == run_dim_ ? inner_ : static_cast<std::uint64_t>(shape_[run_dim_]) * inner_;
      }
      continue;
    }
    const ElementRun along =
        d == joined_ ? AlongJoined(place) : ElementRun{BoxOffset(0, d) + place, size - place};
    if (d == run_dim_) run.count = along.count * inner_ - within;
    if (d + 1 == run_dim_ && run_dim_ != unordered_ && boxes_ == 1) {
      run.rows = size - 1 - place;
      run.row = static_cast<std::uint64_t>(shape_[run_dim_]) * inner_;
      run.stride = stride;
    }
    run.first += along.first * stride;
    stride *= static_cast<std::uint64_t>(placement_.global_shape[d]);
  }
  return run;
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
