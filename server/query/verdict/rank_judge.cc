#include "server/query/verdict/rank_judge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "common/names.h"
#include "server/query/compare/distance.h"
#include "server/query/compare/loss_diff.h"
#include "server/query/compare/step_order.h"
#include "server/query/verdict/because.h"
#include "server/query/verdict/setting_jumps.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kStepsBefore = 2;  // read so that what they leave behind is known
constexpr double kSettingAccuracy = 1e-12;
constexpr double kLarger = 4;  // of two gradients the one that made the other differ

// Scalars that the agent records of an optimizer: "lr/group0", "gen/lr/1/group0", "weight_decay/group0".
bool IsSetting(std::string_view name) {
  if (name.find("/group") == std::string_view::npos) return false;
  for (const std::string_view setting : {std::string_view("lr/"), std::string_view("weight_decay/")}) {
    const std::size_t at = name.find(setting);
    if (at != std::string_view::npos && (at == 0 || name[at - 1] == '/')) return true;
  }
  return false;
}

double DistanceOf(const Comparison& comparison) {
  if (comparison.agreement == Agreement::kIdentical || comparison.agreement == Agreement::kIncomparable)
    return 0;
  return comparison.distance ? comparison.distance->value : std::numeric_limits<double>::infinity();
}

// Then a loss that differs was logged after an update, by an evaluation say.
bool OnlyUpdatesDiffer(const std::vector<TensorPair>& pairs) {
  const auto differs_in = [&](auto... stages) {
    return std::any_of(pairs.begin(), pairs.end(), [&](const TensorPair& pair) {
      return pair.distance > 0 && pair.a.def->key.mode != Mode::kEval &&
             ((StageOf(pair.a.def->key) == stages) || ...);
    });
  };
  return differs_in(Stage::kOptimizer) && !differs_in(Stage::kForward, Stage::kBackward, Stage::kGrad);
}

// What a record's sisters and its past say of its size holds for the setting that explains it, too. Jumps of
// one record stand beside each other, settings first.
void ShareEvidence(std::vector<Jump>& jumps) {
  for (std::size_t i = 1; i < jumps.size(); ++i) {
    Jump& setting = jumps[i - 1];
    const Jump& excess = jumps[i];
    if (setting.index != excess.index || setting.kind != JumpKind::kSetting ||
        excess.kind != JumpKind::kExcess)
      continue;
    setting.usual = excess.usual;
    setting.sisters = excess.sisters;
    setting.past = excess.past;
    setting.stands_out = true;
  }
}

}  // namespace

RankJudge::Steps RankJudge::WithThoseBefore(const std::set<std::uint64_t>& steps,
                                            std::optional<std::uint64_t> last_step) const {
  Steps all;
  for (const std::uint64_t step : steps) {
    if (last_step && step > *last_step) continue;
    auto at = plan_.steps.find(step);
    if (at == plan_.steps.end()) continue;
    all[step] = true;
    for (std::size_t i = 0; i < kStepsBefore && at != plan_.steps.begin(); ++i) {
      --at;
      // The very first steps of the run are those before the first difference: all equal.
      if (at->first >= *steps.begin()) all.try_emplace(at->first, false);
    }
  }
  return all;
}

Status RankJudge::Read(std::uint64_t step, StepPairs& to) {
  const auto [attempt_a, attempt_b] = plan_.steps.at(step);
  auto a = context_.a.Read(attempt_a, ranks_.a, step);
  if (!a.ok()) return a.status();
  auto b = context_.b.Read(attempt_b, ranks_.b, step);
  if (!b.ok()) return b.status();
  to = {.a = *std::move(a), .b = *std::move(b)};
  if (context_.losses) {
    const StepBounds only{.first = step, .last = step};
    auto losses_a = context_.a.Scalars(attempt_a, ranks_.a, only);
    if (!losses_a.ok()) return losses_a.status();
    auto losses_b = context_.b.Scalars(attempt_b, ranks_.b, only);
    if (!losses_b.ok()) return losses_b.status();
    to.losses_a = *std::move(losses_a);
    to.losses_b = *std::move(losses_b);
  }
  STATCOLLECT_RETURN_IF_ERROR(AddTensors(step, to));
  AddLosses(to);
  return Status::Ok();
}

// What has no counterpart, or only as a part of something, is not judged.
Status RankJudge::AddTensors(std::uint64_t step, StepPairs& to) const {
  const auto [attempt_a, attempt_b] = plan_.steps.at(step);
  auto a = context_.a.Catalogue(attempt_a, ranks_.a);
  if (!a.ok()) return a.status();
  auto b = context_.b.Catalogue(attempt_b, ranks_.b);
  if (!b.ok()) return b.status();
  const Alignment& alignment = context_.aligner.For(place_, **a, **b);
  std::vector<const Observation*> of_b(alignment.b().activations.size(), nullptr);
  for (const Observation& seen : to.b.observations) of_b[seen.def->id] = &seen;
  to.pairs.reserve(to.a.observations.size());
  for (const Observation& seen : to.a.observations) {
    const ActivationTraits& traits = alignment.traits_a(seen.def->id);
    const std::uint32_t other = alignment.b_of(seen.def->id);
    if (!traits.wanted || traits.grouped || other == Alignment::kNone || of_b[other] == nullptr) continue;
    const Comparison comparison =
        Compare(seen, *of_b[other], std::nullopt, /*exact=*/false, /*interval=*/false);
    to.pairs.push_back({.a = seen, .b = *of_b[other], .distance = DistanceOf(comparison)});
  }
  return Status::Ok();
}

std::size_t RankJudge::PlaceOfLoss(const std::vector<TensorPair>& pairs, const StepOrder& order,
                                   std::uint32_t segment) {
  std::size_t place = 0;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const Stage stage = StageOf(pairs[i].a.def->key);
    const std::uint32_t in = order.At(pairs[i].a.order).segment;
    if (in > segment || (in == segment && (stage == Stage::kBackward || stage == Stage::kGrad))) break;
    if (stage == Stage::kForward || in < segment) place = i + 1;
  }
  return place;
}

// A loss stands behind the last forward record that ran before the first gradient; one that differs where
// nothing but updates does stands behind them.
void RankJudge::AddLosses(StepPairs& to) const {
  std::erase_if(to.losses_a, [](const ScalarRecord& scalar) { return !IsLoss(scalar.name); });
  const StepOrder order(to.a.observations);
  const std::vector<Spot> spots = SpotsOfLosses(to.a.observations, to.losses_a);
  const bool only_updates = OnlyUpdatesDiffer(to.pairs);
  std::map<std::size_t, std::vector<TensorPair>> losses;  // by what they stand before
  for (std::size_t i = 0; i < to.losses_a.size(); ++i) {
    const ScalarRecord& a = to.losses_a[i];
    const auto b = std::find_if(to.losses_b.begin(), to.losses_b.end(), [&](const ScalarRecord& other) {
      return other.name == a.name && other.micro_batch == a.micro_batch;
    });
    if (b == to.losses_b.end()) continue;
    const std::uint32_t segment = spots.empty() ? 0 : spots[i].segment;
    const double distance = RelativeDifference(a.value, b->value);
    const bool late = only_updates && distance > 0;
    losses[late ? to.pairs.size() : PlaceOfLoss(to.pairs, order, segment)].push_back(
        {.distance = distance, .loss = &a.name, .loss_a = a.value, .loss_b = b->value});
    to.losses_b.erase(b);  // of several with that name each has its own counterpart
  }
  for (auto at = losses.rbegin(); at != losses.rend(); ++at) {
    to.pairs.insert(to.pairs.begin() + static_cast<std::ptrdiff_t>(at->first), at->second.begin(),
                    at->second.end());
  }
}

Result<std::optional<RankJudge::OtherSetting>> RankJudge::FirstOtherSetting() const {
  std::map<std::pair<std::string, std::uint64_t>, double> of_a;
  const auto [attempt_a, attempt_b] = plan_.steps.rbegin()->second;
  const StepBounds all{.first = plan_.steps.begin()->first, .last = plan_.steps.rbegin()->first};
  auto a = context_.a.Scalars(attempt_a, ranks_.a, all);
  if (!a.ok()) return a.status();
  auto b = context_.b.Scalars(attempt_b, ranks_.b, all);
  if (!b.ok()) return b.status();
  for (const ScalarRecord& scalar : *a) {
    if (IsSetting(scalar.name)) of_a[{scalar.name, scalar.step}] = scalar.value;
  }
  std::optional<OtherSetting> first;
  for (const ScalarRecord& scalar : *b) {
    if (!IsSetting(scalar.name) || !plan_.steps.contains(scalar.step) ||
        (first && first->step <= scalar.step))
      continue;
    const auto other = of_a.find({scalar.name, scalar.step});
    if (other == of_a.end() || RelativeDifference(other->second, scalar.value) <= kSettingAccuracy) continue;
    first = {
        .step = scalar.step, .name = scalar.name, .change = RelativeDifference(other->second, scalar.value)};
  }
  return first;
}

// The first update that differs: of the model that the scalar is named after, else by about as much as the
// setting, else of all.
std::optional<Jump> RankJudge::UpdateWith(const OtherSetting& setting,
                                          const std::vector<Explained>& explained) const {
  constexpr double kAbout = 3;
  const std::size_t slash = setting.name.find('/');
  const std::string model = setting.name.substr(0, slash) + ".";
  std::optional<std::size_t> named, alike, any;
  for (std::size_t i = 0; i < explained.size(); ++i) {
    const Explained& one = explained[i];
    if (one.stage != Stage::kOptimizer || !(one.pair->distance > 0)) continue;
    const TensorKey& key = one.pair->a.def->key;
    if (key.kind != Kind::kWeight) continue;
    if (!any) any = i;
    if (!named && key.name.starts_with(model)) named = i;
    const bool about = one.observed < kAbout * setting.change && one.observed > setting.change / kAbout;
    if (!alike && about) alike = i;
  }
  const std::optional<std::size_t> chosen = named ? named : alike ? alike : any;
  if (!chosen) return std::nullopt;
  return MakeSettingJump(explained, *chosen);
}

Result<OtherSettings> RankJudge::SettingsAt(std::uint64_t step) const {
  Config configs[2];
  std::set<std::string> changed;
  const auto [attempt_a, attempt_b] = plan_.steps.at(step);
  for (const bool of_a : {true, false}) {
    RunView& view = of_a ? context_.a : context_.b;
    const std::uint32_t rank = of_a ? ranks_.a : ranks_.b;
    const std::size_t attempt = of_a ? attempt_a : attempt_b;
    const auto& ranks = view.ranks(attempt);
    const auto meta = ranks.find(rank);
    if (meta == ranks.end()) continue;
    configs[of_a ? 0 : 1] = meta->second.info.config;
    auto events = view.Events(attempt, rank);
    if (!events.ok()) return events.status();
    for (const EventRecord& event : *events) {
      const auto key = event.fields.find("key");
      if (event.kind == "setting_changed" && key != event.fields.end()) changed.insert(key->second);
    }
  }
  for (Config& config : configs)
    std::erase_if(config, [&](const auto& entry) { return changed.contains(entry.first); });
  return OtherSettings(configs[0], configs[1]);
}

OtherConvolutions RankJudge::OtherConvolutionsAt(std::uint64_t step) const {
  const auto [attempt_a, attempt_b] = plan_.steps.at(step);
  const auto config = [](const RunView& view, std::uint32_t rank, std::size_t attempt) {
    const auto meta = view.ranks(attempt).find(rank);
    return meta == view.ranks(attempt).end() ? Config() : Config(meta->second.info.config);
  };
  return ConvolutionsThatMayDiffer(config(context_.a, ranks_.a, attempt_a),
                                   config(context_.b, ranks_.b, attempt_b));
}

// Also where only later steps are compared.
bool RankJudge::IsFirstOfRuns(std::uint64_t step) const {
  const auto [attempt_a, attempt_b] = plan_.steps.at(step);
  const auto is_first = [&](const RunView& view, std::uint32_t rank, std::size_t attempt) {
    const auto meta = view.ranks(attempt).find(rank);
    return attempt == 0 && meta != view.ranks(attempt).end() && meta->second.first_step == step;
  };
  return is_first(context_.a, ranks_.a, attempt_a) && is_first(context_.b, ranks_.b, attempt_b);
}

Result<std::optional<JudgedRoot>> RankJudge::Judge(const std::set<std::uint64_t>& steps,
                                                   std::optional<std::uint64_t> last_step,
                                                   const std::stop_token& stop) {
  auto setting = FirstOtherSetting();
  if (!setting.ok()) return setting.status();
  std::set<std::uint64_t> wanted = steps;
  if (*setting && (*setting)->step >= *steps.begin()) wanted.insert((*setting)->step);
  const auto before = std::distance(plan_.steps.begin(), plan_.steps.find(*steps.begin()));
  Explainer explainer(OtherConvolutionsAt(*steps.begin()));
  JumpFinder finder(static_cast<std::uint64_t>(before));
  StepPairs now;
  std::optional<std::pair<std::pair<std::size_t, std::size_t>, OtherSettings>> settings;  // of two attempts
  for (const auto& [step, judged] : WithThoseBefore(wanted, last_step)) {
    if (stop.stop_requested()) return Status(Code::kCancelled, "diff: cancelled");
    STATCOLLECT_RETURN_IF_ERROR(Read(step, now));
    const std::vector<Explained> explained = explainer.Step(now.pairs);
    std::vector<Jump> jumps = finder.Find(explained);
    if (judged && *setting && (*setting)->step == step) {
      if (const auto jump = UpdateWith(**setting, explained)) jumps.push_back(*jump);
    }
    if (judged) {
      const auto attempts = plan_.steps.at(step);
      if (!settings || settings->first != attempts) {
        auto known = SettingsAt(step);
        if (!known.ok()) return known.status();
        settings.emplace(attempts, *std::move(known));
      }
      for (const Jump& jump : FindSettingJumps(settings->second, explained, quiet_, IsFirstOfRuns(step))) {
        jumps.push_back(jump);
      }
    }
    // Where a setting explains a jump, it is what the root is about.
    std::stable_sort(jumps.begin(), jumps.end(), [](const Jump& x, const Jump& y) {
      return std::tuple(x.index, x.kind != JumpKind::kSetting) <
             std::tuple(y.index, y.kind != JumpKind::kSetting);
    });
    ShareEvidence(jumps);
    if (judged && !jumps.empty()) {
      // Clipping lets one wrong gradient change all of them a little.
      std::size_t chosen = 0;
      const auto observed = [&](const Jump& jump) { return explained[jump.index].observed; };
      const auto is_gradient = [&](const Jump& jump) { return explained[jump.index].stage == Stage::kGrad; };
      if (is_gradient(jumps[0]) && jumps[0].kind != JumpKind::kScale) {
        for (std::size_t i = 1; i < jumps.size(); ++i) {
          const bool larger = is_gradient(jumps[i]) && observed(jumps[i]) > observed(jumps[chosen]);
          if (larger && observed(jumps[i]) >= kLarger * observed(jumps[0])) chosen = i;
        }
      }
      return std::optional(MakeRoot(step, explained, jumps, chosen));
    }
    records_before_ += now.pairs.size();
    quiet_ = quiet_ && std::none_of(now.pairs.begin(), now.pairs.end(),
                                    [](const TensorPair& pair) { return pair.distance > 0; });
  }
  return std::optional<JudgedRoot>();
}

Divergence RankJudge::RowOf(std::uint64_t step, const std::vector<Explained>& explained,
                            std::size_t index) const {
  const Explained& one = explained[index];
  const TensorPair& pair = *one.pair;
  if (pair.loss != nullptr) {
    Divergence row{.step = step, .rank = ranks_.a, .stage = Stage::kLoss, .activation = *pair.loss};
    row.reason = std::isfinite(pair.distance) ? Reason::kNumeric : Reason::kNonfinite;
    row.distance = pair.distance;
    row.distance_kind = DistanceKind::kStatistics;
    row.tolerance = DefaultTolerance(DType::kF32, DType::kF32);
    row.mode = Name(Mode::kTrain);
    row.a = ObservationSide{.value = pair.loss_a};
    row.b = ObservationSide{.value = pair.loss_b};
    row.origin = true;
    return row;
  }
  Divergence row = MakeRow(*pair.a.def, step, ranks_.a);
  if (ranks_.a != ranks_.b) row.rank_b = ranks_.b;
  const Comparison comparison =
      Compare(pair.a, pair.b, context_.tolerance, context_.exact, /*interval=*/true);
  SetComparison(row, comparison);
  if (row.reason == Reason::kUnspecified) row.reason = Reason::kNumeric;
  row.a = MakeSide(pair.a);
  row.b = MakeSide(pair.b);
  row.origin = true;
  if (pair.b.def->key.name != pair.a.def->key.name) row.activation_b = pair.b.def->key.name;
  for (std::size_t i = index; i > 0; --i) {
    const Explained& before = explained[i - 1];
    if (before.stage != one.stage || before.pair->loss != nullptr) continue;
    row.previous = before.pair->a.def->key.name;
    row.previous_distance = before.pair->distance;
    break;
  }
  return row;
}

JudgedRoot RankJudge::MakeRoot(std::uint64_t step, const std::vector<Explained>& explained,
                               const std::vector<Jump>& jumps, std::size_t chosen) const {
  const Jump& jump = jumps[chosen];
  JudgedRoot found{.step = step};
  for (std::size_t i = 0; i <= jump.index; ++i) {
    if (explained[i].pair->loss == nullptr) found.order = explained[i].pair->a.order;
  }
  Root& root = found.root;
  root.at = RowOf(step, explained, jump.index);
  const bool quiet =
      quiet_ && std::none_of(explained.begin(), explained.begin() + static_cast<std::ptrdiff_t>(jump.index),
                             [](const Explained& one) { return one.pair->distance > 0; });
  if (quiet) root.agreeing = records_before_ + jump.index;
  root.confidence = ConfidenceIn(jump, quiet);
  const Explained& one = explained[jump.index];
  const bool by_size = jump.kind == JumpKind::kExcess || (jump.kind == JumpKind::kSetting && !quiet);
  if (by_size && std::isfinite(jump.ratio)) root.times_expected = one.observed / one.expected;
  root.because = Reasons(explained, jump, quiet);
  std::vector<const Jump*> others;
  for (const Jump& other : jumps) {  // in the order of their indices
    const bool again = !others.empty() && others.back()->index == other.index;
    if (other.index != jump.index && !again) others.push_back(&other);
  }
  std::stable_sort(others.begin(), others.end(),
                   [](const Jump* x, const Jump* y) { return x->excess > y->excess; });
  constexpr std::size_t kAlternatives = 2;
  for (const Jump* other : others) {
    if (root.confidence == Confidence::kCertain || root.alternatives.size() == kAlternatives) break;
    root.alternatives.push_back(RowOf(step, explained, other->index));
  }
  return found;
}

}  // namespace statcollect::query
