#include "agent/staging/registry.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "common/names.h"

namespace statcollect {
namespace {

constexpr std::int32_t kDepthMax = 1 << 20;

Status ValidateOptional(std::string_view what, std::string_view name) {
  return name.empty() ? Status::Ok() : ValidateTensorName(what, name);
}

std::size_t Mix(std::size_t seed, std::size_t value) {
  return seed ^ (value + 0x9e3779b97f4a7c15u + (seed << 6) + (seed >> 2));
}

std::size_t HashLayout(DType dtype, std::span<const std::int64_t> shape,
                       const PlacementView* placement) {
  std::size_t hash = Mix(static_cast<std::size_t>(dtype), shape.size());
  const auto add = [&hash](std::span<const std::int64_t> numbers) {
    for (const std::int64_t number : numbers) hash = Mix(hash, static_cast<std::size_t>(number));
  };
  add(shape);
  if (placement == nullptr) return hash;
  add(placement->global_shape);
  add(placement->boxes);
  add(placement->ranges);
  return Mix(Mix(Mix(hash, placement->piece), placement->unordered),
             std::size_t{placement->pieces} << 1 | (placement->partial ? 1 : 0));
}

bool Matches(const Layout& layout, DType dtype, std::span<const std::int64_t> shape,
             const PlacementView* placement) {
  return layout.dtype == dtype && layout.placement.has_value() == (placement != nullptr) &&
         std::equal(shape.begin(), shape.end(), layout.shape.begin(), layout.shape.end()) &&
         (placement == nullptr || Matches(*layout.placement, *placement));
}

template <typename T>
std::vector<T> Slice(const std::vector<T>& all, std::uint32_t first, std::uint32_t last) {
  return {all.begin() + first, all.begin() + last + 1};
}

}  // namespace

Status Validate(const IdentityView& identity) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("activation", identity.name));
  STATCOLLECT_RETURN_IF_ERROR(ValidateOptional("output path", identity.output_path));
  STATCOLLECT_RETURN_IF_ERROR(ValidateOptional("parent", identity.parent));
  STATCOLLECT_RETURN_IF_ERROR(ValidateOptional("class name", identity.class_name));
  const auto bad = [&](const char* what, long long found, const std::string& expected) {
    return Status(Code::kInvalidArgument, "observe '" + Printable(identity.name) + "': " + what +
                                              " is " + std::to_string(found) + "; expected " +
                                              expected);
  };
  const int kind = static_cast<int>(identity.kind), mode = static_cast<int>(identity.mode);
  if (kind < 1 || kind >= kKindCount)
    return bad("kind", kind, "1.." + std::to_string(kKindCount - 1));
  if (mode < 1 || mode >= kModeCount)
    return bad("mode", mode, "1.." + std::to_string(kModeCount - 1));
  if (identity.depth < -1 || identity.depth > kDepthMax) {
    return bad("depth", identity.depth, "-1.." + std::to_string(kDepthMax));
  }
  return Status::Ok();
}

void Definitions::Add(TensorDef def) {
  MutexLock lock(mutex_);
  activations_.push_back(std::move(def));
}

void Definitions::Add(Layout layout) {
  MutexLock lock(mutex_);
  layouts_.push_back(std::move(layout));
}

std::vector<TensorDef> Definitions::Activations(std::uint32_t first, std::uint32_t last) const {
  MutexLock lock(mutex_);
  return Slice(activations_, first, last);
}

std::vector<Layout> Definitions::Layouts(std::uint32_t first, std::uint32_t last) const {
  MutexLock lock(mutex_);
  return Slice(layouts_, first, last);
}

std::set<std::string> Definitions::Names(std::size_t names_max) const {
  MutexLock lock(mutex_);
  std::set<std::string> names;
  for (const TensorDef& def : activations_) {
    if (names.size() == names_max) break;
    names.insert(def.key.name);
  }
  return names;
}

std::size_t Registry::KeyHash::operator()(const KeyView& key) const {
  std::size_t hash = std::hash<std::string_view>{}(key.name);
  hash = Mix(hash, std::hash<std::string_view>{}(key.output_path));
  hash = Mix(hash, (static_cast<std::size_t>(key.kind) << 8) | static_cast<std::size_t>(key.mode));
  return Mix(hash, (static_cast<std::size_t>(key.micro_batch) << 32) | key.call);
}

Registry::KeyView Registry::KeyOf(const IdentityView& identity) {
  return {identity.name, identity.output_path, identity.kind,
          identity.mode, identity.micro_batch, identity.call};
}

Result<std::uint32_t> Registry::Intern(const IdentityView& identity) {
  if (const auto found = handles_.find(KeyOf(identity)); found != handles_.end())
    return found->second;
  STATCOLLECT_RETURN_IF_ERROR(Validate(identity));
  if (activations_.size() >= kActivationsMax) {
    return Status(Code::kResourceExhausted, "observe '" + Printable(identity.name) +
                                                "': " + std::to_string(kActivationsMax) +
                                                " different activations were already observed; no "
                                                "more are accepted; use names that repeat from "
                                                "step to step");
  }
  Activation activation;
  activation.def.key = {.name = std::string(identity.name),
                        .kind = identity.kind,
                        .output_path = std::string(identity.output_path),
                        .micro_batch = identity.micro_batch,
                        .call = identity.call,
                        .mode = identity.mode};
  activation.def.parent = identity.parent;
  activation.def.class_name = identity.class_name;
  activation.def.depth = identity.depth;
  const auto handle = static_cast<std::uint32_t>(activations_.size());
  const TensorKey& own = activations_.emplace_back(std::move(activation)).def.key;
  handles_.emplace(
      KeyView{own.name, own.output_path, own.kind, own.mode, own.micro_batch, own.call}, handle);
  return handle;
}

Result<std::uint32_t> Registry::InternCall(const Activation& activation, std::uint32_t call) {
  const TensorDef& def = activation.def;
  return Intern({.name = def.key.name,
                 .kind = def.key.kind,
                 .output_path = def.key.output_path,
                 .micro_batch = def.key.micro_batch,
                 .call = call,
                 .mode = def.key.mode,
                 .parent = def.parent,
                 .class_name = def.class_name,
                 .depth = def.depth});
}

Result<std::uint32_t> Registry::InternNextCall(IdentityView identity, std::uint64_t step) {
  identity.call = kNone;
  auto found = calls_.find(KeyOf(identity));
  if (found == calls_.end()) {
    identity.call = 0;
    const Result<std::uint32_t> first = Intern(identity);
    if (!first.ok()) return first;
    const TensorKey& own = activations_[*first].def.key;
    const KeyView key{own.name, own.output_path, own.kind, own.mode, own.micro_batch, kNone};
    found =
        calls_.emplace(key, Calls{.next_step = step, .next_call = 0, .handles = {*first}}).first;
  }
  Calls& calls = found->second;
  if (calls.next_step <= step) {
    calls.next_step = step + 1;
    calls.next_call = 0;
  }
  identity.call = calls.next_call;
  if (calls.next_call == calls.handles.size()) {
    const Result<std::uint32_t> handle = Intern(identity);
    if (!handle.ok()) return handle;
    calls.handles.push_back(*handle);
  }
  return calls.handles[calls.next_call++];
}

Registry::Activation* Registry::Find(std::uint32_t handle) {
  return handle < activations_.size() ? &activations_[handle] : nullptr;
}

Status Registry::UnknownHandle(std::uint32_t handle) {
  return Status(Code::kInvalidArgument,
                "observe: handle " + std::to_string(handle) +
                    " was never given out; expected one that Intern returned");
}

std::uint32_t Registry::Define(Activation* activation) {
  if (!activation->defined) {
    activation->def.id = defined_;
    definitions_->Add(activation->def);
    activation->defined = true;
    ++defined_;
  }
  return activation->def.id;
}

std::uint32_t Registry::FindLayout(DType dtype, std::span<const std::int64_t> shape,
                                   const PlacementView* placement, std::uint32_t hint) const {
  if (hint < layouts_.size() && Matches(layouts_[hint], dtype, shape, placement)) return hint;
  const auto [first, last] = layout_ids_.equal_range(HashLayout(dtype, shape, placement));
  for (auto it = first; it != last; ++it) {
    if (Matches(layouts_[it->second], dtype, shape, placement)) return it->second;
  }
  return kNone;
}

Status Registry::CheckNewLayout(const Activation& activation, std::span<const std::int64_t> shape,
                                const PlacementView* placement) {
  const Status fits = placement == nullptr ? Status::Ok() : CheckPlacement(shape, *placement);
  if (fits.ok()) return fits;
  return {fits.code(), "observe '" + Printable(activation.def.key.name) + "': " + fits.message()};
}

std::uint32_t Registry::AddLayout(DType dtype, std::span<const std::int64_t> shape,
                                  const PlacementView* placement) {
  if (layouts_.size() >= kLayoutsMax) return kNone;
  const auto id = static_cast<std::uint32_t>(layouts_.size());
  Layout layout{id, dtype, {shape.begin(), shape.end()}};
  if (placement != nullptr) {
    layout.placement = Copy(*placement);
    if (placement->unordered != 0) layout.hash_kind = HashKind::kRows3;
  }
  definitions_->Add(layouts_.emplace_back(std::move(layout)));
  layout_ids_.emplace(HashLayout(dtype, shape, placement), id);
  return id;
}

}  // namespace statcollect
