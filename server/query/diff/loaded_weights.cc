#include "server/query/diff/loaded_weights.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "common/names.h"
#include "common/step_set.h"

namespace statcollect::query {
namespace {

TensorKey AfterUpdate(TensorKey key) {
  key.mode = Mode::kTrain;
  key.call = 0;
  return key;
}

std::optional<std::uint32_t> IdOf(const RankCatalogue& catalogue, const TensorKey& key) {
  const auto found = std::find_if(catalogue.activations.begin(), catalogue.activations.end(),
                                  [&](const TensorDef& def) { return def.key == key; });
  return found == catalogue.activations.end() ? std::nullopt : std::optional(found->id);
}

}  // namespace

bool LoadedWeights::IsLoaded(const MissingRecord& missing, const RankStepFindings& at) const {
  return missing.placed.row.mode == Name(Mode::kInit) && BeginsAt(at, /*of_a=*/!missing.in_a);
}

bool LoadedWeights::IsBeforeLaunch(const MissingRecord& missing, const RankStepFindings& at) const {
  const AttemptMeta& launch =
      missing.in_a ? context_.a.attempts()[at.attempt_a] : context_.b.attempts()[at.attempt_b];
  return launch.number > 1 && missing.placed.place.IsBeforeTraining() &&
         BeginsAt(at, /*of_a=*/missing.in_a);
}

bool LoadedWeights::BeginsAt(const RankStepFindings& at, bool of_a) const {
  const auto first_step = [](const RunView& view, std::size_t attempt, std::uint32_t rank) {
    const auto meta = view.ranks(attempt).find(rank);
    return meta == view.ranks(attempt).end() ? std::nullopt : meta->second.first_step;
  };
  const auto a = first_step(context_.a, at.attempt_a, at.ranks.a),
             b = first_step(context_.b, at.attempt_b, at.ranks.b);
  const auto& [launched, other] = of_a ? std::pair(a, b) : std::pair(b, a);
  return launched && other && *launched == at.step && *other < at.step;
}

Status LoadedWeights::Compare(RankStepFindings& at) {
  for (const bool in_a : {false, true}) {
    const bool any =
        std::any_of(at.missing.begin(), at.missing.end(), [&](const MissingRecord& missing) {
          return missing.in_a == in_a && IsLoaded(missing, at);
        });
    if (any) STATCOLLECT_RETURN_IF_ERROR(CompareSide(in_a, at));
  }
  return Status::Ok();
}

Result<std::optional<std::size_t>> LoadedWeights::OwnerOf(bool of_a, std::uint64_t step) {
  const auto known = owners_.find({of_a, step});
  if (known != owners_.end()) return known->second;
  STATCOLLECT_ASSIGN_OR_RETURN(auto wanted, StepSet::Parse(std::to_string(step)));
  STATCOLLECT_ASSIGN_OR_RETURN(auto steps, (of_a ? context_.a : context_.b).Steps(wanted));
  const auto found = steps.find(step);
  return owners_[{of_a, step}] = found == steps.end() ? std::nullopt : std::optional(found->second);
}

Result<std::optional<StepData>> LoadedWeights::ReadBefore(bool of_a, std::uint32_t rank,
                                                          std::uint64_t step) {
  RunView& view = of_a ? context_.a : context_.b;
  STATCOLLECT_ASSIGN_OR_RETURN(const auto owner, OwnerOf(of_a, step - 1));
  if (!owner || !view.ranks(*owner).contains(rank)) return std::optional<StepData>();
  STATCOLLECT_ASSIGN_OR_RETURN(auto data, view.Read(*owner, rank, step - 1));
  return data.observations.empty() ? std::optional<StepData>() : std::optional(std::move(data));
}

Status LoadedWeights::CompareSide(bool in_a, RankStepFindings& at) {
  RunView& having = in_a ? context_.b : context_.a;
  const RunView& lacking = in_a ? context_.a : context_.b;
  const auto [having_attempt, having_rank, lacking_rank] =
      in_a ? std::tuple(at.attempt_b, at.ranks.b, at.ranks.a)
           : std::tuple(at.attempt_a, at.ranks.a, at.ranks.b);
  STATCOLLECT_ASSIGN_OR_RETURN(auto before, ReadBefore(in_a, lacking_rank, at.step));
  if (!before) return Status::Ok();
  STATCOLLECT_ASSIGN_OR_RETURN(auto now, having.Read(having_attempt, having_rank, at.step));
  Updated updated;  // of several updates the last one
  for (const Observation& seen : before->observations) {
    if (seen.def->key.mode == Mode::kTrain)
      updated[{seen.def->key.kind, seen.def->key.name, seen.def->key.output_path}] = &seen;
  }
  std::map<std::uint32_t, const Observation*> loaded;
  for (const Observation& seen : now.observations) loaded[seen.def->id] = &seen;
  std::vector<MissingRecord> rest;
  PairJudge judge(context_, at);
  for (MissingRecord& missing : at.missing) {
    bool compared = false;
    const auto found = loaded.find(missing.id);
    if (missing.in_a == in_a && found != loaded.end() && IsLoaded(missing, at))
      compared = ComparePair(*found->second, updated, missing, judge, at);
    if (!compared) rest.push_back(std::move(missing));
  }
  STATCOLLECT_RETURN_IF_ERROR(judge.status());
  if (rest.size() < at.missing.size()) {
    notes_.insert(having.run() + " was launched again at step " + std::to_string(at.step) +
                  "; its weights as loaded there were compared with those of " + lacking.run() +
                  " after step " + std::to_string(at.step - 1));
  }
  at.missing = std::move(rest);
  return Status::Ok();
}

// By the noise of the weight after its next update, because repeats of A may not have loaded
// anything here.
bool LoadedWeights::ComparePair(const Observation& loaded, const Updated& updated,
                                MissingRecord& missing, PairJudge& judge, RankStepFindings& at) {
  const Alignment& alignment = *at.alignment;
  // Looks for the weight under its name in the other run, which may differ.
  TensorKey key = AfterUpdate(loaded.def->key);
  const auto id = IdOf(missing.in_a ? alignment.b() : alignment.a(), key);
  const std::uint32_t other = !id            ? Alignment::kNone
                              : missing.in_a ? alignment.a_of(*id)
                                             : alignment.b_of(*id);
  if (other != Alignment::kNone)
    key = (missing.in_a ? alignment.a() : alignment.b()).activations[other].key;
  const auto found = updated.find({key.kind, key.name, key.output_path});
  if (found == updated.end()) return false;
  const Observation& a = missing.in_a ? *found->second : loaded;
  const Observation& b = missing.in_a ? loaded : *found->second;
  const Comparison comparison =
      judge(a, b, missing.in_a ? other : id.value_or(Alignment::kNone), /*interval=*/true);
  at.tally.Count(comparison, Stage::kWeights);
  const std::uint32_t mark = missing.in_a ? alignment.a_of(missing.id) : missing.id;
  const bool diverged = comparison.agreement == Agreement::kDiverged;
  if (mark != Alignment::kNone) alignment.MarkA(mark, Alignment::kCompared);
  if (mark != Alignment::kNone && diverged) alignment.MarkA(mark, Alignment::kDiverged);
  if (comparison.agreement == Agreement::kIdentical ||
      comparison.agreement == Agreement::kIncomparable)
    return true;
  auto& [place, row] = missing.placed;
  row.activation = a.def->key.name;
  FillPair(row, comparison, a, b);
  if (!(at.first_bitwise && at.first_bitwise->place < place))
    at.first_bitwise = PlacedRow{place, row};
  if (diverged) at.rows.push_back({place, std::move(row)});
  return true;
}

}  // namespace statcollect::query
