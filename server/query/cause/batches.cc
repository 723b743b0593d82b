// Batches in another order: of another step, micro-batch or rank.
#include <algorithm>
#include <compare>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "common/names.h"
#include "server/query/cause/rules.h"
#include "server/query/cause/text.h"
#include "server/query/compare/roundoff.h"

namespace statcollect::query::cause {
namespace {

// The place of a batch with the root's name.
struct Batch {
  std::uint32_t rank = 0, micro_batch = 0;
  std::uint64_t step = 0;
  auto operator<=>(const Batch&) const = default;
};

// Steps, micro-batches and ranks away from the root, in the order in which they matter.
auto Away(const Batch& batch, const Side& side, const Divergence& root) {
  const std::uint64_t steps =
      batch.step > root.step ? batch.step - root.step : root.step - batch.step;
  return std::tuple(batch.rank != side.rank, steps, batch.micro_batch, batch.rank);
}

StepBounds Around(std::uint64_t step) {
  return {.first = step > kBatchStepsMax / 2 ? step - kBatchStepsMax / 2 : 0,
          .last = step + kBatchStepsMax / 2};
}

// All micro-batches of it on one rank.
Status AddSeries(const Side& side, std::uint32_t rank, const TensorKey& like, StepBounds steps,
                 std::vector<RunView::Series>& series) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto catalogue, side.view->Catalogue(side.attempt, rank));
  for (const TensorDef& def : catalogue->activations) {
    if (def.key.kind == Kind::kBatch && def.key.name == like.name &&
        def.key.output_path == like.output_path)
      series.push_back({.attempt = side.attempt,
                        .rank = rank,
                        .activation = def.id,
                        .steps = steps,
                        .points = {}});
  }
  return Status::Ok();
}

struct Seen {
  Batch at;
  std::uint64_t hash = 0, numel = 0;
};

// The batches of the root's name around its step; of other ranks those of the step itself.
Result<std::vector<Seen>> ReadBatches(const Side& side, const Divergence& root) {
  std::vector<RunView::Series> own, others;
  STATCOLLECT_RETURN_IF_ERROR(
      AddSeries(side, side.rank, side.root->def->key, Around(root.step), own));
  const StepBounds root_step{.first = root.step, .last = root.step};
  std::size_t ranks = 0;
  for (const auto& [rank, meta] : side.view->ranks(side.attempt)) {
    if (rank == side.rank || ranks++ >= kOtherRanksMax) continue;
    STATCOLLECT_RETURN_IF_ERROR(AddSeries(side, rank, side.root->def->key, root_step, others));
  }
  STATCOLLECT_RETURN_IF_ERROR(side.view->ReadSeries(own));
  STATCOLLECT_RETURN_IF_ERROR(side.view->ReadSeries(others));
  std::vector<Seen> batches;
  for (const auto* all : {&own, &others}) {
    for (const RunView::Series& series : *all) {
      STATCOLLECT_ASSIGN_OR_RETURN(auto catalogue,
                                   side.view->Catalogue(series.attempt, series.rank));
      const std::uint32_t micro_batch = catalogue->activations[series.activation].key.micro_batch;
      for (const StatPoint& point : series.points)
        batches.push_back(
            {.at = {.rank = series.rank, .micro_batch = micro_batch, .step = point.step},
             .hash = point.stats.hash,
             .numel = point.stats.numel});
    }
  }
  return batches;
}

// The closest equal batch.
std::optional<Batch> FindEqual(const std::vector<Seen>& batches, const Side& side,
                               const Observation& wanted, const Divergence& root) {
  std::optional<Batch> best;
  for (const Seen& one : batches) {
    if (one.hash != wanted.stats->hash || one.numel != wanted.stats->numel) continue;
    if (!best || Away(one.at, side, root) < Away(*best, side, root)) best = one.at;
  }
  return best;
}

// Adds the batches of one run that the other one has, too, at another place than that one's own
// batch is.
void AddMoved(const std::vector<Seen>& of, const std::vector<Seen>& other,
              std::set<std::uint64_t>& moved) {
  std::set<std::uint64_t> known;
  std::map<Batch, std::uint64_t> at;
  for (const Seen& one : other) {
    known.insert(one.hash);
    at[one.at] = one.hash;
  }
  for (const Seen& one : of) {
    const auto same_place = at.find(one.at);
    const bool stays = same_place != at.end() && same_place->second == one.hash;
    if (!stays && known.contains(one.hash)) moved.insert(one.hash);
  }
}

// A constant batch (a mask of ones) is the same in many steps and proves nothing.
bool TellsBatches(const Observation& batch) {
  return batch.layout->Trusts(Statistic::kHash) && IsContent(batch.layout->hash_kind) &&
         batch.stats->numel > 1 && batch.stats->min < batch.stats->max;
}

Cause MakeCause(const Evidence& evidence, const Batch& found, bool is_of_a, Confidence confidence) {
  const Divergence& root = evidence.root;
  const Side &has = is_of_a ? evidence.b : evidence.a, &had = is_of_a ? evidence.a : evidence.b;
  const std::string own = root.micro_batch > 0
                              ? "micro-batch " + std::to_string(root.micro_batch) + " of step "
                              : "the batch of step ";
  Cause cause{.rule = "batch_order", .confidence = confidence, .key = root.activation};
  cause.text = own + std::to_string(root.step) + " in " + has.name() + " is ";
  if (found.rank != had.rank) {
    cause.text += "that of rank " + std::to_string(found.rank) + " in " + had.name() +
                  ": the data are distributed over the ranks differently";
  } else if (found.step == root.step) {
    cause.text += "micro-batch " + std::to_string(found.micro_batch) + " of that step in " +
                  had.name() + ": the micro-batches are in a different order";
  } else {
    cause.text += "that of step " + std::to_string(found.step) + " in " + had.name() +
                  ": the data come in a different order";
  }
  cause.text += " (" + Printable(root.activation) + ")";
  for (const Side* side : {&evidence.a, &evidence.b}) {
    if (side->launched_here) cause.text += ", from the launch of " + side->name() + " on";
  }
  return cause;
}

}  // namespace

Result<const Pair*> FindAgreeingPart(const Evidence& evidence) {
  const Divergence& root = evidence.root;
  if (root.stage != Stage::kBatch || !evidence.HasRootPair()) return nullptr;
  for (const Pair& pair : evidence.at) {
    const TensorKey& key = pair.key();
    const bool other = key.kind == Kind::kBatch && pair.a != evidence.a.root &&
                       key.micro_batch == root.micro_batch && key.call == root.call &&
                       Name(key.mode) == root.mode;
    if (!other || !TellsBatches(*pair.a) || !pair.SameBits()) continue;
    // Positions are the same in every step.
    std::vector<RunView::Series> series;
    STATCOLLECT_RETURN_IF_ERROR(
        AddSeries(evidence.a, evidence.a.rank, key, Around(root.step), series));
    STATCOLLECT_RETURN_IF_ERROR(evidence.a.view->ReadSeries(series));
    for (const RunView::Series& one : series) {
      const bool changes = std::any_of(
          one.points.begin(), one.points.end(),
          [&](const StatPoint& point) { return point.stats.hash != pair.a->stats->hash; });
      if (changes) return &pair;
    }
  }
  return nullptr;
}

Found FindSameSamples(const Evidence& evidence) {
  if (evidence.agreeing_part == nullptr) return std::nullopt;
  const std::string differs = PlaceText(evidence.a.root->def->key);
  return Make("same_samples",
              differs + " differs " + evidence.AtStep() + " while " +
                  PlaceText(evidence.agreeing_part->key()) +
                  " of the same batch agrees bit for bit: the same samples, prepared differently",
              Confidence::kLikely, differs);
}

// The input has the shape of another model's output, and that pass was not recorded: it ran without
// gradients, as a generator's or a teacher's does.
Found FindUnobserved(const Evidence& evidence) {
  const Divergence& root = evidence.root;
  if (root.stage != Stage::kBatch || !evidence.HasRootPair()) return std::nullopt;
  const Layout& given = *evidence.a.root->layout;
  if (!IsFloat(given.dtype)) return std::nullopt;
  std::string_view receiver;  // the first whole model that runs after it
  for (const Pair& pair : evidence.at) {
    const TensorKey& key = pair.key();
    const bool whole = key.kind == Kind::kOutput && key.mode == Mode::kTrain &&
                       pair.a->def->depth == 1 && pair.a->order > evidence.a.root->order;
    if (!whole || key.name == receiver) continue;
    if (receiver.empty()) {
      receiver = key.name;
    } else if (pair.a->layout->dtype == given.dtype && pair.a->layout->shape == given.shape) {
      return Make("not_observed",
                  TensorText(root) + " " + evidence.AtStep() + " has the shape of the output of " +
                      Printable(key.name) +
                      ", which may have computed it without gradients; that pass was not observed "
                      "(watch(..., eval=True) records it)",
                  Confidence::kLikely, key.name);
    }
  }
  return std::nullopt;
}

Result<Found> FindBatchOrder(const Evidence& evidence, const std::stop_token&) {
  const Divergence& root = evidence.root;
  if (root.stage != Stage::kBatch || !evidence.HasRootPair()) return Found();
  if (evidence.agreeing_part != nullptr) return Found();  // the samples are where they were
  if (evidence.a.root->layout->dtype != evidence.b.root->layout->dtype) return Found();
  if (!TellsBatches(*evidence.a.root) || !TellsBatches(*evidence.b.root)) return Found();
  STATCOLLECT_ASSIGN_OR_RETURN(const auto of_a, ReadBatches(evidence.a, root));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto of_b, ReadBatches(evidence.b, root));
  // One batch may be there again by chance, or for another reason: a loader that is stuck, samples
  // that are few.
  std::set<std::uint64_t> moved;
  AddMoved(of_a, of_b, moved);
  AddMoved(of_b, of_a, moved);
  const Confidence confidence = moved.size() > 1 ? Confidence::kCertain : Confidence::kLikely;
  if (const auto found = FindEqual(of_a, evidence.a, *evidence.b.root, root))
    return Found(MakeCause(evidence, *found, /*is_of_a=*/true, confidence));
  if (const auto found = FindEqual(of_b, evidence.b, *evidence.a.root, root))
    return Found(MakeCause(evidence, *found, /*is_of_a=*/false, confidence));
  return Found();
}

}  // namespace statcollect::query::cause
