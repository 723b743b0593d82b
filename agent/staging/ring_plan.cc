#include "agent/staging/ring_plan.h"

#include <algorithm>

namespace statcollect {

std::optional<std::uint64_t> RingPlan::Grant(std::uint32_t activation, std::uint64_t step,
                                             std::uint64_t bytes) {
  if (steps_ == 0 || step > step_) {
    ++steps_;
    step_ = step;
    if (changed_) Renew();
  }
  if (tensors_.size() <= activation) tensors_.resize(activation + 1);
  Tensor& tensor = tensors_[activation];
  if (!tensor.seen || bytes > tensor.bytes) {
    changed_ = true;
    tensor.bytes = bytes;
    const bool fits = used_ + RingRoom(bytes) <= share_ && granted_ < tensors_max_;
    if (!tensor.seen && fits) Give(tensor, bytes);
    tensor.seen = true;
  }
  if (!tensor.grant) return std::nullopt;
  return std::min(*tensor.grant, bytes);
}

void RingPlan::Give(Tensor& tensor, std::uint64_t bytes) {
  tensor.grant = std::min(bytes, tensor.bytes);
  used_ += RingRoom(*tensor.grant);
  ++granted_;
}

void RingPlan::Renew() {
  changed_ = false;
  kept_ = {};
  used_ = granted_ = 0;
  std::vector<Tensor*> smallest;
  std::uint64_t all = 0;
  for (Tensor& tensor : tensors_) {
    tensor.grant.reset();
    if (!tensor.seen) continue;
    smallest.push_back(&tensor);
    all += RingRoom(tensor.bytes);
  }
  // Of equal ones those that came first.
  std::stable_sort(smallest.begin(), smallest.end(),
                   [](const Tensor* a, const Tensor* b) { return a->bytes < b->bytes; });
  const std::uint64_t for_whole = all <= share_ ? share_ : share_ / 2;
  auto next = smallest.begin();
  for (; next != smallest.end() && granted_ < tensors_max_; ++next) {
    if (used_ + RingRoom((*next)->bytes) > for_whole) break;
    Give(**next, (*next)->bytes);
  }
  auto parts = std::min({static_cast<std::uint64_t>(smallest.end() - next), tensors_max_ - granted_,
                         (share_ - used_) / kPartBytesMin});
  for (; parts > 0; --parts, ++next)
    Give(**next, (share_ - used_) / parts / kRingAlignment * kRingAlignment);
  for (const Tensor* tensor : smallest) {
    ++kept_.tensors;
    kept_.of_bytes += tensor->bytes;
    if (!tensor->grant) continue;
    kept_.bytes += *tensor->grant;
    ++(*tensor->grant == tensor->bytes ? kept_.whole : kept_.in_part);
  }
}

}  // namespace statcollect
