#include "proto/convert/statistics.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <string>
#include <utility>

#include "common/names.h"
#include "proto/convert/checks.h"

namespace statcollect::convert {
namespace {

Status CheckLength(const char* field, int found, std::size_t expected) {
  if (static_cast<std::size_t>(found) == expected) return Status::Ok();
  return Invalid(std::string("batch: stats.") + field + " has " + std::to_string(found) +
                 " entries; expected " + std::to_string(expected) + " as stats.activation");
}

Status CheckColumnLengths(const v1::StatColumns& wire, std::size_t n) {
  const std::pair<const char*, int> columns[] = {
      {"layout", wire.layout_size()},   {"step", wire.step_size()},
      {"order", wire.order_size()},     {"nan", wire.nan_size()},
      {"pos_inf", wire.pos_inf_size()}, {"neg_inf", wire.neg_inf_size()},
      {"zero", wire.zero_size()},       {"neg", wire.neg_size()},
      {"pos", wire.pos_size()},         {"has_finite", wire.has_finite_size()},
      {"min", wire.min_size()},         {"max", wire.max_size()},
      {"mean", wire.mean_size()},       {"std", wire.std_size()},
      {"l1", wire.l1_size()},           {"l2", wire.l2_size()},
      {"hash", wire.hash_size()},
  };
  for (const auto& [field, size] : columns)
    STATCOLLECT_RETURN_IF_ERROR(CheckLength(field, size, n));
  return wire.sample_count().empty() ? Status::Ok()
                                     : CheckLength("sample_count", wire.sample_count_size(), n);
}

constexpr std::uint32_t kCounts = BitOf(Statistic::kNan) | BitOf(Statistic::kInf) |
                                  BitOf(Statistic::kZero) | BitOf(Statistic::kNeg) |
                                  BitOf(Statistic::kPos) | BitOf(Statistic::kShape);

// With every count there they make up the tensor; with some of them they fit into it.
Status CheckCounts(const TensorStats& s, const Layout& layout, std::uint64_t components,
                   std::size_t index) {
  if (!layout.Has(Statistic::kShape)) return Status::Ok();
  const std::pair<const char*, std::uint64_t> counts[] = {
      {"stats.nan", s.nan},   {"stats.pos_inf", s.pos_inf}, {"stats.neg_inf", s.neg_inf},
      {"stats.zero", s.zero}, {"stats.neg", s.neg},         {"stats.pos", s.pos}};
  std::uint64_t left = components;
  for (const auto& [field, count] : counts) {
    if (count > left) {
      return InvalidValue(
          field, index, std::to_string(count),
          "counts that add up to the layout's " + std::to_string(components) + " components");
    }
    left -= count;
  }
  if (left == 0 || (layout.absent & kCounts) != 0) return Status::Ok();
  return InvalidValue(
      "stats", index, std::to_string(left) + " components short in its counts",
      "counts that add up to the layout's " + std::to_string(components) + " components");
}

// mean, std, l1 and l2 may overflow for float64 input near its limits; min and max are elements.
Status CheckMoments(const TensorStats& s, const Layout& layout, std::uint64_t components,
                    std::size_t index) {
  constexpr std::uint32_t kTells =
      BitOf(Statistic::kNan) | BitOf(Statistic::kInf) | BitOf(Statistic::kShape);
  const bool has_finite = s.nan + s.pos_inf + s.neg_inf < components;
  if ((layout.absent & kTells) == 0 && s.has_finite != has_finite) {
    return InvalidValue("stats.has_finite", index, s.has_finite ? "true" : "false",
                        "what nan, pos_inf and neg_inf leave");
  }
  if (!s.has_finite) {
    const bool zero =
        s.min == 0 && s.max == 0 && s.mean == 0 && s.std == 0 && s.l1 == 0 && s.l2 == 0;
    return zero ? Status::Ok()
                : InvalidValue("stats", index,
                               "without finite elements but with a min, max, mean, std, l1 or l2",
                               "0 in each");
  }
  const bool both = layout.Has(Statistic::kMin) && layout.Has(Statistic::kMax);
  if (!std::isfinite(s.min) || !std::isfinite(s.max) || (both && s.min > s.max)) {
    return InvalidValue("stats.min", index,
                        std::to_string(s.min) + " with max " + std::to_string(s.max),
                        "finite, min <= max");
  }
  if (s.std < 0 || s.l1 < 0 || s.l2 < 0) {
    return InvalidValue("stats", index, "of negative std, l1 or l2", "0 or more");
  }
  return Status::Ok();
}

// Absent statistics must be 0, so that nobody mistakes them for values.
Status CheckAbsent(const TensorStats& s, const Layout& layout, std::size_t index) {
  if (layout.absent == 0) return Status::Ok();
  const std::pair<Statistic, bool> numbers[] = {
      {Statistic::kMin, s.min == 0},   {Statistic::kMax, s.max == 0},
      {Statistic::kMean, s.mean == 0}, {Statistic::kStd, s.std == 0},
      {Statistic::kL1, s.l1 == 0},     {Statistic::kL2, s.l2 == 0},
      {Statistic::kNan, s.nan == 0},   {Statistic::kInf, s.pos_inf == 0 && s.neg_inf == 0},
      {Statistic::kZero, s.zero == 0}, {Statistic::kNeg, s.neg == 0},
      {Statistic::kPos, s.pos == 0},   {Statistic::kInfSign, s.neg_inf == 0},
      {Statistic::kHash, s.hash == 0}};
  for (const auto& [statistic, is_zero] : numbers) {
    if (layout.Has(statistic) || is_zero) continue;
    return InvalidValue(
        "stats", index,
        "with a " + std::string(Name(statistic)) + ", which its layout calls absent", "0");
  }
  return Status::Ok();
}

TensorStats StatsAt(const v1::StatColumns& w, int i) {
  TensorStats s;
  s.nan = w.nan(i);
  s.pos_inf = w.pos_inf(i);
  s.neg_inf = w.neg_inf(i);
  s.zero = w.zero(i);
  s.neg = w.neg(i);
  s.pos = w.pos(i);
  s.has_finite = w.has_finite(i);
  s.min = w.min(i);
  s.max = w.max(i);
  s.mean = w.mean(i);
  s.std = w.std(i);
  s.l1 = w.l1(i);
  s.l2 = w.l2(i);
  s.hash = w.hash(i);
  return s;
}

Status RecordsFromWire(const v1::StatColumns& wire, const LayoutTable& layouts, StatColumns* out) {
  const int n = wire.activation_size();
  out->stats.reserve(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) {
    const auto index = static_cast<std::size_t>(i);
    const Layout* layout = layouts.Find(wire.layout(i));
    if (layout == nullptr) {
      return InvalidValue("stats.layout", index, std::to_string(wire.layout(i)),
                          "a layout that the session has defined");
    }
    if (i > 0 && wire.step(i) < wire.step(i - 1)) {
      return InvalidValue(
          "stats.step", index, std::to_string(wire.step(i)),
          "at least " + std::to_string(wire.step(i - 1)) + " (steps do not decrease)");
    }
    TensorStats stats = StatsAt(wire, i);
    stats.numel = Elements(*layout);
    const std::uint64_t components = stats.numel * (IsComplex(layout->dtype) ? 2 : 1);
    STATCOLLECT_RETURN_IF_ERROR(CheckAbsent(stats, *layout, index));
    STATCOLLECT_RETURN_IF_ERROR(CheckCounts(stats, *layout, components, index));
    STATCOLLECT_RETURN_IF_ERROR(CheckMoments(stats, *layout, components, index));
    out->stats.push_back(stats);
  }
  out->activation.assign(wire.activation().begin(), wire.activation().end());
  out->layout.assign(wire.layout().begin(), wire.layout().end());
  out->step.assign(wire.step().begin(), wire.step().end());
  out->order.assign(wire.order().begin(), wire.order().end());
  return Status::Ok();
}

Status SketchesFromWire(const v1::StatColumns& wire, const LayoutTable& layouts, StatColumns* out) {
  const std::uint32_t k = wire.sketch_width();
  if (k != 0 && k != 16 && k != 32 && k != 64) {
    return Invalid("batch: stats.sketch_width is " + std::to_string(k) +
                   "; expected 0, 16, 32 or 64");
  }
  std::size_t wide = 0;
  for (const std::uint32_t id : out->layout) wide += HasWideSketch(layouts.Find(id)->dtype) ? 1 : 0;
  STATCOLLECT_RETURN_IF_ERROR(Within("sums of " + std::to_string(wide) + " wide records",
                                     CheckLength("sketch_f64", wire.sketch_f64_size(), wide * k)));
  const std::size_t narrow = out->size() - wide;
  STATCOLLECT_RETURN_IF_ERROR(
      Within("sums of " + std::to_string(narrow) + " narrow records",
             CheckLength("sketch_f32", wire.sketch_f32_size(), narrow * k)));
  out->sketch_width = k;
  const float* f32 = wire.sketch_f32().data();
  const double* f64 = wire.sketch_f64().data();
  if (wide == 0) {
    out->sketch.assign(f32, f32 + narrow * k);
    return Status::Ok();
  }
  out->sketch.reserve(out->size() * k);
  for (const std::uint32_t id : out->layout) {
    if (HasWideSketch(layouts.Find(id)->dtype)) {
      out->sketch.insert(out->sketch.end(), f64, f64 + k);
      f64 += k;
    } else {
      out->sketch.insert(out->sketch.end(), f32, f32 + k);
      f32 += k;
    }
  }
  return Status::Ok();
}

Status SamplesFromWire(const v1::StatColumns& wire, const LayoutTable& layouts, StatColumns* out) {
  out->sample_count.assign(wire.sample_count().begin(), wire.sample_count().end());
  out->sample_count.resize(out->size(), 0);
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < out->size(); ++i) {
    const bool complex = IsComplex(layouts.Find(out->layout[i])->dtype);
    const std::uint64_t max =
        std::min<std::uint64_t>(kSamplesMax, out->stats[i].numel * (complex ? 2 : 1));
    if (out->sample_count[i] > max) {
      return InvalidValue("stats.sample_count", i, std::to_string(out->sample_count[i]),
                          "at most " + std::to_string(max));
    }
    total += out->sample_count[i];
  }
  if (total != static_cast<std::uint64_t>(wire.samples_size())) {
    return Invalid("batch: stats.samples has " + std::to_string(wire.samples_size()) +
                   " entries; expected " + std::to_string(total) +
                   ", the sum of stats.sample_count");
  }
  out->samples.assign(wire.samples().begin(), wire.samples().end());
  return Status::Ok();
}

}  // namespace

void StatsToWire(const StatColumns& columns, const LayoutTable& layouts, v1::StatColumns* wire) {
  wire->mutable_activation()->Assign(columns.activation.begin(), columns.activation.end());
  wire->mutable_layout()->Assign(columns.layout.begin(), columns.layout.end());
  wire->mutable_step()->Assign(columns.step.begin(), columns.step.end());
  wire->mutable_order()->Assign(columns.order.begin(), columns.order.end());
  for (const TensorStats& s : columns.stats) {
    wire->add_nan(s.nan);
    wire->add_pos_inf(s.pos_inf);
    wire->add_neg_inf(s.neg_inf);
    wire->add_zero(s.zero);
    wire->add_neg(s.neg);
    wire->add_pos(s.pos);
    wire->add_has_finite(s.has_finite);
    wire->add_min(s.min);
    wire->add_max(s.max);
    wire->add_mean(s.mean);
    wire->add_std(s.std);
    wire->add_l1(s.l1);
    wire->add_l2(s.l2);
    wire->add_hash(s.hash);
  }
  wire->set_sketch_width(columns.sketch_width);
  for (std::size_t i = 0; i < columns.size() && columns.sketch_width > 0; ++i) {
    const Layout* layout = layouts.Find(columns.layout[i]);
    assert(layout != nullptr);
    const auto sums = columns.SketchOf(i);
    if (layout != nullptr && HasWideSketch(layout->dtype)) {
      wire->mutable_sketch_f64()->Add(sums.begin(), sums.end());
    } else {
      for (const double sum : sums) wire->add_sketch_f32(static_cast<float>(sum));
    }
  }
  if (columns.samples.empty()) return;
  wire->mutable_sample_count()->Assign(columns.sample_count.begin(), columns.sample_count.end());
  wire->mutable_samples()->Assign(columns.samples.begin(), columns.samples.end());
}

Status StatsFromWire(const v1::StatColumns& wire, const LayoutTable& layouts, StatColumns* out) {
  STATCOLLECT_RETURN_IF_ERROR(
      CheckColumnLengths(wire, static_cast<std::size_t>(wire.activation_size())));
  STATCOLLECT_RETURN_IF_ERROR(RecordsFromWire(wire, layouts, out));
  STATCOLLECT_RETURN_IF_ERROR(SketchesFromWire(wire, layouts, out));
  return SamplesFromWire(wire, layouts, out);
}

}  // namespace statcollect::convert
