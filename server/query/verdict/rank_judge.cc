#include "server/query/verdict/rank_judge.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <tuple>
#include <utility>

#include "common/names.h"
#include "common/saturating.h"
#include "server/query/compare/distance.h"
#include "server/query/compare/loss_diff.h"
#include "server/query/compare/pair_judge.h"
#include "server/query/compare/roundoff.h"
#include "server/query/compare/step_order.h"
#include "server/query/number_text.h"
#include "server/query/settings/config_at.h"
#include "server/query/settings/optimizer_keys.h"
#include "server/query/verdict/because.h"
#include "server/query/verdict/constants.h"
#include "server/query/verdict/guessed_model.h"
#include "server/query/verdict/measured_model.h"
#include "server/query/verdict/optimizers.h"
#include "server/query/verdict/pair_size.h"
#include "server/query/verdict/setting_jumps.h"

namespace statcollect::query {
namespace {

using Values = std::map<std::uint64_t, double>;  // of a scalar, by step

// Learning rates and weight decays of one rank, each of the attempt that holds the first compared
// step from its own on. A weight decay that was recorded before the first compared step still
// holds.
Result<std::map<std::string, Values>> ReadSettingValues(RunView& view, std::uint32_t rank,
                                                        const DiffPlan& plan, bool of_a) {
  const auto attempt_of = [&](const auto& step) {
    return of_a ? step->second.first : step->second.second;
  };
  std::set<std::size_t> attempts;
  for (auto step = plan.steps.begin(); step != plan.steps.end(); ++step)
    attempts.insert(attempt_of(step));
  std::map<std::string, Values> settings;
  for (const std::size_t attempt : attempts) {
    if (!view.ranks(attempt).contains(rank)) continue;
    STATCOLLECT_ASSIGN_OR_RETURN(
        auto scalars,
        view.Scalars(attempt, rank, {.first = 0, .last = plan.steps.rbegin()->first}));
    for (const ScalarRecord& scalar : scalars) {
      const auto step = plan.steps.lower_bound(scalar.step);
      if (step != plan.steps.end() && attempt_of(step) == attempt && ScalarSettingOf(scalar.name))
        settings[scalar.name][scalar.step] = scalar.value;
    }
  }
  return settings;
}

// The value in force in a step. `holds`: a weight decay applies until the next value; a learning
// rate only to its own step.
std::optional<double> InForce(const Values& values, std::uint64_t step, bool holds) {
  auto next = values.upper_bound(step);
  if (next == values.begin()) return std::nullopt;
  --next;
  return holds || next->first == step ? std::optional(next->second) : std::nullopt;
}

bool HasWeights(const std::vector<TensorPair>& pairs, Stage stage) {
  return std::any_of(pairs.begin(), pairs.end(), [&](const TensorPair& pair) {
    return IsWeight(pair) && StageOf(pair.a.def->key) == stage;
  });
}

// Whether it says which weights the next step begins with.
bool LeavesWeights(const std::vector<TensorPair>& pairs) {
  if (HasWeights(pairs, Stage::kOptimizer)) return true;
  const bool trained = std::any_of(pairs.begin(), pairs.end(), [](const TensorPair& pair) {
    return pair.loss == nullptr && StageOf(pair.a.def->key) == Stage::kForward;
  });
  return !trained && HasWeights(pairs, Stage::kWeights);
}

// Copies the comparison with sisters and earlier steps from a record's excess jump to the setting
// jump that explains it. Jumps of one record are adjacent, settings first.
void ShareEvidence(std::vector<Jump>& jumps) {
  for (std::size_t i = 1; i < jumps.size(); ++i) {
    Jump& setting = jumps[i - 1];
    const Jump& excess = jumps[i];
    if (setting.index != excess.index || setting.kind != JumpKind::kSetting ||
        (excess.kind != JumpKind::kExcess && excess.kind != JumpKind::kMeasured))
      continue;
    setting.usual = excess.usual;
    setting.sisters = excess.sisters;
    setting.past = excess.past;
    setting.stands_out = true;
  }
}

// The same tensor, in this or another call or part of the batch, or the same loss. One number under
// two names is one loss.
bool IsOfSameName(const Explained& x, const Explained& y) {
  const TensorPair &a = *x.pair, &b = *y.pair;
  if ((a.loss == nullptr) != (b.loss == nullptr)) return false;
  if (a.loss != nullptr)
    return *a.loss == *b.loss || (a.loss_a == b.loss_a && a.loss_b == b.loss_b);
  const TensorKey &key_a = a.a.def->key, &key_b = b.a.def->key;
  return key_a.kind == key_b.kind && key_a.name == key_b.name &&
         key_a.output_path == key_b.output_path && key_a.mode == key_b.mode;
}

// Sorts by order of execution. If a setting explains a jump, the setting comes first and becomes
// the root.
void Arrange(std::vector<Jump>& jumps) {
  const auto place = [](const Jump& jump) {
    return std::tuple(jump.index, jump.kind != JumpKind::kSetting);
  };
  std::stable_sort(jumps.begin(), jumps.end(),
                   [&](const Jump& x, const Jump& y) { return place(x) < place(y); });
  ShareEvidence(jumps);
}

}  // namespace

Result<std::optional<RankJudge::OtherSetting>> RankJudge::FirstOtherSetting() const {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto a,
                               ReadSettingValues(context_.a, ranks_.a, plan_, /*of_a=*/true));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto b,
                               ReadSettingValues(context_.b, ranks_.b, plan_, /*of_a=*/false));
  std::optional<OtherSetting> first;
  const auto compare = [&](const std::string& name, const Values& of_a, const Values& of_b,
                           std::uint64_t recorded) {
    const bool holds = ScalarSettingOf(name) != "lr";
    const std::uint64_t step = holds ? plan_.steps.lower_bound(recorded)->first : recorded;
    if (!plan_.steps.contains(step) || (first && first->step <= step)) return;
    const auto value_a = InForce(of_a, step, holds), value_b = InForce(of_b, step, holds);
    if (!value_a || !value_b) return;
    const double change = RelativeDifference(*value_a, *value_b);
    if (change > setting::kAccuracy) first = {.step = step, .name = name, .change = change};
  };
  for (const auto& [name, of_b] : b) {
    const auto of_a = a.find(name);
    if (of_a == a.end()) continue;
    for (const Values* values : {&of_a->second, &of_b}) {
      for (const auto& [step, value] : *values) compare(name, of_a->second, of_b, step);
    }
  }
  return first;
}

// The first update that differs: of the model that the scalar is named after, else by about as much
// as the learning rate. How much one differs for a weight decay depends on the weight; those of its
// parameter group stand out.
std::optional<Jump> RankJudge::UpdateWith(const OtherSetting& setting,
                                          const std::vector<Explained>& explained) const {
  const std::size_t slash = setting.name.find('/');
  const std::string model = setting.name.substr(0, slash) + ".";
  const bool in_proportion = ScalarSettingOf(setting.name) == "lr";
  std::optional<std::size_t> named, alike;
  std::vector<std::size_t> updates;
  for (std::size_t i = 0; i < explained.size(); ++i) {
    const Explained& one = explained[i];
    if (one.stage != Stage::kOptimizer || !(one.pair->distance > 0)) continue;
    const TensorKey& key = one.pair->a.def->key;
    if (key.kind != Kind::kWeight) continue;
    updates.push_back(i);
    if (!named && key.name.starts_with(model)) named = i;
    const bool about = in_proportion && one.observed < setting::kAbout * setting.change &&
                       one.observed > setting.change / setting::kAbout;
    if (!alike && about) alike = i;
  }
  if (updates.empty()) return std::nullopt;
  auto chosen = named ? named : alike;
  if (!chosen && !in_proportion) chosen = FirstThatStandsOut(explained, updates);
  return MakeSettingJump(explained, chosen.value_or(updates.front()));
}

Launch RankJudge::LaunchOf(bool of_a, const Attempts& attempts) const {
  return {.view = of_a ? context_.a : context_.b,
          .attempt = of_a ? attempts.first : attempts.second,
          .rank = of_a ? ranks_.a : ranks_.b};
}

Result<RankJudge::RecordedSettings> RankJudge::ReadSettings(const Attempts& attempts) const {
  RecordedSettings recorded{.attempts = attempts};
  std::set<std::string> changed[2];
  for (const bool of_a : {true, false}) {
    const std::size_t side = of_a ? 0 : 1;
    const Launch launch = LaunchOf(of_a, attempts);
    const RankMeta* const meta = launch.Meta();
    if (meta == nullptr) continue;
    recorded.configs[side] = meta->info.config;
    recorded.first_step[side] = meta->first_step.value_or(0);
    STATCOLLECT_ASSIGN_OR_RETURN(auto events, launch.view.Events(launch.attempt, *launch.rank));
    for (EventRecord& event : events) {
      const auto key = event.fields.find("key");
      if (event.kind != "setting_changed" || key == event.fields.end()) continue;
      changed[side].insert(key->second);
      recorded.events[side].push_back(std::move(event));
    }
  }
  // Both may have changed it alike, and were looked at in other steps.
  const auto both = [&](const std::string& key) {
    return changed[0].contains(key) && changed[1].contains(key);
  };
  for (const std::size_t side : {0, 1}) {
    std::erase_if(recorded.configs[side], [&](const auto& entry) { return both(entry.first); });
    std::erase_if(recorded.events[side],
                  [&](const EventRecord& event) { return both(event.fields.at("key")); });
  }
  AlignScheduled(LaunchOf(true, attempts), LaunchOf(false, attempts), recorded.configs[0],
                 recorded.configs[1]);
  if (recorded.events[0].empty() && recorded.events[1].empty())
    recorded.in_all_steps.emplace(recorded.configs[0], recorded.configs[1]);
  return recorded;
}

OtherSettings RankJudge::SettingsAt(const RecordedSettings& recorded, std::uint64_t step,
                                    bool found) {
  Config configs[2] = {recorded.configs[0], recorded.configs[1]};
  for (const std::size_t side : {0, 1})
    TakeBackLaterChanges(step, recorded.first_step[side], recorded.events[side], configs[side],
                         found);
  return OtherSettings(configs[0], configs[1]);
}

void RankJudge::AddChanges(const RecordedSettings& recorded, std::set<std::uint64_t>& steps) {
  constexpr std::uint64_t kJudged = 16;  // of one change
  constexpr std::size_t kChanges = 4;
  const std::uint64_t first = *steps.begin();
  for (const std::size_t side : {0, 1}) {
    for (std::size_t i = 0; i < std::min(recorded.events[side].size(), kChanges); ++i) {
      const std::uint64_t found = recorded.events[side][i].step;
      const std::uint64_t earliest =
          std::max(first, ChangedNotBefore(found, recorded.first_step[side]));
      for (const std::uint64_t step :
           Closed(earliest, std::min(found, SaturatingAdd(earliest, kJudged - 1))))
        steps.insert(step);
      if (found >= first) steps.insert(found);
    }
  }
}

// In a step in which a setting may still have had its old value, it explains only what stands out.
std::vector<Jump> RankJudge::JumpsOfSettings(const RecordedSettings& recorded, std::uint64_t step,
                                             const std::vector<Explained>& explained) const {
  const bool first_step = IsFirstOfRuns(step);
  if (recorded.in_all_steps)
    return FindSettingJumps(*recorded.in_all_steps, explained, quiet_, first_step);
  std::vector<Jump> jumps =
      FindSettingJumps(SettingsAt(recorded, step, /*found=*/true), explained, quiet_, first_step);
  for (const Jump& maybe : FindSettingJumps(SettingsAt(recorded, step, /*found=*/false), explained,
                                            quiet_, first_step)) {
    const bool known = std::any_of(jumps.begin(), jumps.end(),
                                   [&](const Jump& jump) { return jump.index == maybe.index; });
    if (!known && (maybe.ratio > setting::kSeen || IsQuietBefore(explained, maybe.index)))
      jumps.push_back(maybe);
  }
  return jumps;
}

RecordedMethods RankJudge::MethodsAt(std::uint64_t step) const {
  static const Config kNothing;
  const auto config = [&](bool of_a) -> const Config& {
    const RankMeta* const meta = LaunchOf(of_a, plan_.steps.at(step)).Meta();
    return meta == nullptr ? kNothing : meta->info.config;
  };
  return {.other_convolutions = ConvolutionsThatMayDiffer(config(true), config(false)),
          .orthogonal_updates = UpdatesAreOrthogonal(config(true), config(false))};
}

// Of the same launches: a later one may be on another processor or GPU, whose kernels round
// differently.
std::uint64_t RankJudge::IdenticalStepsBefore(std::uint64_t step) const {
  const auto first = plan_.steps.find(step);
  return static_cast<std::uint64_t>(
      std::count_if(plan_.steps.begin(), first,
                    [&](const auto& before) { return before.second == first->second; }));
}

// Also where only later steps are compared.
bool RankJudge::IsFirstOfRuns(std::uint64_t step) const {
  const auto is_first = [&](bool of_a) {
    const Launch launch = LaunchOf(of_a, plan_.steps.at(step));
    const RankMeta* const meta = launch.Meta();
    return launch.attempt == 0 && meta != nullptr && meta->first_step == step;
  };
  return is_first(true) && is_first(false);
}

// Adds the jumps of a scalar setting and of recorded settings that differ.
Status RankJudge::AddSettingJumps(std::uint64_t step, const std::optional<OtherSetting>& scalar,
                                  RecordedSettings& recorded,
                                  const std::vector<Explained>& explained,
                                  std::vector<Jump>& jumps) {
  if (scalar && scalar->step == step) {
    if (const auto jump = UpdateWith(*scalar, explained)) jumps.push_back(*jump);
  }
  const auto attempts = plan_.steps.at(step);
  if (recorded.attempts != attempts) {
    STATCOLLECT_ASSIGN_OR_RETURN(recorded, ReadSettings(attempts));
  }
  for (const Jump& jump : JumpsOfSettings(recorded, step, explained)) {
    // A module's sizes follow from how the model is cut.
    if (!context_.logical || jump.ratio > setting::kSeen) jumps.push_back(jump);
  }
  return Status::Ok();
}

Result<Judgement> RankJudge::Judge(const std::set<std::uint64_t>& steps,
                                   std::optional<std::uint64_t> last_step,
                                   const std::stop_token& stop) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto setting, FirstOtherSetting());
  std::set<std::uint64_t> wanted = steps;
  if (setting && setting->step >= *steps.begin()) wanted.insert(setting->step);
  STATCOLLECT_ASSIGN_OR_RETURN(auto settings, ReadSettings(plan_.steps.at(*steps.begin())));
  AddChanges(settings, wanted);
  Begin(Measured::kNot);
  if (twins_ != nullptr) {
    MeasuredModel model(*twins_, ranks_.a, MethodsAt(*steps.begin()).other_convolutions,
                        [this](std::uint64_t step) { return trails_.Of(place_, step); });
    const Steps measured = MeasuredModel::StepsFor(*twins_, plan_, wanted, last_step);
    const StepPairsReader reader(context_, plan_, place_, StepPairsReader::Order::kReport);
    STATCOLLECT_RETURN_IF_ERROR(JudgeSteps(model, reader, measured, setting, settings, stop));
    const std::uint64_t last = measured.empty() ? 0 : measured.rbegin()->first;
    if (measured.empty() || !model.noise_arrived()) {
      Begin(measured.empty() ? Measured::kInPart : Measured::kUnmoved);
    } else {
      judgement_.measured = Measured::kWhole;
      std::erase_if(wanted, [&](std::uint64_t step) {
        return step <= last || (last_step && step > *last_step);
      });
      if (judgement_.found || wanted.empty()) return std::move(judgement_);
      judgement_.measured = Measured::kInPart;
    }
  }
  GuessedModel model(MethodsAt(*steps.begin()), IdenticalStepsBefore(*steps.begin()),
                     [this](std::uint64_t step) { return levels_.Of(place_, step); });
  const StepPairsReader reader(context_, plan_, place_, StepPairsReader::Order::kExecution);
  STATCOLLECT_RETURN_IF_ERROR(JudgeSteps(
      model, reader, GuessedModel::StepsFor(plan_, wanted, last_step), setting, settings, stop));
  return std::move(judgement_);
}

void RankJudge::Begin(Measured measured) {
  records_before_ = agreeing_;
  quiet_ = true;
  judgement_ = {.measured = measured};
}

template <typename Model>
Status RankJudge::JudgeSteps(Model& model, const StepPairsReader& reader, const Steps& steps,
                             const std::optional<OtherSetting>& scalar, RecordedSettings& recorded,
                             const std::stop_token& stop) {
  Judgement& all = judgement_;
  StepPairs now;
  for (const auto& [step, judged] : steps) {
    if (stop.stop_requested()) return Status(Code::kCancelled, "diff: cancelled");
    STATCOLLECT_RETURN_IF_ERROR(reader.Read(step, now));
    if (!all.loss_scales && now.loss_scales.Ratio()) all.loss_scales = now.loss_scales;
    STATCOLLECT_ASSIGN_OR_RETURN(auto answer, model.Judge(step, now));
    auto& [explained, jumps, without_effect, data_dependent, noise_driven] = answer;
    (Model::kMeasuresNoise ? all.data_dependent : all.unjudged_rows) = *data_dependent;
    if (judged && !without_effect.empty()) NoteWithoutEffect(step, explained, without_effect);
    all.noise_driven.insert(noise_driven->begin(), noise_driven->end());
    if (judged) {
      STATCOLLECT_RETURN_IF_ERROR(AddSettingJumps(step, scalar, recorded, explained, jumps));
      NoiseOfStep noise;  // of repeats of A
      if (!jumps.empty()) {
        const NoisePlace place{plan_.steps.at(step).first, ranks_.a, step};
        STATCOLLECT_ASSIGN_OR_RETURN(noise, ReadNoise(context_, place));
        if (!Model::kMeasuresNoise)
          STATCOLLECT_RETURN_IF_ERROR(LeaveOutNoise(context_, place, noise, explained, jumps));
      }
      if (!context_.exact) LeaveOutNearTies(context_.near_ties, step, explained, jumps);
      Arrange(jumps);
      if (!jumps.empty()) {
        const std::size_t chosen = model.ChooseJump(answer);
        STATCOLLECT_ASSIGN_OR_RETURN(auto caveat,
                                     CaveatOf(reader, step, now, explained, jumps[chosen]));
        all.found = MakeRoot(step, explained, jumps, chosen, caveat, noise);
        return Status::Ok();
      }
    }
    if (!plan_.steps.contains(step)) {
      NoteBefore(step, now);
    } else if (judged || !quiet_) {
      records_before_ += now.pairs.size();
    }
    quiet_ = quiet_ && std::none_of(now.pairs.begin(), now.pairs.end(),
                                    [](const TensorPair& pair) { return pair.distance > 0; });
  }
  return Status::Ok();
}

void RankJudge::NoteWithoutEffect(std::uint64_t step, const std::vector<Explained>& explained,
                                  const std::vector<std::size_t>& indices) {
  if (!judgement_.without_effect) {
    const TensorPair& first = *explained[indices.front()].pair;
    judgement_.without_effect = {
        .step = step, .name = first.a.def->key.name, .distance = first.distance};
  }
  judgement_.without_effect->records += indices.size();
}

void Judgement::Add(Judgement other) {
  const auto when = [](const JudgedRoot& root) { return std::pair(root.step, root.order); };
  if (other.found && (!found || when(*other.found) < when(*found))) found = std::move(other.found);
  if (other.differ_before &&
      (!differ_before || differ_before->distance < other.differ_before->distance))
    differ_before = std::move(other.differ_before);
  noise_driven.merge(other.noise_driven);
  data_dependent.merge(other.data_dependent);
  unjudged_rows.merge(other.unjudged_rows);
  if (!loss_scales) loss_scales = other.loss_scales;
  if (!without_effect) without_effect = std::move(other.without_effect);
  measured = std::max(measured, other.measured);
}

std::string WithoutEffect::Text() const {
  return std::to_string(records) + (records == 1 ? " output differs" : " outputs differ") +
         " far more than noise explains, first " + Printable(name) + " by " +
         ShortNumber(distance) + " at step " + std::to_string(step) +
         ", but no loss, gradient or update does: they differ where nothing reads them, such as in "
         "padding";
}

std::string DifferBefore::Text() const {
  return "the weights differ already after step " + std::to_string(step) +
         ", which was not requested (" + Printable(name) + " by " + ShortNumber(distance) +
         "): where that began lies before the compared steps";
}

void RankJudge::NoteBefore(std::uint64_t step, const StepPairs& now) {
  if (!LeavesWeights(now.pairs)) return;
  judgement_.differ_before.reset();
  for (const TensorPair& pair : now.pairs) {
    if (!IsWeight(pair)) continue;
    if (pair.distance <= kInputRoundoffs * Unit(pair)) continue;
    if (judgement_.differ_before && judgement_.differ_before->distance >= pair.distance) continue;
    judgement_.differ_before = {
        .step = step, .name = pair.a.def->key.name, .distance = pair.distance};
  }
}

Result<bool> RankJudge::KnowsWeightsBefore(const StepPairsReader& reader, std::uint64_t step,
                                           const StepPairs& now) {
  if (HasWeights(now.pairs, Stage::kWeights)) return true;
  const auto at = plan_.stored.find(step);
  if (at == plan_.stored.begin() || SaturatingAdd(std::prev(at)->first, 1) != step) return false;
  StepPairs before;
  STATCOLLECT_RETURN_IF_ERROR(reader.Read(std::prev(at)->first, before));
  return LeavesWeights(before.pairs);
}

// Weights as loaded, batches and settings are not computed from weights.
Result<std::optional<Caveat>> RankJudge::CaveatOf(const StepPairsReader& reader, std::uint64_t step,
                                                  const StepPairs& now,
                                                  const std::vector<Explained>& explained,
                                                  const Jump& jump) {
  using Found = std::optional<Caveat>;
  if (IsInput(explained[jump.index].stage)) return Found();
  if (judgement_.differ_before)
    return Found({.text = judgement_.differ_before->Text(), .most = Confidence::kLikely});
  STATCOLLECT_ASSIGN_OR_RETURN(auto known, KnowsWeightsBefore(reader, step, now));
  if (!known) {
    // Other weights would show in every output.
    const bool agreeing =
        IsQuietBefore(explained, jump.index) &&
        std::any_of(explained.begin(), explained.begin() + static_cast<std::ptrdiff_t>(jump.index),
                    [](const Explained& one) {
                      return one.pair->loss == nullptr &&
                             one.pair->a.def->key.kind == Kind::kOutput;
                    });
    const bool likely = agreeing || jump.kind == JumpKind::kSetting;
    return Found(
        {.text = "the weights before step " + std::to_string(step) +
                 " were not recorded in both runs, so an earlier origin cannot be excluded",
         .most = likely ? Confidence::kLikely : Confidence::kPossible});
  }
  if (plan_.left_out.empty() || jump.kind == JumpKind::kSetting) return Found();
  return Found(
      {.text = plan_.left_out + ", so it may begin in something before it that was left out",
       .most = Confidence::kLikely});
}

bool RankJudge::IsQuietBefore(const std::vector<Explained>& explained, std::size_t index) const {
  return quiet_ &&
         std::none_of(explained.begin(), explained.begin() + static_cast<std::ptrdiff_t>(index),
                      [](const Explained& one) { return one.pair->distance > 0; });
}

Divergence RankJudge::RowOf(std::uint64_t step, const std::vector<Explained>& explained,
                            std::size_t index, const NoiseOfStep& noise) const {
  const Explained& one = explained[index];
  const TensorPair& pair = *one.pair;
  if (pair.loss != nullptr) {
    const ScalarRecord of_a{
        .name = *pair.loss, .micro_batch = pair.loss_micro_batch, .value = pair.loss_a};
    Divergence row = MakeLossRow(context_, step, ranks_.a, of_a, pair.loss_b, pair.distance);
    row.reason = std::isfinite(pair.distance) ? Reason::kNumeric : Reason::kNonfinite;
    row.origin = true;
    return row;
  }
  Divergence row = MakeRow(*pair.a.def, step, ranks_.a);
  if (ranks_.a != ranks_.b) row.rank_b = ranks_.b;
  Comparison comparison =
      Compare(pair.a, pair.b, context_.tolerance, context_.exact, /*interval=*/true);
  if (comparison.agreement == Agreement::kDiverged)
    WeighByNoise(noise.Of(pair), context_.noise_allows, comparison);
  FillPair(row, comparison, pair.a, pair.b);
  if (!row.times_noise) row.times_noise = noise.TimesOf(pair);
  if (row.reason == Reason::kUnspecified) row.reason = Reason::kNumeric;
  row.origin = true;
  // What is computed at once has no order.
  const bool in_order =
      one.stage == Stage::kForward || one.stage == Stage::kBackward || one.stage == Stage::kBatch;
  for (std::size_t i = index; i > 0 && in_order; --i) {
    const Explained& before = explained[i - 1];
    if (before.stage != one.stage || before.pair->loss != nullptr) continue;
    row.previous = before.pair->a.def->key.name;
    row.previous_distance = before.pair->distance;
    break;
  }
  return row;
}

JudgedRoot RankJudge::MakeRoot(std::uint64_t step, const std::vector<Explained>& explained,
                               const std::vector<Jump>& jumps, std::size_t chosen,
                               const std::optional<Caveat>& caveat,
                               const NoiseOfStep& noise) const {
  const Jump& jump = jumps[chosen];
  JudgedRoot found{.step = step};
  for (std::size_t i = 0; i <= jump.index; ++i) {
    if (explained[i].pair->loss == nullptr) found.order = explained[i].pair->a.order;
  }
  Root& root = found.root;
  root.at = RowOf(step, explained, jump.index, noise);
  const bool quiet = IsQuietBefore(explained, jump.index);
  if (quiet) root.agreeing = records_before_ + jump.index;
  const Explained& one = explained[jump.index];
  root.confidence = ConfidenceIn(one, jump, quiet);
  const bool by_size = jump.kind == JumpKind::kExcess || jump.kind == JumpKind::kMeasured ||
                       (jump.kind == JumpKind::kSetting && !quiet);
  if (by_size && std::isfinite(jump.ratio)) root.times_expected = one.observed / one.expected;
  root.because = Reasons(explained, jump, quiet);
  if (caveat) {
    found.caveat = caveat;
    root.confidence = std::max(root.confidence, caveat->most);
    root.because.push_back(caveat->text);
    root.at.origin = quiet;
  }
  std::vector<const Jump*> others;
  for (const Jump& other : jumps) {  // in the order of their indices
    const bool again = !others.empty() && others.back()->index == other.index;
    if (!again && !IsOfSameName(one, explained[other.index])) others.push_back(&other);
  }
  std::stable_sort(others.begin(), others.end(),
                   [](const Jump* x, const Jump* y) { return x->excess > y->excess; });
  constexpr std::size_t kAlternatives = 2;
  for (const Jump* other : others) {
    if (root.confidence == Confidence::kCertain || root.alternatives.size() == kAlternatives) break;
    root.alternatives.push_back(RowOf(step, explained, other->index, noise));
  }
  return found;
}

}  // namespace statcollect::query
