#include "server/query/pairs/twins.h"

#include <algorithm>

#include "common/names.h"
#include "common/parse.h"
#include "common/step_set.h"
#include "common/twin_name.h"
#include "server/query/compare/roundoff.h"
#include "server/query/compare/step_order.h"
#include "server/query/pairs/tensor_pair.h"

namespace statcollect::query {
namespace {

std::optional<std::string> SettingOf(const RunView& view, const char* key) {
  for (std::size_t attempt = view.attempts().size(); attempt-- > 0;) {
    for (const auto& [rank, meta] : view.ranks(attempt)) {
      const auto found = meta.info.config.find(key);
      if (found != meta.info.config.end()) return found->second;
    }
  }
  return std::nullopt;
}

}  // namespace

Twins::Opened::Opened(RunView opened)
    : view(std::move(opened)), aligner(Alignment::Options::OfEveryKind()) {}

Result<std::vector<TwinOf>> Twins::Find(RunReader& store, const std::string& base) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto runs, store.ListRuns());
  const std::string prefix = base + ".";
  std::vector<TwinOf> twins;
  for (auto run = std::lower_bound(runs.begin(), runs.end(), prefix);
       run != runs.end() && run->starts_with(prefix); ++run) {
    if (BaseOfTwin(*run) != base) continue;
    STATCOLLECT_ASSIGN_OR_RETURN(auto view, RunView::Open(store, *run));
    const auto ulps = SettingOf(view, kPerturbUlps);
    const double size = ulps ? ParseNumber<double>(*ulps).value_or(0) : 0;
    if (SettingOf(view, kPerturbBase) != base || !(size > 0)) continue;
    twins.push_back({.run = *run, .ulps = size, .once = SettingOf(view, kPerturbMode) == "once"});
  }
  return twins;
}

Result<std::unique_ptr<Twins>> Twins::Open(const OpenRun& open, RunView& a,
                                           std::vector<TwinOf> twins,
                                           std::vector<std::string>& notes) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto steps, a.Steps(StepSet()));
  std::stable_sort(twins.begin(), twins.end(),
                   [](const TwinOf& x, const TwinOf& y) { return x.ulps < y.ulps; });
  std::unique_ptr<Twins> all(new Twins(a));
  all->steps_ = steps;
  for (TwinOf& twin : twins) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto view, open(twin.run));
    auto opened = std::make_unique<Opened>(std::move(view));
    STATCOLLECT_ASSIGN_OR_RETURN(opened->steps, opened->view.Steps(StepSet()));
    STATCOLLECT_ASSIGN_OR_RETURN(auto why, all->WhyNot(*opened, twin, steps));
    if (!why.empty()) {
      const std::string run = Printable(twin.run) + " " + why;
      notes.push_back(twin.perturbed ? std::string(kTwinNoteBegin) + run + std::string(kTwinNoteEnd)
                                     : "the repeat " + run + ", so only its distances were used");
      continue;
    }
    std::erase_if(all->steps_,
                  [&](const auto& step) { return !opened->steps.contains(step.first); });
    all->twins_.push_back(std::move(twin));
    all->opened_.push_back(std::move(opened));
  }
  if (all->twins_.empty() || all->steps_.empty()) return std::unique_ptr<Twins>();
  return all;
}

// Noise leaves untouched what comes from outside: batches of data, and weights as loaded unless it
// was put there. But models feed each other (a discriminator is given what a generator has
// computed), so numbers that were given may depart about as far as noise has carried what was
// computed before them.
Result<std::string> Twins::WhyNot(Opened& twin, const TwinOf& of,
                                  const std::map<std::uint64_t, std::size_t>& steps_a) const {
  constexpr double kNoiseMax = 4;  // times its size
  constexpr double kCarriedOn =
      16;  // times the largest distance before: by a crop, a blend, a normalisation
  constexpr double kOnePass = 1024;    // times the noise's size, by a pass that is not recorded
  constexpr double kOtherData = 0.25;  // what departs by such a share of itself is another batch
  const auto common = std::find_if(steps_a.begin(), steps_a.end(), [&](const auto& step) {
    return twin.steps.contains(step.first);
  });
  if (common == steps_a.end()) return "has no step in common with " + Printable(a_.run());
  const auto& [step, attempt] = *common;
  const auto& ranks = a_.ranks(attempt);
  const std::size_t others = twin.view.ranks(twin.steps.at(step)).size();
  if (ranks.size() != others)
    return "has " + std::to_string(others) + (others == 1 ? " rank" : " ranks") + " instead of " +
           std::to_string(ranks.size());
  const std::uint32_t rank = ranks.begin()->first;
  Step read;
  STATCOLLECT_RETURN_IF_ERROR(ReadOf(twin, attempt, rank, step, read));
  STATCOLLECT_ASSIGN_OR_RETURN(auto a, a_.Read(attempt, rank, step));
  constexpr std::size_t kSums = 16;
  std::size_t shared = 0;
  bool sketched = false;
  double departed = 0;  // the largest distance so far
  for (const Observation& seen : a.observations) {
    const Observation* const other = read.by_id.Find(seen.def->id);
    if (other == nullptr) continue;
    ++shared;
    sketched =
        sketched || (seen.sketch.size() >= kSums && other->sketch.size() == seen.sketch.size());
    const Stage stage = StageOf(seen.def->key);
    const double distance = DistanceBetween(seen, *other);
    const double noise =
        IsFloat(seen.layout->dtype) ? of.ulps * UnitRoundoff(seen.layout->dtype) : 0;
    const double of_weights = of.once ? kNoiseMax * noise : 0;
    const double of_batches =
        noise > 0 ? std::min(std::max(kCarriedOn * departed, kOnePass * noise), kOtherData) : 0;
    if (stage == Stage::kWeights && distance > of_weights)
      return "began with other weights (" + Printable(seen.def->key.name) + ")";
    if (stage == Stage::kBatch && distance > of_batches)
      return "was given another batch (" + Printable(seen.def->key.name) + ")";
    departed = std::max(departed, distance);
  }
  if (shared * 2 < a.observations.size())
    return "shares only " + std::to_string(shared) + " of " +
           std::to_string(a.observations.size()) + " tensors with " + Printable(a_.run());
  return sketched ? std::string()
                  : "has no sketches of " + std::to_string(kSums) + " sums to measure noise from";
}

Status Twins::Read(std::size_t twin, std::uint32_t rank, std::uint64_t step, Step& to) const {
  return ReadOf(*opened_[twin], steps_.at(step), rank, step, to);
}

Status Twins::ReadOf(Opened& twin, std::size_t attempt_a, std::uint32_t rank, std::uint64_t step,
                     Step& to) const {
  to = {};
  STATCOLLECT_ASSIGN_OR_RETURN(auto of_a, a_.Catalogue(attempt_a, rank));
  to.by_id = ById(of_a->activations.size());
  const std::size_t attempt = twin.steps.at(step);
  if (!twin.view.ranks(attempt).contains(rank)) return Status::Ok();
  STATCOLLECT_ASSIGN_OR_RETURN(to.data, twin.view.Read(attempt, rank, step));
  STATCOLLECT_ASSIGN_OR_RETURN(auto own, twin.view.Catalogue(attempt, rank));
  STATCOLLECT_ASSIGN_OR_RETURN(to.scalars,
                               twin.view.Scalars(attempt, rank, {.first = step, .last = step}));
  const Alignment& alignment = twin.aligner.For(rank, *of_a, *own);
  for (const Observation& seen : to.data.observations)
    to.by_id.Set(alignment.a_of(seen.def->id), seen);
  return Status::Ok();
}

}  // namespace statcollect::query
