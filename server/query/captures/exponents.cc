#include "server/query/captures/exponents.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/step_set.h"
#include "server/query/each_record.h"
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
                      const std::function<Status(ExponentsSeen)>& take) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto view, RunView::Open(store, selection.run));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto wanted, StepSet::Parse(selection.steps));
  const auto add = [&](std::size_t attempt, std::uint32_t rank, ExponentRecord& record) -> Status {
    STATCOLLECT_ASSIGN_OR_RETURN(const auto catalogue, view.CatalogueOf(attempt, rank, record));
    const TensorDef& def = catalogue->activations[record.activation];
    if ((!selection.activation.empty() && def.key.name != selection.activation) ||
        !IsWanted(selection.kinds, def.key.kind))
      return Status::Ok();
    ExponentsSeen seen{.run = view.run(),
                       .rank = rank,
                       .attempt = view.attempts()[attempt].number,
                       .def = def,
                       .layout = catalogue->layouts[record.layout],
                       .record = std::move(record)};
    const auto& counts = seen.record.counts;
    seen.components = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
    return take(std::move(seen));
  };
  return ForEachRecord<ExponentRecord>(store, view, selection.ranks, wanted, add);
}

}  // namespace statcollect::query
