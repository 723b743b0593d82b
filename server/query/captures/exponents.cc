#include "server/query/captures/exponents.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "common/names.h"
#include "common/step_set.h"
#include "common/text.h"
#include "server/query/reports.h"
#include "server/query/rows.h"
#include "server/query/run_view.h"
#include "server/query/suggest.h"

namespace statcollect::query {
namespace {

// Exponents at which a format's fate of a number changes.
struct FormatRange {
  DType format;
  int zero_below;     // less than half of the lowest subnormal
  int normal_from;    // of the lowest normal number
  int overflow_from;  // beyond the highest number
};
constexpr std::array<FormatRange, 4> kFormats = {{{DType::kF16, -25, -14, 16},
                                                  {DType::kBf16, -134, -126, 128},
                                                  {DType::kF8E4M3, -10, -6, 9},
                                                  {DType::kF8E5M2, -17, -14, 16}}};
constexpr std::uint64_t kStepsARead = 32;     // steps that are read at a time, ...
constexpr std::uint64_t kWindowsMax = 16384;  // ... or more, where a rank's would take more reads than these

double Share(const FormatLoss& loss, std::uint64_t components) {
  return components == 0 ? 0.0 : static_cast<double>(loss.lost()) / static_cast<double>(components);
}

// The tensor that a row is about.
using RankTensor = std::tuple<TensorKey, std::uint32_t>;  // and its rank
auto PlaceOf(const ExponentRow& row) { return std::tie(row.def.key, row.rank); }

bool Defines(const RankCatalogue& catalogue, const ExponentRecord& record) {
  return record.activation < catalogue.activations.size() && record.layout < catalogue.layouts.size();
}

class Lister {
 public:
  Lister(Store& store, RunView& view, const ExponentsRequest& request, StepSet wanted, StepOwners owners)
      : store_(store),
        view_(view),
        request_(request),
        wanted_(std::move(wanted)),
        worst_by_(request.format == DType::kUnspecified ? DType::kF16 : request.format),
        owners_(std::move(owners)) {}

  Result<std::vector<ExponentRow>> Run(const std::stop_token& stop);
  const std::set<std::string>& names() const {
    return names_;
  }  // that have any, in the steps that were asked for

 private:
  Status AddRank(std::size_t attempt, std::uint32_t rank, const RankMeta& meta, const std::stop_token& stop);
  Status AddWindow(std::size_t attempt, std::uint32_t rank, StepBounds window);
  bool IsWantedOf(std::size_t attempt, std::uint64_t step) const;
  Result<const RankCatalogue*> CatalogueOf(std::size_t attempt, std::uint32_t rank,
                                           const ExponentRecord& record);
  bool IsWantedTensor(const TensorKey& key) const;
  ExponentRow MakeRow(std::size_t attempt, std::uint32_t rank, const RankCatalogue& catalogue,
                      ExponentRecord record) const;
  Status Add(ExponentRow row);
  Status Fold(ExponentRow row);
  bool IsWorse(const ExponentRow& row, const ExponentRow& kept) const;
  std::vector<ExponentRow> Sorted();
  std::vector<ExponentRow> SortedSummary();
  double Lost(const ExponentRow& row) const { return Share(LossIn(worst_by_, row.record), row.components); }

  Store& store_;
  RunView& view_;
  const ExponentsRequest& request_;
  const StepSet wanted_;
  const DType worst_by_;
  const StepOwners owners_;
  std::set<std::string> names_;
  std::vector<ExponentRow> rows_;  // of a listing
  std::map<RankTensor, ExponentRow>
      worst_;  // of a summary: a tensor's row that loses most, for all of its rows
};

ExponentRow Lister::MakeRow(std::size_t attempt, std::uint32_t rank, const RankCatalogue& catalogue,
                            ExponentRecord record) const {
  ExponentRow row;
  row.run = view_.run();
  row.rank = rank;
  row.attempt = view_.attempts()[attempt].number;
  row.def = catalogue.activations[record.activation];
  row.layout = catalogue.layouts[record.layout];
  row.components = std::accumulate(record.counts.begin(), record.counts.end(), std::uint64_t{0});
  row.last_step = record.step;
  for (const FormatRange& range : kFormats) {
    if (request_.format == DType::kUnspecified || request_.format == range.format)
      row.formats.push_back(LossIn(range.format, record));
  }
  row.record = std::move(record);
  return row;
}

// A window at a time. The first also has what is before the steps that the rank is known to have, the last
// what came after them.
Status Lister::AddRank(std::size_t attempt, std::uint32_t rank, const RankMeta& meta,
                       const std::stop_token& stop) {
  const std::uint64_t start = std::clamp(meta.first_step.value_or(0), wanted_.first(), wanted_.last());
  const std::uint64_t end = std::clamp(meta.last_step.value_or(0), start, wanted_.last());
  const std::uint64_t span = std::max(kStepsARead, (end - start) / kWindowsMax);
  StepBounds window{.first = wanted_.first()};
  for (std::uint64_t at = start;; at += span) {
    if (stop.stop_requested()) return Cancelled();
    const bool is_last = end - at < span;
    window.last = is_last ? wanted_.last() : at + span - 1;
    STATCOLLECT_RETURN_IF_ERROR(AddWindow(attempt, rank, window));
    if (is_last) return Status::Ok();
    window.first = window.last + 1;
  }
}

Status Lister::AddWindow(std::size_t attempt, std::uint32_t rank, StepBounds window) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto found, store_.Exponents(view_.attempts()[attempt].id, rank, window));
  for (ExponentRecord& record : found) {
    if (!IsWantedOf(attempt, record.step)) continue;
    STATCOLLECT_ASSIGN_OR_RETURN(const auto catalogue, CatalogueOf(attempt, rank, record));
    const TensorKey& key = catalogue->activations[record.activation].key;
    names_.insert(key.name);
    if (!IsWantedTensor(key)) continue;
    ExponentRow row = MakeRow(attempt, rank, *catalogue, std::move(record));
    STATCOLLECT_RETURN_IF_ERROR(request_.summary ? Fold(std::move(row)) : Add(std::move(row)));
  }
  return Status::Ok();
}

bool Lister::IsWantedOf(std::size_t attempt, std::uint64_t step) const {
  return wanted_.Contains(step) && owners_.IsOf(attempt, step);
}

// Read again where a live run has defined more since the windows before.
Result<const RankCatalogue*> Lister::CatalogueOf(std::size_t attempt, std::uint32_t rank,
                                                 const ExponentRecord& record) {
  auto catalogue = view_.Catalogue(attempt, rank);
  if (!catalogue.ok() || Defines(**catalogue, record)) return catalogue;
  StatColumns uses;
  uses.activation = {record.activation};
  uses.layout = {record.layout};
  return view_.CatalogueOf(attempt, rank, record.step, {&uses, 1});
}

bool Lister::IsWantedTensor(const TensorKey& key) const {
  return (request_.activation.empty() || key.name == request_.activation) &&
         IsWanted(request_.kinds, key.kind);
}

Status Lister::Add(ExponentRow row) {
  if (rows_.size() >= kRowsMax) return TooManyRows("exponents");
  rows_.push_back(std::move(row));
  return Status::Ok();
}

// Steps may come in any order, because those of several launches may alternate.
Status Lister::Fold(ExponentRow row) {
  if (Lost(row) >= request_.lost_min) row.since_step = row.record.step;
  const RankTensor place = PlaceOf(row);
  const auto entry = worst_.find(place);
  if (entry == worst_.end()) {
    if (worst_.size() >= kRowsMax) return TooManyRows("exponents");
    worst_.emplace(place, std::move(row));
    return Status::Ok();
  }
  ExponentRow& kept = entry->second;
  const std::uint64_t steps = kept.steps + 1;
  const std::uint64_t last_step = std::max(kept.last_step, row.last_step);
  std::optional<std::uint64_t> since = kept.since_step;
  if (row.since_step) since = std::min(since.value_or(*row.since_step), *row.since_step);
  if (IsWorse(row, kept)) kept = std::move(row);
  kept.steps = steps;
  kept.last_step = last_step;
  kept.since_step = since;
  return Status::Ok();
}

// At equal loss, the earlier step is kept.
bool Lister::IsWorse(const ExponentRow& row, const ExponentRow& kept) const {
  const double lost = Lost(row), lost_before = Lost(kept);
  return lost > lost_before || (lost == lost_before && row.record.step < kept.record.step);
}

std::vector<ExponentRow> Lister::Sorted() {
  std::stable_sort(rows_.begin(), rows_.end(), [](const ExponentRow& a, const ExponentRow& b) {
    return std::tuple_cat(PlaceOf(a), std::tie(a.record.step)) <
           std::tuple_cat(PlaceOf(b), std::tie(b.record.step));
  });
  return std::move(rows_);
}

std::vector<ExponentRow> Lister::SortedSummary() {
  std::vector<ExponentRow> rows;
  rows.reserve(worst_.size());
  for (auto& [place, row] : worst_) rows.push_back(std::move(row));
  std::stable_sort(rows.begin(), rows.end(),
                   [this](const ExponentRow& a, const ExponentRow& b) { return Lost(a) > Lost(b); });
  return rows;
}

Result<std::vector<ExponentRow>> Lister::Run(const std::stop_token& stop) {
  for (std::size_t attempt = 0; attempt < view_.attempts().size(); ++attempt) {
    for (const auto& [rank, meta] : view_.ranks(attempt)) {
      if (!IsWanted(request_.ranks, rank)) continue;
      STATCOLLECT_RETURN_IF_ERROR(AddRank(attempt, rank, meta, stop));
    }
  }
  return request_.summary ? SortedSummary() : Sorted();
}

// Why a selection has nothing of its activation: where the run has some, or of which activations.
Status NothingOf(Store& store, RunView& view, const ExponentsRequest& asked, const std::stop_token& stop) {
  const ExponentsRequest request{.run = asked.run, .activation = asked.activation};
  const StepSet every = StepSet::Parse("").value();
  STATCOLLECT_ASSIGN_OR_RETURN(auto owners, StepOwners::Of(view, every));
  Lister lister(store, view, request, every, std::move(owners));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto rows, lister.Run(stop));
  const std::string attempted =
      "exponents of '" + Printable(asked.activation) + "' in run '" + Printable(asked.run) + "': ";
  if (!rows.empty()) {
    std::set<std::uint64_t> steps;
    std::set<std::string> kinds;
    std::set<std::uint32_t> ranks;
    for (const ExponentRow& row : rows) {
      steps.insert(row.record.step);
      kinds.emplace(Name(row.def.key.kind));
      ranks.insert(row.rank);
    }
    std::string known;
    for (const std::string& kind : kinds) known += (known.empty() ? "" : ", ") + kind;
    return {Code::kNotFound, attempted + "none of these steps, ranks and kinds; there are some at " +
                                 StepsNamed(steps) + ", of " +
                                 RanksNamed("rank", {ranks.begin(), ranks.end()}) + ", kind " + known};
  }
  const std::set<std::string>& names = lister.names();
  return {Code::kNotFound, attempted +
                               (names.empty() ? "none were recorded, of no activation"
                                              : "none were recorded; the run has those of: " +
                                                    Suggest(asked.activation, {names.begin(), names.end()})) +
                               "; STATAGENT_EXPONENTS says which are"};
}

}  // namespace

FormatLoss LossIn(DType format, const ExponentRecord& record) {
  const auto range = std::find_if(kFormats.begin(), kFormats.end(),
                                  [&](const FormatRange& each) { return each.format == format; });
  FormatLoss loss{.format = format};
  int exponent = record.lowest;
  for (const std::uint64_t count : record.counts) {
    if (exponent < range->zero_below) {
      loss.to_zero += count;
    } else if (exponent < range->normal_from) {
      loss.subnormal += count;
    } else if (exponent >= range->overflow_from) {
      loss.overflow += count;
    }
    ++exponent;
  }
  return loss;
}

Result<std::vector<ExponentRow>> ListExponents(Store& store, const ExponentsRequest& request,
                                               const std::stop_token& stop) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto view, RunView::Open(store, request.run));
  STATCOLLECT_ASSIGN_OR_RETURN(auto wanted, StepSet::Parse(request.steps));
  STATCOLLECT_ASSIGN_OR_RETURN(auto owners, StepOwners::Of(view, wanted));
  auto rows = Lister(store, view, request, std::move(wanted), std::move(owners)).Run(stop);
  if (rows.ok() && rows->empty() && !request.activation.empty()) return NothingOf(store, view, request, stop);
  return rows;
}

}  // namespace statcollect::query
