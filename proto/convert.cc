#include "proto/convert.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "common/capture_spec.h"
#include "common/checksum.h"
#include "common/names.h"

namespace statcollect {
namespace {

constexpr std::uint64_t kElementsMax = std::uint64_t{1} << 62;
constexpr std::int32_t kDepthMax = 1 << 20;
constexpr std::size_t kSessionIdBytes = std::tuple_size_v<SessionId>;

Status Invalid(std::string message) { return Status(Code::kInvalidArgument, std::move(message)); }

std::string At(const char* field, std::size_t index) {
  return std::string(field) + "[" + std::to_string(index) + "]";
}

Status InvalidValue(const char* field, std::size_t index, const std::string& found,
                    const std::string& expected) {
  return Invalid("batch: " + At(field, index) + " is " + found + "; expected " + expected);
}

// Prefixes the message of a failed check with the place of the value.
Status Within(const std::string& place, const Status& status) {
  return status.ok() ? status : Status(status.code(), place + ": " + status.message());
}

Status CheckOptionalName(const char* what, const std::string& name) {
  return name.empty() ? Status::Ok() : ValidateTensorName(what, name);
}

Status CheckText(const char* what, const std::string& text) {
  if (text.size() <= kTextBytesMax) return Status::Ok();
  return Invalid(std::string(what) + " has " + std::to_string(text.size()) + " bytes; at most " +
                 std::to_string(kTextBytesMax) + " are accepted");
}

template <typename Map>
Status CheckTextMap(const char* what, const Map& map) {
  if (map.size() > kConfigEntriesMax) {
    return Invalid(std::string(what) + " has " + std::to_string(map.size()) + " entries; at most " +
                   std::to_string(kConfigEntriesMax) + " are accepted");
  }
  for (const auto& [key, value] : map) {
    STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName(what, key));
    STATCOLLECT_RETURN_IF_ERROR(
        Within(std::string(what) + " '" + Printable(key) + "'", CheckText("value", value)));
  }
  return Status::Ok();
}

template <typename Map>
std::map<std::string, std::string> CopyMap(const Map& map) {
  return {map.begin(), map.end()};
}

// --- definitions

bool InRange(int value, int count) { return value > 0 && value < count; }

Result<std::uint64_t> ElementCount(std::span<const std::int64_t> shape, std::size_t index) {
  std::uint64_t count = 1;
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0)
      return InvalidValue("layouts", index, "of negative size " + std::to_string(size), "sizes >= 0");
    empty = empty || size == 0;
    const auto factor = static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1));
    if (factor >= kElementsMax || count > (kElementsMax - 1) / factor) {
      return InvalidValue("layouts", index, "of 2^62 or more elements", "fewer");
    }
    count *= factor;
  }
  return empty ? 0 : count;
}

Status CheckStatistics(const Layout& layout, std::size_t index) {
  constexpr std::uint32_t kAll = (1u << kStatisticCount) - 1;
  if (((layout.absent | layout.untrusted) & ~kAll) != 0) {
    return InvalidValue("layouts", index, "without statistics of unknown numbers",
                        "bits 0.." + std::to_string(kStatisticCount - 1) + " in absent and untrusted");
  }
  if ((layout.absent & layout.untrusted) != 0) {
    return InvalidValue("layouts", index, "with statistics both absent and untrusted", "one of the two");
  }
  if (!layout.Has(Statistic::kShape) && !layout.shape.empty()) {
    return InvalidValue("layouts", index,
                        "of unknown shape with " + std::to_string(layout.shape.size()) + " dimensions",
                        "none");
  }
  const int kind = static_cast<int>(layout.hash_kind);
  if (kind >= 0 && kind < kHashKindCount) return Status::Ok();
  return InvalidValue("layouts", index, "of hash kind " + std::to_string(kind),
                      "0.." + std::to_string(kHashKindCount - 1));
}

Result<Layout> LayoutFromWire(const v1::Layout& wire, std::size_t index) {
  if (!InRange(wire.dtype(), kDTypeCount)) {
    return InvalidValue("layouts", index, "of dtype " + std::to_string(wire.dtype()),
                        "1.." + std::to_string(kDTypeCount - 1));
  }
  if (wire.shape_size() > static_cast<int>(kDimsMax)) {
    return InvalidValue("layouts", index, "of " + std::to_string(wire.shape_size()) + " dimensions",
                        "at most " + std::to_string(kDimsMax));
  }
  Layout layout{.id = wire.id(),
                .dtype = static_cast<DType>(wire.dtype()),
                .shape = {wire.shape().begin(), wire.shape().end()},
                .absent = wire.absent(),
                .untrusted = wire.untrusted(),
                .hash_kind = static_cast<HashKind>(wire.hash_kind())};
  STATCOLLECT_RETURN_IF_ERROR(CheckStatistics(layout, index));
  if (auto count = ElementCount(layout.shape, index); !count.ok()) return count.status();
  return layout;
}

Result<TensorDef> ActivationFromWire(const v1::ActivationDef& wire, std::size_t index) {
  const std::string place = "batch: " + At("activations", index);
  STATCOLLECT_RETURN_IF_ERROR(Within(place, ValidateTensorName("name", wire.name())));
  STATCOLLECT_RETURN_IF_ERROR(Within(place, CheckOptionalName("output path", wire.output_path())));
  STATCOLLECT_RETURN_IF_ERROR(Within(place, CheckOptionalName("parent", wire.parent())));
  STATCOLLECT_RETURN_IF_ERROR(Within(place, CheckOptionalName("class name", wire.class_name())));
  if (!InRange(wire.kind(), kKindCount)) {
    return InvalidValue("activations", index, "of kind " + std::to_string(wire.kind()),
                        "1.." + std::to_string(kKindCount - 1));
  }
  if (!InRange(wire.mode(), kModeCount)) {
    return InvalidValue("activations", index, "of mode " + std::to_string(wire.mode()),
                        "1.." + std::to_string(kModeCount - 1));
  }
  if (wire.depth() < -1 || wire.depth() > kDepthMax) {
    return InvalidValue("activations", index, "at depth " + std::to_string(wire.depth()),
                        "-1.." + std::to_string(kDepthMax));
  }
  TensorDef def;
  def.id = wire.id();
  def.key = {.name = wire.name(),
             .kind = static_cast<Kind>(wire.kind()),
             .output_path = wire.output_path(),
             .micro_batch = wire.micro_batch(),
             .call = wire.call(),
             .mode = static_cast<Mode>(wire.mode())};
  def.parent = wire.parent();
  def.class_name = wire.class_name();
  def.depth = wire.depth();
  return def;
}

// Ids of one batch's definitions follow each other.
template <typename Defs>
Status CheckDense(const char* field, const Defs& defs) {
  for (int i = 1; i < defs.size(); ++i) {
    if (defs[i].id() != std::uint64_t{defs[0].id()} + static_cast<unsigned>(i)) {
      return InvalidValue(
          field, static_cast<std::size_t>(i), "of id " + std::to_string(defs[i].id()),
          std::to_string(std::uint64_t{defs[0].id()} + static_cast<unsigned>(i)) + " (ids are dense)");
    }
  }
  return Status::Ok();
}

Status DefinitionsFromWire(const v1::Records& wire, KnownLayouts known, RecordBatch* batch) {
  STATCOLLECT_RETURN_IF_ERROR(CheckDense("activations", wire.activations()));
  STATCOLLECT_RETURN_IF_ERROR(CheckDense("layouts", wire.layouts()));
  for (int i = 0; i < wire.activations_size(); ++i) {
    auto def = ActivationFromWire(wire.activations(i), static_cast<std::size_t>(i));
    if (!def.ok()) return def.status();
    batch->activations.push_back(*std::move(def));
  }
  for (int i = 0; i < wire.layouts_size(); ++i) {
    const auto index = static_cast<std::size_t>(i);
    auto layout = LayoutFromWire(wire.layouts(i), index);
    if (!layout.ok()) return layout.status();
    if (i == 0 && layout->id > known.size()) {
      return InvalidValue("layouts", index, "of id " + std::to_string(layout->id),
                          "at most " + std::to_string(known.size()) + " (ids are dense over the session)");
    }
    if (layout->id < known.size() && !(known[layout->id] == *layout)) {
      return InvalidValue("layouts", index, "another definition of id " + std::to_string(layout->id),
                          "the one that the session gave before");
    }
    batch->layouts.push_back(*std::move(layout));
  }
  return Status::Ok();
}

// Of a shape that has been checked; 0 if it is not known.
std::uint64_t Elements(const Layout& layout) {
  if (!layout.Has(Statistic::kShape)) return 0;
  std::uint64_t count = 1;
  for (const std::int64_t size : layout.shape) count *= static_cast<std::uint64_t>(size);
  return count;
}

// Layouts of the session as they are with a batch's own definitions.
class LayoutTable {
 public:
  LayoutTable(KnownLayouts known, const std::vector<Layout>& own)
      : known_(known), own_(own), own_first_(own.empty() ? 0 : own.front().id) {}

  // nullptr if there is none.
  const Layout* Find(std::uint32_t id) const {
    if (id < known_.size()) return &known_[id];
    if (id >= own_first_ && id - own_first_ < own_.size()) return &own_[id - own_first_];
    return nullptr;
  }

 private:
  KnownLayouts known_;
  const std::vector<Layout>& own_;
  std::uint32_t own_first_;
};

// --- statistics

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
  for (const auto& [field, size] : columns) STATCOLLECT_RETURN_IF_ERROR(CheckLength(field, size, n));
  return wire.sample_count().empty() ? Status::Ok()
                                     : CheckLength("sample_count", wire.sample_count_size(), n);
}

constexpr std::uint32_t kCounts = BitOf(Statistic::kNan) | BitOf(Statistic::kInf) | BitOf(Statistic::kZero) |
                                  BitOf(Statistic::kNeg) | BitOf(Statistic::kPos) | BitOf(Statistic::kShape);

// With every count there they make up the tensor; with some of them they fit into it.
Status CheckCounts(const TensorStats& s, const Layout& layout, std::uint64_t components, std::size_t index) {
  if (!layout.Has(Statistic::kShape)) return Status::Ok();
  const std::pair<const char*, std::uint64_t> counts[] = {
      {"stats.nan", s.nan},   {"stats.pos_inf", s.pos_inf}, {"stats.neg_inf", s.neg_inf},
      {"stats.zero", s.zero}, {"stats.neg", s.neg},         {"stats.pos", s.pos}};
  std::uint64_t left = components;
  for (const auto& [field, count] : counts) {
    if (count > left) {
      return InvalidValue(field, index, std::to_string(count),
                          "counts that add up to the layout's " + std::to_string(components) + " components");
    }
    left -= count;
  }
  if (left == 0 || (layout.absent & kCounts) != 0) return Status::Ok();
  return InvalidValue("stats", index, std::to_string(left) + " components short in its counts",
                      "counts that add up to the layout's " + std::to_string(components) + " components");
}

// mean, std, l1 and l2 may overflow for float64 input near its limits; min and max are elements.
Status CheckMoments(const TensorStats& s, const Layout& layout, std::uint64_t components, std::size_t index) {
  constexpr std::uint32_t kTells = BitOf(Statistic::kNan) | BitOf(Statistic::kInf) | BitOf(Statistic::kShape);
  const bool has_finite = s.nan + s.pos_inf + s.neg_inf < components;
  if ((layout.absent & kTells) == 0 && s.has_finite != has_finite) {
    return InvalidValue("stats.has_finite", index, s.has_finite ? "true" : "false",
                        "what nan, pos_inf and neg_inf leave");
  }
  if (!s.has_finite) {
    const bool zero = s.min == 0 && s.max == 0 && s.mean == 0 && s.std == 0 && s.l1 == 0 && s.l2 == 0;
    return zero ? Status::Ok()
                : InvalidValue("stats", index,
                               "without finite elements but with a min, max, mean, std, l1 or l2",
                               "0 in each");
  }
  const bool both = layout.Has(Statistic::kMin) && layout.Has(Statistic::kMax);
  if (!std::isfinite(s.min) || !std::isfinite(s.max) || (both && s.min > s.max)) {
    return InvalidValue("stats.min", index, std::to_string(s.min) + " with max " + std::to_string(s.max),
                        "finite, min <= max");
  }
  if (s.std < 0 || s.l1 < 0 || s.l2 < 0) {
    return InvalidValue("stats", index, "of negative std, l1 or l2", "0 or more");
  }
  return Status::Ok();
}

// What a layout calls absent is 0, so that nothing takes it for a value.
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
    return InvalidValue("stats", index,
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
      return InvalidValue("stats.step", index, std::to_string(wire.step(i)),
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
    return Invalid("batch: stats.sketch_width is " + std::to_string(k) + "; expected 0, 16, 32 or 64");
  }
  std::size_t wide = 0;
  for (const std::uint32_t id : out->layout) wide += HasWideSketch(layouts.Find(id)->dtype) ? 1 : 0;
  STATCOLLECT_RETURN_IF_ERROR(Within("sums of " + std::to_string(wide) + " wide records",
                                     CheckLength("sketch_f64", wire.sketch_f64_size(), wide * k)));
  const std::size_t narrow = out->size() - wide;
  STATCOLLECT_RETURN_IF_ERROR(Within("sums of " + std::to_string(narrow) + " narrow records",
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
    const std::uint64_t max = std::min<std::uint64_t>(kSamplesMax, out->stats[i].numel * (complex ? 2 : 1));
    if (out->sample_count[i] > max) {
      return InvalidValue("stats.sample_count", i, std::to_string(out->sample_count[i]),
                          "at most " + std::to_string(max));
    }
    total += out->sample_count[i];
  }
  if (total != static_cast<std::uint64_t>(wire.samples_size())) {
    return Invalid("batch: stats.samples has " + std::to_string(wire.samples_size()) + " entries; expected " +
                   std::to_string(total) + ", the sum of stats.sample_count");
  }
  out->samples.assign(wire.samples().begin(), wire.samples().end());
  return Status::Ok();
}

Status StatsFromWire(const v1::StatColumns& wire, const LayoutTable& layouts, StatColumns* out) {
  STATCOLLECT_RETURN_IF_ERROR(CheckColumnLengths(wire, static_cast<std::size_t>(wire.activation_size())));
  STATCOLLECT_RETURN_IF_ERROR(RecordsFromWire(wire, layouts, out));
  STATCOLLECT_RETURN_IF_ERROR(SketchesFromWire(wire, layouts, out));
  return SamplesFromWire(wire, layouts, out);
}

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

// --- the smaller records

Result<MemoryRecord> FromWire(const v1::Memory& wire) {
  MemoryRecord record{.step = wire.step(),
                      .micro_batch = wire.micro_batch(),
                      .phase = static_cast<MemoryPhase>(wire.phase()),
                      .device = wire.device(),
                      .module = wire.module(),
                      .present = wire.present()};
  if (!InRange(wire.phase(), kMemoryPhaseCount)) {
    return Invalid("phase is " + std::to_string(wire.phase()) + "; expected 1.." +
                   std::to_string(kMemoryPhaseCount - 1));
  }
  STATCOLLECT_RETURN_IF_ERROR(CheckOptionalName("device", wire.device()));
  STATCOLLECT_RETURN_IF_ERROR(CheckOptionalName("module", wire.module()));
  if (wire.present() >> kMemoryQuantityCount != 0 || std::popcount(wire.present()) != wire.bytes_size()) {
    return Invalid("present is " + std::to_string(wire.present()) + " with " +
                   std::to_string(wire.bytes_size()) + " entries in bytes; expected one for each bit of 0.." +
                   std::to_string(kMemoryQuantityCount - 1) + " that is set");
  }
  int next = 0;
  for (int i = 0; i < kMemoryQuantityCount; ++i) {
    const auto quantity = static_cast<MemoryQuantity>(i);
    if (!record.Has(quantity)) continue;
    const std::int64_t bytes = wire.bytes(next++);
    const bool signed_quantity = quantity == MemoryQuantity::kAllocatedDelta;
    if (bytes < 0 && !signed_quantity) {
      return Invalid(std::string(Name(quantity)) + " is " + std::to_string(bytes) +
                     "; expected bytes from 0");
    }
    record.bytes[static_cast<std::size_t>(i)] = bytes;
  }
  return record;
}

Result<DensityRecord> FromWire(const v1::Density& wire) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("input", wire.input()));
  if (!InRange(wire.type(), kDensityTypeCount)) {
    return Invalid("type is " + std::to_string(wire.type()) + "; expected 1.." +
                   std::to_string(kDensityTypeCount - 1));
  }
  if (wire.valid() > wire.total() || wire.total() >= kElementsMax) {
    return Invalid("valid is " + std::to_string(wire.valid()) + " of " + std::to_string(wire.total()) +
                   " elements; expected at most all, and fewer than 2^62");
  }
  if (wire.valid_per_sample_size() > static_cast<int>(kDensitySamplesMax)) {
    return Invalid("valid_per_sample has " + std::to_string(wire.valid_per_sample_size()) +
                   " entries; at most " + std::to_string(kDensitySamplesMax) + " are accepted");
  }
  std::uint64_t left = wire.valid();
  for (const std::uint64_t valid : wire.valid_per_sample()) {
    if (valid > left) left = kElementsMax;  // more than there are
    left -= std::min(valid, left);
  }
  if (wire.valid_per_sample_size() > 0 && left != 0) {
    return Invalid("valid_per_sample does not add up to valid, " + std::to_string(wire.valid()));
  }
  return DensityRecord{.step = wire.step(),
                       .micro_batch = wire.micro_batch(),
                       .input = wire.input(),
                       .type = static_cast<DensityType>(wire.type()),
                       .pad_index = wire.pad_index(),
                       .valid = wire.valid(),
                       .total = wire.total(),
                       .valid_per_sample = {wire.valid_per_sample().begin(), wire.valid_per_sample().end()}};
}

Result<SettingRecord> FromWire(const v1::Setting& wire) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("setting", wire.name()));
  STATCOLLECT_RETURN_IF_ERROR(
      Within("setting '" + Printable(wire.name()) + "'", CheckText("value", wire.value())));
  return SettingRecord{.name = wire.name(), .value = wire.value()};
}

// Chunks of any tensor that the session has a layout for, within its size and the limits.
Status CapturesFromWire(const v1::Records& wire, const LayoutTable& layouts, RecordBatch* batch) {
  for (int i = 0; i < wire.captures_size(); ++i) {
    const v1::CaptureChunk& c = wire.captures(i);
    const auto index = static_cast<std::size_t>(i);
    const Layout* layout = layouts.Find(c.layout());
    if (layout == nullptr || !layout->Has(Statistic::kShape)) {
      return InvalidValue("captures", index, "of layout " + std::to_string(c.layout()),
                          "a layout with a shape that the session has defined");
    }
    const std::size_t element = DTypeBytes(layout->dtype);
    if (c.elements() > Elements(*layout) || c.elements() > kCaptureBytesMax / element) {
      return InvalidValue("captures", index, "of " + std::to_string(c.elements()) + " elements",
                          "at most the tensor's " + std::to_string(Elements(*layout)) + ", in at most " +
                              std::to_string(kCaptureBytesMax) + " bytes");
    }
    const std::uint64_t bytes = c.elements() * element;
    if (c.data().size() > kCaptureChunkBytesMax || c.offset() > bytes ||
        c.data().size() > bytes - c.offset() || (c.data().empty() && bytes > 0)) {
      return InvalidValue("captures", index,
                          "of " + std::to_string(c.data().size()) + " bytes at " + std::to_string(c.offset()),
                          "1.." + std::to_string(kCaptureChunkBytesMax) + " bytes within the " +
                              std::to_string(bytes) + " of its elements");
    }
    batch->captures.push_back({.step = c.step(),
                               .activation = c.activation(),
                               .layout = c.layout(),
                               .elements = c.elements(),
                               .offset = c.offset(),
                               .data = c.data()});
  }
  return Status::Ok();
}

void CapturesToWire(const RecordBatch& batch, v1::Records* wire) {
  for (const CaptureChunk& chunk : batch.captures) {
    v1::CaptureChunk* c = wire->add_captures();
    c->set_activation(chunk.activation);
    c->set_layout(chunk.layout);
    c->set_step(chunk.step);
    c->set_elements(chunk.elements);
    c->set_offset(chunk.offset);
    c->set_data(chunk.data);
  }
}

// Of any tensor that the session has a layout for; no more components than it has.
Status ExponentsFromWire(const v1::Records& wire, const LayoutTable& layouts, RecordBatch* batch) {
  for (int i = 0; i < wire.exponents_size(); ++i) {
    const v1::Exponents& e = wire.exponents(i);
    const auto index = static_cast<std::size_t>(i);
    const Layout* layout = layouts.Find(e.layout());
    if (layout == nullptr || !layout->Has(Statistic::kShape)) {
      return InvalidValue("exponents", index, "of layout " + std::to_string(e.layout()),
                          "a layout with a shape that the session has defined");
    }
    const std::int64_t end = std::int64_t{e.lowest()} + e.counts_size();
    if (e.lowest() < kExponentLowest || end > kExponentHighest + 1 ||
        (e.counts_size() > 0 && (e.counts(0) == 0 || e.counts(e.counts_size() - 1) == 0))) {
      return InvalidValue(
          "exponents", index,
          "of " + std::to_string(e.counts_size()) + " counts from exponent " + std::to_string(e.lowest()),
          "counts from the first to the last that is not 0, within " + std::to_string(kExponentLowest) +
              ".." + std::to_string(kExponentHighest));
    }
    std::uint64_t left = Elements(*layout) * (IsComplex(layout->dtype) ? 2 : 1);
    for (const std::uint64_t count : e.counts()) {
      if (count > left)
        return InvalidValue("exponents", index, "of more components than the tensor has", "at most all");
      left -= count;
    }
    batch->exponents.push_back({.step = e.step(),
                                .activation = e.activation(),
                                .layout = e.layout(),
                                .lowest = e.lowest(),
                                .counts = {e.counts().begin(), e.counts().end()}});
  }
  return Status::Ok();
}

void ExponentsToWire(const RecordBatch& batch, v1::Records* wire) {
  for (const ExponentRecord& record : batch.exponents) {
    v1::Exponents* e = wire->add_exponents();
    e->set_activation(record.activation);
    e->set_layout(record.layout);
    e->set_step(record.step);
    e->set_lowest(record.lowest);
    e->mutable_counts()->Assign(record.counts.begin(), record.counts.end());
  }
}

// One kind of small records of a batch, after its own FromWire.
template <typename Wire, typename Record>
Status AllFromWire(const char* field, const google::protobuf::RepeatedPtrField<Wire>& wire,
                   std::vector<Record>* records) {
  for (int i = 0; i < wire.size(); ++i) {
    auto record = FromWire(wire[i]);
    if (!record.ok()) return Within("batch: " + At(field, static_cast<std::size_t>(i)), record.status());
    records->push_back(*std::move(record));
  }
  return Status::Ok();
}

Status SmallRecordsFromWire(const v1::Records& wire, RecordBatch* batch) {
  for (int i = 0; i < wire.scalars_size(); ++i) {
    const v1::Scalar& s = wire.scalars(i);
    STATCOLLECT_RETURN_IF_ERROR(Within("batch: " + At("scalars", static_cast<std::size_t>(i)),
                                       ValidateTensorName("scalar", s.name())));
    batch->scalars.push_back({s.name(), s.step(), s.micro_batch(), s.value()});
  }
  for (int i = 0; i < wire.events_size(); ++i) {
    const v1::Event& e = wire.events(i);
    const std::string place = "batch: " + At("events", static_cast<std::size_t>(i));
    STATCOLLECT_RETURN_IF_ERROR(Within(place, ValidateTensorName("event kind", e.kind())));
    STATCOLLECT_RETURN_IF_ERROR(Within(place, CheckText("text", e.text())));
    STATCOLLECT_RETURN_IF_ERROR(Within(place, CheckTextMap("field", e.fields())));
    batch->events.push_back({e.kind(), e.step(), e.unix_nanos(), e.text(), CopyMap(e.fields())});
  }
  STATCOLLECT_RETURN_IF_ERROR(AllFromWire("memory", wire.memory(), &batch->memory));
  STATCOLLECT_RETURN_IF_ERROR(AllFromWire("densities", wire.densities(), &batch->densities));
  STATCOLLECT_RETURN_IF_ERROR(AllFromWire("settings", wire.settings(), &batch->settings));
  for (const v1::StepEnd& s : wire.steps())
    batch->steps.push_back({s.step(), s.unix_nanos(), s.micro_batches()});
  return Status::Ok();
}

void ToWire(const MemoryRecord& record, v1::Memory* wire) {
  wire->set_step(record.step);
  wire->set_micro_batch(record.micro_batch);
  wire->set_phase(static_cast<v1::MemoryPhase>(record.phase));
  wire->set_device(record.device);
  wire->set_module(record.module);
  wire->set_present(record.present);
  for (int i = 0; i < kMemoryQuantityCount; ++i) {
    const auto quantity = static_cast<MemoryQuantity>(i);
    if (record.Has(quantity)) wire->add_bytes(record.Of(quantity));
  }
}

void ToWire(const DensityRecord& record, v1::Density* wire) {
  wire->set_step(record.step);
  wire->set_micro_batch(record.micro_batch);
  wire->set_input(record.input);
  wire->set_type(static_cast<v1::DensityType>(record.type));
  wire->set_pad_index(record.pad_index);
  wire->set_valid(record.valid);
  wire->set_total(record.total);
  wire->mutable_valid_per_sample()->Assign(record.valid_per_sample.begin(), record.valid_per_sample.end());
}

void SmallRecordsToWire(const RecordBatch& batch, v1::Records* wire) {
  for (const ScalarRecord& record : batch.scalars) {
    v1::Scalar* s = wire->add_scalars();
    s->set_name(record.name);
    s->set_step(record.step);
    s->set_micro_batch(record.micro_batch);
    s->set_value(record.value);
  }
  for (const EventRecord& record : batch.events) {
    v1::Event* e = wire->add_events();
    e->set_kind(record.kind);
    e->set_step(record.step);
    e->set_unix_nanos(record.unix_nanos);
    e->set_text(record.text);
    e->mutable_fields()->insert(record.fields.begin(), record.fields.end());
    if (record.from_collector) e->set_origin("collector");
  }
  for (const MemoryRecord& record : batch.memory) ToWire(record, wire->add_memory());
  for (const DensityRecord& record : batch.densities) ToWire(record, wire->add_densities());
  for (const SettingRecord& record : batch.settings) {
    v1::Setting* s = wire->add_settings();
    s->set_name(record.name);
    s->set_value(record.value);
  }
  for (const StepRecord& record : batch.steps) {
    v1::StepEnd* s = wire->add_steps();
    s->set_step(record.step);
    s->set_unix_nanos(record.unix_nanos);
    s->set_micro_batches(record.micro_batches);
  }
}

void DefinitionsToWire(const RecordBatch& batch, v1::Records* wire) {
  for (const TensorDef& def : batch.activations) {
    v1::ActivationDef* d = wire->add_activations();
    d->set_id(def.id);
    d->set_name(def.key.name);
    d->set_kind(static_cast<v1::Kind>(def.key.kind));
    d->set_output_path(def.key.output_path);
    d->set_micro_batch(def.key.micro_batch);
    d->set_call(def.key.call);
    d->set_mode(static_cast<v1::Mode>(def.key.mode));
    d->set_parent(def.parent);
    d->set_class_name(def.class_name);
    d->set_depth(def.depth);
  }
  for (const Layout& layout : batch.layouts) {
    v1::Layout* l = wire->add_layouts();
    l->set_id(layout.id);
    l->set_dtype(static_cast<v1::DType>(layout.dtype));
    l->mutable_shape()->Assign(layout.shape.begin(), layout.shape.end());
    l->set_absent(layout.absent);
    l->set_untrusted(layout.untrusted);
    l->set_hash_kind(static_cast<v1::HashKind>(layout.hash_kind));
  }
}

Status CheckHeader(const v1::Batch& wire) {
  if (wire.first_seq() == 0) return Invalid("batch: first_seq is 0; sequence numbers start at 1");
  if (wire.n() == 0 || wire.n() > kBatchRecordsMax) {
    return Invalid("batch: n is " + std::to_string(wire.n()) + "; expected 1.." +
                   std::to_string(kBatchRecordsMax));
  }
  if (wire.first_seq() > std::numeric_limits<std::uint64_t>::max() - wire.n()) {
    return Invalid("batch: first_seq " + std::to_string(wire.first_seq()) + " with " +
                   std::to_string(wire.n()) + " records passes the last sequence number");
  }
  if (const std::uint32_t crc = Crc32c(wire.records()); crc != wire.crc()) {
    return Status(Code::kDataLoss, "batch: CRC-32C of records is " + std::to_string(crc) +
                                       "; the sender computed " + std::to_string(wire.crc()) +
                                       "; the batch was damaged on its way: send it again");
  }
  return Status::Ok();
}

}  // namespace

v1::Hello ToWire(const SessionInfo& info, std::uint64_t first_unacked_seq) {
  v1::Hello hello;
  hello.set_protocol_version(kProtocolVersion);
  hello.set_run(info.run);
  hello.set_session_id(info.session.data(), info.session.size());
  hello.set_first_unacked_seq(first_unacked_seq);
  hello.set_rank(info.rank);
  hello.set_local_rank(info.local_rank);
  hello.set_world_size(info.world_size);
  hello.set_host(info.host);
  hello.set_pid(info.pid);
  hello.set_start_unix_nanos(info.start_unix_nanos);
  hello.set_launch(info.launch);
  hello.set_if_exists(static_cast<v1::IfExists>(info.if_exists));
  hello.set_agent_version(info.agent_version);
  hello.mutable_config()->insert(info.config.begin(), info.config.end());
  return hello;
}

Result<SessionInfo> FromWire(const v1::Hello& hello) {
  if (hello.protocol_version() != kProtocolVersion) {
    return Status(Code::kFailedPrecondition, "hello: protocol version is " +
                                                 std::to_string(hello.protocol_version()) +
                                                 "; this build speaks " + std::to_string(kProtocolVersion) +
                                                 "; use agent and collector of matching releases");
  }
  STATCOLLECT_RETURN_IF_ERROR(Within("hello", ValidateRunName(hello.run())));
  if (hello.session_id().size() != kSessionIdBytes) {
    return Invalid("hello: session_id has " + std::to_string(hello.session_id().size()) +
                   " bytes; expected 16");
  }
  if (hello.first_unacked_seq() == 0)
    return Invalid("hello: first_unacked_seq is 0; sequence numbers start at 1");
  if (hello.rank() >= hello.world_size()) {
    return Invalid("hello: rank is " + std::to_string(hello.rank()) + " of world_size " +
                   std::to_string(hello.world_size()) + "; expected rank < world_size");
  }
  if (hello.if_exists() < 0 || hello.if_exists() >= kIfExistsCount) {
    return Invalid("hello: if_exists is " + std::to_string(hello.if_exists()) + "; expected 0.." +
                   std::to_string(kIfExistsCount - 1));
  }
  STATCOLLECT_RETURN_IF_ERROR(Within("hello", CheckOptionalName("host", hello.host())));
  STATCOLLECT_RETURN_IF_ERROR(Within("hello", CheckOptionalName("launch", hello.launch())));
  STATCOLLECT_RETURN_IF_ERROR(Within("hello", CheckOptionalName("agent version", hello.agent_version())));
  STATCOLLECT_RETURN_IF_ERROR(Within("hello", CheckTextMap("configuration key", hello.config())));

  SessionInfo info;
  info.run = hello.run();
  std::copy(hello.session_id().begin(), hello.session_id().end(), info.session.begin());
  info.launch = hello.launch();
  const bool unspecified = hello.if_exists() == v1::IF_EXISTS_UNSPECIFIED;
  info.if_exists = unspecified ? IfExists::kError : static_cast<IfExists>(hello.if_exists());
  info.rank = hello.rank();
  info.local_rank = hello.local_rank();
  info.world_size = hello.world_size();
  info.host = hello.host();
  info.pid = hello.pid();
  info.start_unix_nanos = hello.start_unix_nanos();
  info.agent_version = hello.agent_version();
  info.config = CopyMap(hello.config());
  return info;
}

void ToWire(const RecordBatch& batch, KnownLayouts known, v1::Records* records) {
  DefinitionsToWire(batch, records);
  if (!batch.stats.empty()) {
    StatsToWire(batch.stats, LayoutTable(known, batch.layouts), records->mutable_stats());
  }
  SmallRecordsToWire(batch, records);
  CapturesToWire(batch, records);
  ExponentsToWire(batch, records);
}

v1::Batch ToWire(const RecordBatch& batch, KnownLayouts known) {
  assert(batch.records() > 0);
  v1::Records records;
  ToWire(batch, known, &records);
  v1::Batch wire;
  wire.set_first_seq(batch.first_seq);
  wire.set_n(static_cast<std::uint32_t>(batch.records()));
  records.SerializeToString(wire.mutable_records());
  wire.set_crc(Crc32c(wire.records()));
  return wire;
}

Result<RecordBatch> FromWire(const v1::Records& records, KnownLayouts known) {
  RecordBatch batch;
  STATCOLLECT_RETURN_IF_ERROR(DefinitionsFromWire(records, known, &batch));
  STATCOLLECT_RETURN_IF_ERROR(
      StatsFromWire(records.stats(), LayoutTable(known, batch.layouts), &batch.stats));
  STATCOLLECT_RETURN_IF_ERROR(SmallRecordsFromWire(records, &batch));
  STATCOLLECT_RETURN_IF_ERROR(CapturesFromWire(records, LayoutTable(known, batch.layouts), &batch));
  STATCOLLECT_RETURN_IF_ERROR(ExponentsFromWire(records, LayoutTable(known, batch.layouts), &batch));
  return batch;
}

Result<RecordBatch> FromWire(const v1::Batch& wire, KnownLayouts known) {
  STATCOLLECT_RETURN_IF_ERROR(CheckHeader(wire));
  v1::Records records;
  if (!records.ParseFromString(wire.records())) {
    return Invalid("batch: records is not a serialized statcollect.v1.Records");
  }
  const std::uint64_t found =
      static_cast<std::uint64_t>(records.stats().activation_size()) +
      static_cast<std::uint64_t>(records.scalars_size()) + static_cast<std::uint64_t>(records.events_size()) +
      static_cast<std::uint64_t>(records.memory_size()) +
      static_cast<std::uint64_t>(records.densities_size()) +
      static_cast<std::uint64_t>(records.settings_size()) + static_cast<std::uint64_t>(records.steps_size()) +
      static_cast<std::uint64_t>(records.captures_size()) +
      static_cast<std::uint64_t>(records.exponents_size());
  if (found != wire.n()) {
    return Invalid("batch: records holds " + std::to_string(found) +
                   " records; expected n = " + std::to_string(wire.n()));
  }
  auto batch = FromWire(records, known);
  if (batch.ok()) batch->first_seq = wire.first_seq();
  return batch;
}

v1::AgentCounters ToWire(const AgentCounters& counters) {
  v1::AgentCounters wire;
  wire.set_produced(counters.produced);
  wire.set_acked(counters.acked);
  wire.set_pending(counters.pending);
  wire.mutable_dropped()->insert(counters.dropped_by_cause.begin(), counters.dropped_by_cause.end());
  return wire;
}

AgentCounters FromWire(const v1::AgentCounters& wire) {
  AgentCounters counters;
  counters.produced = wire.produced();
  counters.acked = wire.acked();
  counters.pending = wire.pending();
  counters.dropped_by_cause = {wire.dropped().begin(), wire.dropped().end()};
  return counters;
}

}  // namespace statcollect
