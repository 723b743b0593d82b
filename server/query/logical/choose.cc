#include "server/query/logical/choose.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/names.h"
#include "common/saturating.h"
#include "common/text.h"
#include "server/query/logical/common_parts.h"
#include "server/query/logical/cut.h"
#include "server/query/logical/rank_factors.h"
#include "server/query/number_text.h"

namespace statcollect::query {
namespace {

using RankLayouts = std::set<Cut>;

struct Layouts {
  std::vector<RankLayouts> ranks;                 // ascending
  std::vector<std::set<std::string>> parameters;  // their kinds and names, by rank
  bool any_placement = false;
  bool stages = false;              // ranks hold other weights than each other
  bool uneven = false;              // or another optimizer state
  std::uint32_t micro_batches = 1;  // of a step
};

// Looks at a rank's definitions.
void LookAt(const RankCatalogue& catalogue, std::set<std::string>* weights,
            std::set<std::string>* parameters, std::uint32_t* micro_batches) {
  for (const TensorDef& def : catalogue.activations) {
    if (def.key.kind == Kind::kWeight) weights->insert(def.key.name);
    if (def.key.kind == Kind::kWeight || def.key.kind == Kind::kOptimizerState)
      parameters->insert(std::string(Name(def.key.kind)) + " " + def.key.name);
    if (def.key.kind == Kind::kOutput && def.key.mode == Mode::kTrain)
      *micro_batches = std::max(*micro_batches, SaturatingAdd(def.key.micro_batch, 1));
  }
}

Result<Layouts> LayoutsOf(RunView& view) {
  Layouts found;
  const std::size_t newest = view.attempts().size() - 1;
  std::set<std::string> first_weights;
  for (const auto& [rank, meta] : view.ranks(newest)) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto catalogue, view.Catalogue(newest, rank));
    std::set<std::string> weights;
    LookAt(*catalogue, &weights, &found.parameters.emplace_back(), &found.micro_batches);
    if (found.ranks.empty()) first_weights = weights;
    found.stages = found.stages || weights != first_weights;
    RankLayouts& of = found.ranks.emplace_back();
    for (const Layout& layout : catalogue->layouts) {
      found.any_placement = found.any_placement || layout.placement;
      Cut cut = CutOf(layout);
      if (!cut.empty()) of.insert(std::move(cut));
    }
    found.uneven = found.uneven || found.parameters.back() != found.parameters.front();
  }
  return found;
}

std::string TensorText(const TensorName& tensor) {
  return std::string(Name(tensor.kind)) + " " + Printable(tensor.name);
}

void NoteCut(const RunView& a, const RunView& b, bool fold, const std::set<TensorName>& hidden,
             LogicalPair* pair) {
  const RunCut &of_a = pair->a->cut(), &of_b = pair->b->cut();
  pair->ranks = "compared as one model each: the tensors of " + Counted(of_a.ranks, "rank") +
                " of " + a.run() + " and of " + Counted(of_b.ranks, "rank") + " of " + b.run() +
                " were combined (--by-rank compares rank by rank)";
  if (fold) {
    const auto parts = [](const RunCut& cut) {
      return Counted(std::size_t{cut.pieces} * cut.micro_batches, "part");
    };
    pair->notes.push_back("the batch of a step is in " + parts(of_a) + " in " + a.run() +
                          " and in " + parts(of_b) + " in " + b.run() +
                          ": activations whose samples are not in a known order were compared by "
                          "extremes, mean and deviation; gradients of activations depend on how "
                          "the loss is averaged and were not compared");
  }
  if (!hidden.empty()) {
    pair->notes.push_back("layout not known: " + Counted(hidden.size(), "tensor") + ", such as " +
                          TensorText(*hidden.begin()) +
                          ", may be split over the ranks, and nothing shows how; they were not "
                          "compared; declare it with watch(layouts=...)");
  }
}

// Names of parameters that are the same tensor as one of another name, as the agent recorded them.
std::set<std::string> TiedNames(const RunView& view) {
  constexpr std::string_view kTied = "model.tied.";
  std::set<std::string> tied;
  for (const auto& [rank, meta] : view.ranks(view.attempts().size() - 1)) {
    for (const auto& [key, names] : meta.info.config) {
      if (!key.starts_with(kTied)) continue;
      for (const std::string_view name : AllPartsOf(names, ", ")) tied.emplace(name);
      tied.erase("");
    }
  }
  return tied;
}

// Whether two runs of one rank each, whose steps have different numbers of micro-batches, may have
// cut one batch: as many elements of some activation in a step. Otherwise one of them did something
// twice.
bool SameBatch(const RunCut& a, const RunCut& b) {
  return std::any_of(a.trained.begin(), a.trained.end(), [&](const auto& of_a) {
    const auto of_b = b.trained.find(of_a.first);
    return of_b != b.trained.end() && of_b->second.elements == of_a.second.elements;
  });
}

// Activations in evaluation, as of a frozen model beside the trained one, that the runs computed of
// the same number of elements in other numbers of passes. Passes in evaluation have no micro-batch.
std::set<TensorName> EvaluatedInOtherPasses(const RunCut& a, const RunCut& b) {
  std::set<TensorName> names;
  for (const auto& [name, of_a] : a.evaluated) {
    const auto of_b = b.evaluated.find(name);
    if (of_b != b.evaluated.end() && of_b->second.elements == of_a.elements &&
        of_b->second.passes != of_a.passes)
      names.insert(name);
  }
  return names;
}

// Whether the runs differ in ranks, stages, micro-batches or in what each rank holds of the
// optimizer.
bool OtherRanks(const Layouts& a, const Layouts& b) {
  return a.ranks.size() != b.ranks.size() || a.stages != b.stages || a.uneven != b.uneven ||
         a.micro_batches != b.micro_batches;
}

// Of the tensors that both runs have, by name; of runs without any, by the layouts that each rank
// has at all. A tensor whose place only one run knows is not cut alike, unless it is whole.
bool CutAlike(const Layouts& in_a, const Layouts& in_b, const RunCut& a, const RunCut& b) {
  bool any = false;
  for (const auto& [name, of_a] : a.tensors) {
    const auto found = b.tensors.find(name);
    if (found == b.tensors.end()) continue;
    any = true;
    const TensorCut& of_b = found->second;
    const bool alike =
        std::any_of(of_a.prints.begin(), of_a.prints.end(),
                    [&](std::uint64_t print) { return of_b.prints.contains(print); });
    if (!alike) return false;
    if (a.unknown.contains(name) != b.unknown.contains(name) && of_a.shape != of_b.shape)
      return false;
  }
  return any || in_a.ranks == in_b.ranks;
}

// Tensors that only their equal bits make replicas, but that are constant and of another shape than
// in the other run: each rank may have a part. Of a parameter, its gradient and state as well.
void AddPerhapsCut(const RunCut& run, const RunCut& other, std::set<TensorName>& hidden) {
  std::set<std::string> parameters;
  for (const auto& [name, cut] : run.tensors) {
    if (!cut.perhaps_cut) continue;
    const auto found = other.tensors.find(name);
    if (found == other.tensors.end() || found->second.whole == cut.whole) continue;
    hidden.insert(name);
    if (IsOfParameter(name.kind)) parameters.insert(name.name);
  }
  for (const auto& [name, cut] : run.tensors) {
    if (IsOfParameter(name.kind) && parameters.contains(name.name)) hidden.insert(name);
  }
}

LogicalPair MakePair(const RunView& a, const RunView& b, std::unique_ptr<LogicalRun> of_a,
                     std::unique_ptr<LogicalRun> of_b) {
  LogicalPair pair{.a = std::move(of_a), .b = std::move(of_b), .ranks = {}, .notes = {}};
  const RunCut &cut_a = pair.a->cut(), &cut_b = pair.b->cut();
  std::set<TensorName> hidden = cut_a.unknown;
  hidden.insert(cut_b.unknown.begin(), cut_b.unknown.end());
  AddPerhapsCut(cut_a, cut_b, hidden);
  AddPerhapsCut(cut_b, cut_a, hidden);
  const bool as_run = (cut_a.stages > 1 || cut_b.stages > 1) && cut_a.micro_batches > 1;
  const bool fold = cut_a.pieces != cut_b.pieces || cut_a.micro_batches != cut_b.micro_batches ||
                    as_run || cut_a.batch_of_step || cut_b.batch_of_step;
  NoteCut(a, b, fold, hidden, &pair);
  std::set<TensorName> evaluated = EvaluatedInOtherPasses(cut_a, cut_b);
  pair.a->Choose(hidden, TiedNames(b), fold, evaluated);
  pair.b->Choose(std::move(hidden), TiedNames(a), fold, std::move(evaluated));
  return pair;
}

// The records of a row's tensor, of all ranks of one of the runs.
Result<LogicalRun::HeldParts> PartsOf(LogicalRun& run, const Divergence& row,
                                      const std::string& name) {
  return run.ReadParts(row.step, [&](const TensorKey& key) {
    return key.kind == row.kind && key.name == name && key.output_path == row.output_path &&
           key.call == row.call && key.micro_batch == row.micro_batch && Name(key.mode) == row.mode;
  });
}

const std::string& NameInB(const Divergence& row) {
  return row.activation_b.empty() ? row.activation : row.activation_b;
}

// Only where both runs hold parts: a whole tensor has no smaller part in common with anything.
Status FindParts(const LogicalPair& pair, Divergence& row) {
  if (row.ranks_a.size() < 2 || row.ranks_b.size() < 2 || !row.a || !row.b) return Status::Ok();
  STATCOLLECT_ASSIGN_OR_RETURN(auto parts_a, PartsOf(*pair.a, row, row.activation));
  STATCOLLECT_ASSIGN_OR_RETURN(auto parts_b, PartsOf(*pair.b, row, NameInB(row)));
  if (parts_a.parts.empty() || parts_b.parts.empty()) return Status::Ok();
  CommonParts common = CompareCommonParts(parts_a.parts, parts_b.parts, row.tolerance);
  row.parts = std::move(common.differing);
  row.parts_total = common.total;
  return Status::Ok();
}

// Of a root at a loss or in a gradient: the first gradients of its step tell. A mean over each
// rank's own tokens, or a clip by the norm of its own part, gives each rank a factor of its own.
Status FindRankFactors(const LogicalPair& pair, const std::string& a, const std::string& b,
                       DiffReport* report) {
  constexpr std::size_t kLookedAt = 4;
  Root& root = *report->root;
  if (root.at.stage < Stage::kLoss || root.at.stage > Stage::kGrad) return Status::Ok();
  std::vector<const Divergence*> gradients = {&root.at};
  for (const Divergence& row : report->diverged) {
    if (row.step == root.at.step && gradients.size() < kLookedAt) gradients.push_back(&row);
  }
  for (const Divergence* const row : gradients) {
    if (row->stage != Stage::kBackward && row->stage != Stage::kGrad) continue;
    if (row->ranks_b.size() < 2) continue;
    STATCOLLECT_ASSIGN_OR_RETURN(const auto in_a, PartsOf(*pair.a, *row, row->activation));
    STATCOLLECT_ASSIGN_OR_RETURN(const auto in_b, PartsOf(*pair.b, *row, NameInB(*row)));
    const auto factors = RankFactors(in_a.parts, in_b.parts);
    if (factors.empty()) continue;
    const TensorName name{row->kind, row->activation, row->output_path};
    root.causes.insert(
        root.causes.begin(),
        {.rule = "gradient_scale",
         .text = TensorText(name) + " in " + b + " is " + FactorsText(factors, a) + " at step " +
                 std::to_string(row->step) + ": each rank scales by itself",
         .confidence = Confidence::kCertain,
         .key = row->activation});
    break;
  }
  return Status::Ok();
}

}  // namespace

Result<std::optional<LogicalPair>> ChooseLogical(RunReader& store, RunView& a, RunView& b,
                                                 const DiffRequest& request) {
  if (request.by_rank || request.merge_ranks || !request.ranks.empty()) return {std::nullopt};
  std::vector<RankOfRun> all = RanksOf(a, a.attempts().size() - 1, a.attempts().size() - 1);
  const auto of_b = RanksOf(b, b.attempts().size() - 1, b.attempts().size() - 1);
  all.insert(all.end(), of_b.begin(), of_b.end());
  ReadCatalogues(all);
  STATCOLLECT_ASSIGN_OR_RETURN(const Layouts in_a, LayoutsOf(a));
  STATCOLLECT_ASSIGN_OR_RETURN(const Layouts in_b, LayoutsOf(b));
  const bool single = in_a.ranks.size() == 1 && in_b.ranks.size() == 1;
  const bool placements = in_a.any_placement || in_b.any_placement;
  const bool other_ranks = OtherRanks(in_a, in_b);
  const bool maybe = placements || (other_ranks && (single || in_a.stages != in_b.stages));
  if (!request.logical && !maybe) return {std::nullopt};
  STATCOLLECT_ASSIGN_OR_RETURN(auto whole_a, LogicalRun::Open(store, a.run()));
  STATCOLLECT_ASSIGN_OR_RETURN(auto whole_b, LogicalRun::Open(store, b.run()));
  const bool one_rank_each = single && !placements;
  if (!request.logical && one_rank_each && !SameBatch(whole_a->cut(), whole_b->cut()))
    return {std::nullopt};
  const bool alike = !other_ranks && CutAlike(in_a, in_b, whole_a->cut(), whole_b->cut());
  if (!request.logical && alike) return {std::nullopt};
  return {MakePair(a, b, std::move(whole_a), std::move(whole_b))};
}

std::vector<double> LossFactors(const LogicalPair& pair) {
  const RunCut &a = pair.a->cut(), &b = pair.b->cut();
  const double micro = static_cast<double>(b.micro_batches) / a.micro_batches;
  std::vector<double> factors;
  for (const double factor : {micro, micro * b.pieces / a.pieces}) {
    if (factor != 1 && pair.a->folds_micro_batches()) factors.push_back(factor);
  }
  return factors;
}

Status DescribeRanks(const LogicalPair& pair, const RunView& a, const RunView& b,
                     DiffReport* report) {
  const auto describe = [&](Divergence& row) {
    const TensorName in_a{row.kind, row.activation, row.output_path};
    const TensorName in_b{row.kind, row.activation_b.empty() ? row.activation : row.activation_b,
                          row.output_path};
    row.ranks_a = pair.a->RanksOf(in_a);
    row.ranks_b = pair.b->RanksOf(in_b);
    row.logical = true;
  };
  if (report->first) describe(*report->first);
  if (report->first_bitwise) describe(*report->first_bitwise);
  for (Divergence& row : report->diverged) describe(row);
  for (Divergence& row : report->origins) describe(row);
  if (report->root) {
    describe(report->root->at);
    for (Divergence& row : report->root->alternatives) describe(row);
  }
  if (report->first) STATCOLLECT_RETURN_IF_ERROR(FindParts(pair, *report->first));
  if (report->root) {
    STATCOLLECT_RETURN_IF_ERROR(FindParts(pair, report->root->at));
    STATCOLLECT_RETURN_IF_ERROR(FindRankFactors(pair, a.run(), b.run(), report));
  }
  report->ranks = a.AllRanks();
  report->ranks_b = b.AllRanks();
  for (const LogicalRun* run : {pair.a.get(), pair.b.get()}) {
    for (std::string& note : run->Notes()) report->notes.push_back(std::move(note));
  }
  report->notes.insert(report->notes.begin(), pair.notes.begin(), pair.notes.end());
  for (PremiseCheck& check : report->comparable) {
    if (check.premise == Premise::kRanks) check.detail = pair.ranks;
  }
  return Status::Ok();
}

}  // namespace statcollect::query
