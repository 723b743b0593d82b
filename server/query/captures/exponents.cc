#include "server/query/captures/exponents.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/step_set.h"
#include "server/query/rows.h"
#include "server/query/run_view.h"

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
constexpr std::uint64_t kStepsARead = 32;  // steps that are read at a time, ...
constexpr std::uint64_t kWindowsMax =
    16384;  // ... or more, where a rank's would take more reads than these

bool Defines(const RankCatalogue& catalogue, const ExponentRecord& record) {
  return record.activation < catalogue.activations.size() &&
         record.layout < catalogue.layouts.size();
}

class ExponentsScan {
 public:
  ExponentsScan(RecordReader& store, RunView& view, const ExponentsSelection& selection,
                StepSet wanted, StepOwners owners, const std::function<Status(ExponentsSeen)>& take)
      : store_(store),
        view_(view),
        selection_(selection),
        wanted_(std::move(wanted)),
        owners_(std::move(owners)),
        take_(take) {}

  Status Run(const std::stop_token& stop) {
    for (std::size_t attempt = 0; attempt < view_.attempts().size(); ++attempt) {
      for (const auto& [rank, meta] : view_.ranks(attempt)) {
        if (!IsWanted(selection_.ranks, rank)) continue;
        STATCOLLECT_RETURN_IF_ERROR(AddRank(attempt, rank, meta, stop));
      }
    }
    return Status::Ok();
  }

 private:
  Status AddRank(std::size_t attempt, std::uint32_t rank, const RankMeta& meta,
                 const std::stop_token& stop);
  Status AddWindow(std::size_t attempt, std::uint32_t rank, StepBounds window);
  Result<const RankCatalogue*> CatalogueOf(std::size_t attempt, std::uint32_t rank,
                                           const ExponentRecord& record);
  bool IsWantedTensor(const TensorKey& key) const {
    return (selection_.activation.empty() || key.name == selection_.activation) &&
           IsWanted(selection_.kinds, key.kind);
  }

  RecordReader& store_;
  RunView& view_;
  const ExponentsSelection& selection_;
  const StepSet wanted_;
  const StepOwners owners_;
  const std::function<Status(ExponentsSeen)>& take_;
};

// A window at a time. The first also has what is before the steps that the rank is known to have,
// the last what came after them.
Status ExponentsScan::AddRank(std::size_t attempt, std::uint32_t rank, const RankMeta& meta,
                              const std::stop_token& stop) {
  const std::uint64_t start =
      std::clamp(meta.first_step.value_or(0), wanted_.first(), wanted_.last());
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

Status ExponentsScan::AddWindow(std::size_t attempt, std::uint32_t rank, StepBounds window) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto found,
                               store_.Exponents(view_.attempts()[attempt].id, rank, window));
  for (ExponentRecord& record : found) {
    if (!wanted_.Contains(record.step) || !owners_.IsOf(attempt, record.step)) continue;
    STATCOLLECT_ASSIGN_OR_RETURN(const auto catalogue, CatalogueOf(attempt, rank, record));
    const TensorDef& def = catalogue->activations[record.activation];
    if (!IsWantedTensor(def.key)) continue;
    ExponentsSeen seen{.run = view_.run(),
                       .rank = rank,
                       .attempt = view_.attempts()[attempt].number,
                       .def = def,
                       .layout = catalogue->layouts[record.layout],
                       .record = std::move(record)};
    const auto& counts = seen.record.counts;
    seen.components = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
    STATCOLLECT_RETURN_IF_ERROR(take_(std::move(seen)));
  }
  return Status::Ok();
}

// Read again where a live run has defined more since the windows before.
Result<const RankCatalogue*> ExponentsScan::CatalogueOf(std::size_t attempt, std::uint32_t rank,
                                                        const ExponentRecord& record) {
  auto catalogue = view_.Catalogue(attempt, rank);
  if (!catalogue.ok() || Defines(**catalogue, record)) return catalogue;
  StatColumns uses;
  uses.activation = {record.activation};
  uses.layout = {record.layout};
  return view_.CatalogueOf(attempt, rank, record.step, {&uses, 1});
}

}  // namespace

FormatLoss LossIn(DType format, const ExponentRecord& record) {
  const auto range = std::find_if(kFormats.begin(), kFormats.end(),
                                  [&](const FormatRange& each) { return each.format == format; });
  FormatLoss loss;
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

double ExponentsSeen::ShareLostIn(DType format) const {
  const FormatLoss loss = LossIn(format, record);
  return components == 0 ? 0.0 : static_cast<double>(loss.lost()) / static_cast<double>(components);
}

Status VisitExponents(RecordReader& store, const ExponentsSelection& selection,
                      const std::stop_token& stop,
                      const std::function<Status(ExponentsSeen)>& take) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto view, RunView::Open(store, selection.run));
  STATCOLLECT_ASSIGN_OR_RETURN(auto wanted, StepSet::Parse(selection.steps));
  STATCOLLECT_ASSIGN_OR_RETURN(auto owners, StepOwners::Of(view, wanted));
  return ExponentsScan(store, view, selection, std::move(wanted), std::move(owners), take)
      .Run(stop);
}

}  // namespace statcollect::query
