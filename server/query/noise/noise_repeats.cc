#include "server/query/noise/noise_repeats.h"

#include <algorithm>
#include <utility>

#include "common/names.h"
#include "common/step_set.h"
#include "server/query/compare/distance.h"
#include "server/query/compare/loss_diff.h"
#include "server/query/compare/paired_step.h"
#include "server/query/compare/step_order.h"

namespace statcollect::query {
namespace {

// How far apart two observations of the same thing are; 0 where that cannot be said.
double ApartBy(const Observation& a, const Observation& b) {
  const Comparison comparison =
      Compare(a, b, /*tolerance=*/std::nullopt, /*exact=*/false, /*interval=*/false);
  const bool comparable =
      comparison.reason != Reason::kShape && comparison.reason != Reason::kDType;
  return comparable && comparison.distance ? comparison.distance->value : 0;
}

}  // namespace

RepeatNoise::RepeatNoise(RunView& a) : a_(a), self_(Alignment::Options::OfEveryKind()) {}

RepeatNoise::Repeat::Repeat(RunView opened)
    : view(std::move(opened)), aligner(Alignment::Options::OfEveryKind()) {}

Result<std::unique_ptr<RepeatNoise>> RepeatNoise::Open(const OpenRun& open, RunView& a,
                                                       const std::vector<std::string>& runs) {
  if (runs.empty())
    return Status(Code::kInvalidArgument,
                  "noise of run '" + a.run() +
                      "': found no repeats; expected at least one run of the same training");
  std::unique_ptr<RepeatNoise> noise(new RepeatNoise(a));
  STATCOLLECT_ASSIGN_OR_RETURN(noise->steps_a_, a.Steps(StepSet()));
  for (const std::string& run : runs) {
    if (run == a.run()) {
      return Status(Code::kInvalidArgument,
                    "noise of run '" + run +
                        "': a run is not its own repeat; expected runs of the same training");
    }
    STATCOLLECT_ASSIGN_OR_RETURN(auto view, open(run));
    auto repeat = std::make_unique<Repeat>(std::move(view));
    STATCOLLECT_ASSIGN_OR_RETURN(repeat->steps, repeat->view.Steps(StepSet()));
    const auto spot = noise->steps_a_.empty()
                          ? std::nullopt
                          : noise->Nearest(*repeat, noise->steps_a_.rbegin()->first);
    if (!spot) {
      return Status(Code::kNotFound,
                    "noise of run '" + a.run() + "': '" + Printable(run) +
                        "' has no step in common with it; name runs of the same training");
    }
    STATCOLLECT_RETURN_IF_ERROR(noise->CheckShared(*repeat, *spot));
    noise->repeats_.push_back(std::move(repeat));
  }
  return noise;
}

Status RepeatNoise::CheckShared(Repeat& repeat, const Spot& spot) {
  const auto fail = [&](const std::string& found) {
    return Status(Code::kNotFound, "noise of run '" + a_.run() + "': '" +
                                       Printable(repeat.view.run()) + "' " + found +
                                       "; expected a repeat of the same training: name its runs");
  };
  std::string of_a, of_repeat;
  bool rank_shared = false;
  for (const auto& [rank, meta] : a_.ranks(spot.attempt_a)) {
    if (!repeat.view.ranks(spot.attempt_repeat).contains(rank)) continue;
    rank_shared = true;
    STATCOLLECT_ASSIGN_OR_RETURN(const auto catalogue_a, a_.Catalogue(spot.attempt_a, rank));
    STATCOLLECT_ASSIGN_OR_RETURN(const auto catalogue_b,
                                 repeat.view.Catalogue(spot.attempt_repeat, rank));
    const auto &a = catalogue_a->activations, &b = catalogue_b->activations;
    if (a.empty()) return Status::Ok();  // there are only losses
    const Alignment& alignment = repeat.aligner.For(rank, *catalogue_a, *catalogue_b);
    if (std::any_of(a.begin(), a.end(),
                    [&](const auto& def) { return alignment.b_of(def.id) != Alignment::kNone; }))
      return Status::Ok();
    of_a =
        std::to_string(a.size()) + " activations, such as '" + Printable(a.front().key.name) + "'";
    of_repeat = b.empty() ? "none" : "others, such as '" + Printable(b.front().key.name) + "'";
  }
  return rank_shared ? fail("has none of its " + of_a + ", but " + of_repeat)
                     : fail("has no rank in common with it");
}

std::optional<RepeatNoise::Spot> RepeatNoise::Nearest(const Repeat& repeat,
                                                      std::uint64_t step) const {
  for (auto at = repeat.steps.upper_bound(step); at != repeat.steps.begin();) {
    --at;
    const auto in_a = steps_a_.find(at->first);
    if (in_a != steps_a_.end()) return Spot{at->first, in_a->second, at->second};
  }
  return std::nullopt;
}

Result<std::vector<double>> RepeatNoise::At(std::size_t attempt_a, std::uint32_t rank,
                                            std::uint64_t step) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto catalogue, a_.Catalogue(attempt_a, rank));
  std::vector<double> noise(catalogue->activations.size(), 0);
  for (const auto& repeat : repeats_) {
    const auto spot = Nearest(*repeat, step);
    if (!spot) continue;
    STATCOLLECT_ASSIGN_OR_RETURN(auto found, Of(*repeat, *spot, rank));
    // Another launch has its own activation ids.
    STATCOLLECT_ASSIGN_OR_RETURN(const auto then, a_.Catalogue(spot->attempt_a, rank));
    const Alignment& alignment = self_.For(rank, *catalogue, *then);
    for (std::uint32_t id = 0; id < noise.size(); ++id) {
      const std::uint32_t other = alignment.b_of(id);
      if (other < found.size()) noise[id] = std::max(noise[id], found[other]);
    }
  }
  return noise;
}

Result<std::vector<double>> RepeatNoise::Of(Repeat& repeat, const Spot& spot, std::uint32_t rank) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto a, a_.Read(spot.attempt_a, rank, spot.step));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto b,
                               repeat.view.Read(spot.attempt_repeat, rank, spot.step));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto catalogue_a, a_.Catalogue(spot.attempt_a, rank));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto catalogue_b,
                               repeat.view.Catalogue(spot.attempt_repeat, rank));
  const Alignment& alignment = repeat.aligner.For(rank, *catalogue_a, *catalogue_b);
  std::vector<double> noise(catalogue_a->activations.size(), 0);
  const PairedStep paired(alignment, a.observations, b.observations);
  for (const RecordPair& pair : paired.pairs()) noise[pair.id_a()] = ApartBy(pair.a, pair.b);
  return noise;
}

Result<double> RepeatNoise::OfLoss(std::uint32_t rank, std::uint64_t step,
                                   std::uint32_t micro_batch, const std::string& name) {
  double noise = 0;
  for (const auto& repeat : repeats_) {
    const auto spot = Nearest(*repeat, step);
    if (!spot) continue;
    const StepBounds at{.first = spot->step, .last = spot->step};
    STATCOLLECT_ASSIGN_OR_RETURN(const auto a, a_.Scalars(spot->attempt_a, rank, at));
    STATCOLLECT_ASSIGN_OR_RETURN(const auto b,
                                 repeat->view.Scalars(spot->attempt_repeat, rank, at));
    const auto counterparts = PairLosses(a, b);
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (a[i].name == name && a[i].micro_batch == micro_batch && counterparts[i] != nullptr)
        noise = std::max(noise, RelativeDifference(a[i].value, counterparts[i]->value));
    }
  }
  return noise;
}

}  // namespace statcollect::query
