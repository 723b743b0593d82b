#include "proto/convert/definitions.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "common/names.h"
#include "common/placement.h"
#include "proto/convert/checks.h"

namespace statcollect::convert {
namespace {

constexpr std::int32_t kDepthMax = 1 << 20;

Result<std::uint64_t> ElementCount(std::span<const std::int64_t> shape, std::size_t index) {
  std::uint64_t count = 1;
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0)
      return InvalidValue("layouts", index, "of negative size " + std::to_string(size),
                          "sizes >= 0");
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
    return InvalidValue(
        "layouts", index, "without statistics of unknown numbers",
        "bits 0.." + std::to_string(kStatisticCount - 1) + " in absent and untrusted");
  }
  if ((layout.absent & layout.untrusted) != 0) {
    return InvalidValue("layouts", index, "with statistics both absent and untrusted",
                        "one of the two");
  }
  if (!layout.Has(Statistic::kShape) && !layout.shape.empty()) {
    return InvalidValue(
        "layouts", index,
        "of unknown shape with " + std::to_string(layout.shape.size()) + " dimensions", "none");
  }
  const int kind = static_cast<int>(layout.hash_kind);
  if (kind >= 0 && kind < kHashKindCount) return Status::Ok();
  return InvalidValue("layouts", index, "of hash kind " + std::to_string(kind),
                      "0.." + std::to_string(kHashKindCount - 1));
}

std::span<const std::int64_t> NumbersOf(
    const google::protobuf::RepeatedField<std::int64_t>& field) {
  return {field.data(), static_cast<std::size_t>(field.size())};
}

// Copies only what has been checked.
Result<Placement> PlacementFromWire(const v1::Placement& wire, const Layout& layout,
                                    std::size_t index) {
  if (!layout.Has(Statistic::kShape))
    return InvalidValue("layouts", index, "of unknown shape with a placement", "none");
  const PlacementView view{.global_shape = NumbersOf(wire.global_shape()),
                           .boxes = NumbersOf(wire.boxes()),
                           .ranges = NumbersOf(wire.ranges()),
                           .partial = wire.partial(),
                           .piece = wire.piece(),
                           .pieces = std::max<std::uint32_t>(wire.pieces(), 1),
                           .unordered = wire.unordered()};
  const Status fits = CheckPlacement(layout.shape, view);
  if (!fits.ok()) return Within("batch: " + At("layouts", index), fits);
  return Copy(view);
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
  if (!wire.has_placement()) return layout;
  auto placement = PlacementFromWire(wire.placement(), layout, index);
  if (!placement.ok()) return placement.status();
  layout.placement = *std::move(placement);
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
      return InvalidValue(field, static_cast<std::size_t>(i),
                          "of id " + std::to_string(defs[i].id()),
                          std::to_string(std::uint64_t{defs[0].id()} + static_cast<unsigned>(i)) +
                              " (ids are dense)");
    }
  }
  return Status::Ok();
}

void PlacementToWire(const Placement& placement, v1::Placement* wire) {
  wire->mutable_global_shape()->Assign(placement.global_shape.begin(),
                                       placement.global_shape.end());
  wire->mutable_boxes()->Assign(placement.boxes.begin(), placement.boxes.end());
  wire->mutable_ranges()->Assign(placement.ranges.begin(), placement.ranges.end());
  wire->set_partial(placement.partial);
  wire->set_piece(placement.piece);
  wire->set_pieces(placement.pieces);
  wire->set_unordered(placement.unordered);
}

}  // namespace

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
    if (layout.placement) PlacementToWire(*layout.placement, l->mutable_placement());
  }
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
      return InvalidValue(
          "layouts", index, "of id " + std::to_string(layout->id),
          "at most " + std::to_string(known.size()) + " (ids are dense over the session)");
    }
    if (layout->id < known.size() && !(known[layout->id] == *layout)) {
      return InvalidValue("layouts", index,
                          "another definition of id " + std::to_string(layout->id),
                          "the one that the session gave before");
    }
    batch->layouts.push_back(*std::move(layout));
  }
  return Status::Ok();
}

}  // namespace statcollect::convert
