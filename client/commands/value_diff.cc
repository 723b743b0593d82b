#include "client/commands/value_diff.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "client/commands/captures.h"
#include "common/names.h"

namespace statcollect::client {
namespace {

std::vector<std::int64_t> IndexOf(std::uint64_t element, const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> index(shape.size());
  for (std::size_t d = shape.size(); d-- > 0;) {
    const auto size = static_cast<std::uint64_t>(shape[d]);
    index[d] = static_cast<std::int64_t>(element % size);
    element /= size;
  }
  return index;
}

int BucketOf(long double absolute) {
  const int decade = static_cast<int>(std::floor(std::log10(absolute)));
  return std::clamp(decade - ValueDiff::kLowest, 0, ValueDiff::kBuckets - 1);
}

// The sums over one pass.
class Comparer {
 public:
  Comparer(const TensorValues& a, const TensorValues& b, ValueDiff* diff)
      : a_(a), b_(b), diff_(diff), parts_(IsComplex(a.dtype) ? 2 : 1) {}

  void Compare() {
    for (std::uint64_t element = 0; element < diff_->elements; ++element) CompareElement(element);
    if (finite_ == 0) return;
    const auto n = static_cast<long double>(finite_);
    diff_->mean_absolute = static_cast<double>(absolute_ / n);
    diff_->rms = static_cast<double>(std::sqrt(squared_ / n));
    const long double norm = std::sqrt(std::max(squared_a_, squared_b_));
    diff_->distance = norm > 0 ? static_cast<double>(std::sqrt(squared_) / norm) : 0;
  }

 private:
  void CompareElement(std::uint64_t element) {
    bool same = true, equal = true, nan_a = false, nan_b = false, infinite = false;
    std::optional<ValueDiff::Element> worst;
    for (std::uint64_t i = element * parts_; i < (element + 1) * parts_; ++i) {
      const long double a = a_.At(i), b = b_.At(i);
      const bool finite = std::isfinite(a) && std::isfinite(b);
      if (finite) {
        squared_a_ += a * a;
        squared_b_ += b * b;
        ++finite_;
      }
      if (a_.SameBits(b_, i)) continue;
      same = false;
      const bool both_nan = std::isnan(a) && std::isnan(b);
      equal = equal && (a == b || both_nan);
      nan_a = nan_a || (std::isnan(a) && !std::isnan(b));
      nan_b = nan_b || (std::isnan(b) && !std::isnan(a));
      if (!finite) {
        infinite = infinite || (!std::isnan(a) && !std::isnan(b));
        continue;
      }
      const long double absolute = std::abs(a - b);
      absolute_ += absolute;
      squared_ += absolute * absolute;
      const long double scale = std::max(std::abs(a), std::abs(b));
      if (worst && static_cast<long double>(worst->absolute) >= absolute) continue;
      worst = ValueDiff::Element{.index = {},
                                 .a = static_cast<double>(a),
                                 .b = static_cast<double>(b),
                                 .absolute = static_cast<double>(absolute),
                                 .relative = scale > 0 ? static_cast<double>(absolute / scale) : 0};
    }
    if (same) return;
    ++diff_->differ;
    diff_->equal_value += equal ? 1 : 0;
    diff_->nan_only_a += nan_a ? 1 : 0;
    diff_->nan_only_b += nan_b ? 1 : 0;
    diff_->infinite += infinite && !nan_a && !nan_b ? 1 : 0;
    Note(element, worst);
  }

  void Note(std::uint64_t element, const std::optional<ValueDiff::Element>& worst) {
    const std::vector<std::int64_t> index =
        IndexOf(element, a_.shape.size() == b_.shape.size() ? a_.shape : kept_);
    if (!diff_->first) {
      const std::uint64_t i = element * parts_;
      diff_->first = worst.value_or(ValueDiff::Element{
          .index = {}, .a = static_cast<double>(a_.At(i)), .b = static_cast<double>(b_.At(i))});
      diff_->first->index = index;
      diff_->low = diff_->high = index;
    }
    for (std::size_t d = 0; d < index.size(); ++d) {
      diff_->low[d] = std::min(diff_->low[d], index[d]);
      diff_->high[d] = std::max(diff_->high[d], index[d]);
    }
    if (!worst || worst->absolute == 0) return;
    ++diff_->buckets[static_cast<std::size_t>(BucketOf(worst->absolute))];
    const auto take = [&](std::optional<ValueDiff::Element>& to, double ValueDiff::Element::*by) {
      if (to && (*to).*by >= (*worst).*by) return;
      to = worst;
      to->index = index;
    };
    take(diff_->largest, &ValueDiff::Element::absolute);
    take(diff_->largest_relative, &ValueDiff::Element::relative);
  }

  const TensorValues& a_;
  const TensorValues& b_;
  ValueDiff* const diff_;
  const std::uint64_t parts_;
  const std::vector<std::int64_t> kept_ = {static_cast<std::int64_t>(
      std::min(a_.elements(), b_.elements()))};  // where the parts have other ranks
  std::uint64_t finite_ = 0;
  long double absolute_ = 0, squared_ = 0, squared_a_ = 0, squared_b_ = 0;
};

}  // namespace

ValueDiff CompareValues(const TensorValues& a, const TensorValues& b) {
  ValueDiff diff;
  if (a.dtype != b.dtype) {
    diff.incomparable = fmt::format("dtype is {} in A and {} in B", Name(a.dtype), Name(b.dtype));
  } else if (!std::equal(a.row.shape().begin(), a.row.shape().end(), b.row.shape().begin(),
                         b.row.shape().end())) {
    diff.incomparable = fmt::format("shape is {} in A and {} in B", CaptureShapeText(a.row),
                                    CaptureShapeText(b.row));
  } else {
    diff.elements = std::min(a.elements(), b.elements());
    Comparer(a, b, &diff).Compare();
  }
  return diff;
}

}  // namespace statcollect::client
