#include "server/query/compare/alignment.h"

#include <algorithm>

#include "common/text.h"
#include "server/query/compare/step_order.h"

namespace statcollect::query {
namespace {

std::vector<ActivationTraits> TraitsOf(const RankCatalogue& catalogue,
                                       const Alignment::Options& options) {
  std::vector<ActivationTraits> traits;
  traits.reserve(catalogue.activations.size());
  for (const TensorDef& def : catalogue.activations) {
    traits.push_back({.stage = StageOf(def.key),
                      .wanted = options.wanted[static_cast<std::size_t>(def.key.kind)]});
  }
  return traits;
}

bool Equal(const RankCatalogue& a, const RankCatalogue& b) {
  return a.activations == b.activations && a.layouts == b.layouts;
}

// Wrappers of training frameworks, which name what they wrap "module".
std::string_view Unwrapped(std::string_view name) {
  constexpr std::string_view kWrapper = "module.";
  while (name.starts_with(kWrapper)) name.remove_prefix(kWrapper.size());
  return name;
}

// A module that only passes its input on, where other variants have one that computes.
bool PassesOn(const TensorDef& def) {
  return def.class_name == "Identity" || def.class_name == "IdentityOp";
}

// Activations of a run that have no counterpart yet, by identity.
class Left {
 public:
  Left(const RankCatalogue& catalogue, const std::vector<std::uint32_t>& matched)
      : defs_(catalogue.activations), matched_(matched) {
    for (const TensorDef& def : catalogue.activations) {
      if (matched[def.id] != Alignment::kNone) continue;
      by_key_.emplace(def.key, def.id);
      TensorKey plain = def.key;
      plain.name = Unwrapped(def.key.name);
      if (plain.name != def.key.name) by_key_.emplace(std::move(plain), def.id);
    }
  }
  // The activation with this name and the rest of `like`; otherwise the name's only output there,
  // whatever its path.
  std::optional<std::uint32_t> Find(const TensorDef& like, const std::string& name) const {
    TensorKey key = like.key;
    key.name = name;
    if (const auto found = by_key_.find(key); found != by_key_.end() && Fits(found->second, like))
      return found->second;
    key.output_path.clear();
    std::optional<std::uint32_t> only;
    for (auto it = by_key_.lower_bound(key); it != by_key_.end(); ++it) {
      const TensorKey& other = it->first;
      if (other.name != key.name || other.kind != key.kind) break;
      if (other.micro_batch != key.micro_batch || other.call != key.call ||
          other.mode != key.mode || !Fits(it->second, like))
        continue;
      if (only) return std::nullopt;
      only = it->second;
    }
    return only;
  }
  // Whether another name has been matched with it.
  bool IsTaken(const TensorDef& like, const std::string& name) const {
    TensorKey key = like.key;
    key.name = name;
    const auto found = by_key_.find(key);
    return found != by_key_.end() && matched_[found->second] != Alignment::kNone;
  }

 private:
  bool Fits(std::uint32_t id, const TensorDef& like) const {
    return matched_[id] == Alignment::kNone && (PassesOn(like) || !PassesOn(defs_[id]));
  }

  const std::vector<TensorDef>& defs_;
  const std::vector<std::uint32_t>& matched_;
  std::map<TensorKey, std::uint32_t> by_key_;
};

}  // namespace

Alignment::Alignment(const RankCatalogue& a, const RankCatalogue& b, const Options& options,
                     const std::vector<OrderMatch>& by_order)
    : a_(a),
      b_(b),
      b_of_a_(a.activations.size(), kNone),
      a_of_b_(b.activations.size(), kNone),
      traits_a_(TraitsOf(a, options)),
      traits_b_(TraitsOf(b, options)),
      marks_a_(a.activations.size()),
      marks_b_(b.activations.size()) {
  MatchByIdentity();
  const bool all = std::all_of(traits_a_.begin(), traits_a_.end(),
                               [](const ActivationTraits& of) { return of.wanted; });
  same_ids_ = all && Equal(a, b);
  if (same_ids_) return;
  if (options.names != nullptr) MatchByNames(*options.names);
  if (!by_order.empty()) MatchByOrder(by_order);
  std::set<std::tuple<std::string, std::string, std::string, double>> noted;
  std::erase_if(renamed_, [&](const AlignedNames& names) {
    return !noted.emplace(names.a, names.b, names.method, names.confidence).second;
  });
}

void Alignment::Match(std::uint32_t id_a, std::uint32_t id_b) {
  b_of_a_[id_a] = id_b;
  a_of_b_[id_b] = id_a;
}

void Alignment::MatchByIdentity() {
  const auto& defs_a = a_.activations;
  const auto& defs_b = b_.activations;
  std::map<TensorKey, std::uint32_t> ids;  // of what is not at its place
  for (std::size_t i = 0; i < defs_b.size(); ++i) {
    if (i < defs_a.size() && defs_a[i].key == defs_b[i].key) {
      Match(defs_a[i].id, defs_b[i].id);
    } else {
      ids[defs_b[i].key] = defs_b[i].id;
    }
  }
  for (const TensorDef& def : defs_a) {
    if (b_of_a_[def.id] != kNone) continue;
    if (const auto found = ids.find(def.key); found != ids.end()) Match(def.id, found->second);
  }
}

void Alignment::MatchByNames(const NameMap& names) {
  const Left left_a(a_, b_of_a_), left_b(b_, a_of_b_);
  const auto taken = [](const auto& ids, const auto& traits) {
    return std::any_of(ids.begin(), ids.end(),
                       [&](std::uint32_t id) { return traits[id].grouped; });
  };
  // The activations of a rule's names; absent: one is missing or has a counterpart.
  const auto find = [&](const TensorDef& def,
                        const NameMap::Names& found) -> std::optional<AlignedGroup> {
    AlignedGroup group{.a = {def.id}, .b = {}, .relation = found.relation};
    for (std::size_t i = 1; i < found.a.size(); ++i) {
      const auto id = left_a.Find(def, found.a[i]);
      if (!id) return std::nullopt;
      group.a.push_back(*id);
    }
    for (const std::string& name : found.b) {
      const auto id = left_b.Find(def, name);
      if (!id && left_b.IsTaken(def, name)) names.MarkTaken(found, name);
      if (!id) return std::nullopt;
      group.b.push_back(*id);
    }
    if (taken(group.a, traits_a_) || taken(group.b, traits_b_)) return std::nullopt;
    return group;
  };
  for (const TensorDef& def : a_.activations) {
    if (b_of_a_[def.id] != kNone || traits_a_[def.id].grouped) continue;
    std::string name = def.key.name;
    auto found = names.Find(name);
    if (!found) found = names.Find(name = Unwrapped(name));
    for (; found; found = names.Find(name, found->rule + 1)) {
      if (found->b.empty()) {
        names.MarkUsed(*found);
        traits_a_[def.id].grouped = true;
        left_out_a_.insert(def.key.name);
        break;
      }
      auto group = find(def, *found);
      if (!group) continue;
      names.MarkUsed(*found);
      NoteRenamed({.a = Joined(found->a), .b = Joined(found->b), .method = "map", .confidence = 1});
      Match(*std::move(group));
      break;
    }
  }
  for (const TensorDef& def : b_.activations) {
    if (a_of_b_[def.id] != kNone || traits_b_[def.id].grouped) continue;
    if (!names.LeavesOut(def.key.name) && !names.LeavesOut(std::string(Unwrapped(def.key.name))))
      continue;
    traits_b_[def.id].grouped = true;
    left_out_b_.insert(def.key.name);
  }
}

void Alignment::Match(AlignedGroup group) {
  if (group.a.size() == 1 && group.b.size() == 1 && group.relation == NameRelation())
    return Match(group.a.front(), group.b.front());
  for (const std::uint32_t id : group.a) traits_a_[id].grouped = true;
  for (const std::uint32_t id : group.b) traits_b_[id].grouped = true;
  group_at_.emplace(group.a.front(), groups_.size());
  groups_.push_back(std::move(group));
}

// Gradients, other calls and micro-batches, and weights of a matched module are matched with it.
void Alignment::MatchByOrder(const std::vector<OrderMatch>& by_order) {
  std::map<std::pair<std::string, std::string>, const OrderMatch*> outputs;
  std::map<std::string, const OrderMatch*> modules;
  for (const OrderMatch& match : by_order) {
    outputs.emplace(std::pair(match.name_a, match.path_a), &match);
    modules.emplace(match.name_a, &match);
  }
  const Left left_b(b_, a_of_b_);
  for (const TensorDef& def : a_.activations) {
    if (b_of_a_[def.id] != kNone || traits_a_[def.id].grouped) continue;
    TensorDef like = def;
    TensorKey& key = like.key;
    if (const auto output = outputs.find({key.name, key.output_path}); output != outputs.end()) {
      key.output_path = output->second->path_b;
      if (const auto id = left_b.Find(like, output->second->name_b);
          id && !traits_b_[*id].grouped) {
        Match(def.id, *id);
        if (def.key.name != output->second->name_b)
          NoteRenamed({.a = def.key.name,
                       .b = output->second->name_b,
                       .method = "order",
                       .confidence = output->second->confidence});
        continue;
      }
    }
    for (std::size_t dot = key.name.rfind('.'); dot != std::string::npos && dot > 0;
         dot = key.name.rfind('.', dot - 1)) {
      const auto module = modules.find(key.name.substr(0, dot));
      if (module == modules.end()) continue;
      if (const auto id = left_b.Find(def, module->second->name_b + key.name.substr(dot));
          id && !traits_b_[*id].grouped)
        Match(def.id, *id);
      break;
    }
  }
}

void Alignment::NoteRenamed(const AlignedNames& names) {
  // The definitions of a module follow each other; what is left is found at the end.
  if (renamed_.empty() || renamed_.back() != names) renamed_.push_back(names);
}

bool Alignment::IsOpenOnBothSides() const {
  const auto open = [](const auto& matched, const auto& traits) {
    for (std::size_t id = 0; id < matched.size(); ++id) {
      if (matched[id] == kNone && traits[id].stage == Stage::kForward && !traits[id].grouped)
        return true;
    }
    return false;
  };
  return open(b_of_a_, traits_a_) && open(a_of_b_, traits_b_);
}

std::optional<Alignment::Content> Alignment::Known(const BlockHead& head) const {
  MutexLock lock(mutex_);
  const auto found = known_.find({head.activation, head.records, head.activations});
  return found == known_.end() ? std::nullopt : std::optional(found->second);
}

void Alignment::Remember(const BlockHead& head, const Content& content) const {
  MutexLock lock(mutex_);
  known_.insert_or_assign({head.activation, head.records, head.activations}, content);
}

const Alignment& Aligner::For(std::size_t place, const RankCatalogue& a, const RankCatalogue& b) {
  {
    MutexLock lock(mutex_);
    const auto found = alignments_.find({place, &a, &b});
    if (found != alignments_.end()) return *found->second;
  }
  const auto by_order = by_order_.find(place);
  auto made = std::make_unique<Alignment>(
      a, b, options_, by_order == by_order_.end() ? std::vector<OrderMatch>() : by_order->second);
  MutexLock lock(mutex_);
  return *alignments_.try_emplace({place, &a, &b}, std::move(made)).first->second;
}

void Aligner::SetByOrder(std::size_t place, std::vector<OrderMatch> by_order) {
  MutexLock lock(mutex_);
  by_order_[place] = std::move(by_order);
  std::erase_if(alignments_, [&](const auto& entry) { return std::get<0>(entry.first) == place; });
}

std::vector<Aligner::Entry> Aligner::all() const {
  MutexLock lock(mutex_);
  std::vector<Entry> entries;
  entries.reserve(alignments_.size());
  for (const auto& [key, alignment] : alignments_)
    entries.push_back({std::get<0>(key), alignment.get()});
  return entries;
}

}  // namespace statcollect::query
