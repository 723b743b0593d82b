#include "server/query/answers/exponents.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/choice.h"
#include "common/names.h"
#include "common/text.h"
#include "proto/json.h"
#include "server/query/answers/message_parts.h"
#include "server/query/rows.h"
#include "server/query/suggest.h"

namespace statcollect::query {
namespace {

bool IsNarrow(DType dtype) {
  return std::find(kNarrowFormats.begin(), kNarrowFormats.end(), dtype) != kNarrowFormats.end();
}

// `format`: kUnspecified: all.
void Fill(const ExponentsSeen& seen, DType format, v1::ExponentRow& row) {
  FillTensor(seen, seen.record.step, row);
  row.set_lowest(seen.record.lowest);
  row.mutable_counts()->Assign(seen.record.counts.begin(), seen.record.counts.end());
  row.set_components(seen.components);
  row.set_steps(1);
  row.set_last_step(seen.record.step);
  for (const DType narrow : kNarrowFormats) {
    if (format != DType::kUnspecified && format != narrow) continue;
    const FormatLoss loss = LossIn(narrow, seen.record);
    v1::FormatLoss& added = *row.add_formats();
    added.set_dtype(std::string(Name(narrow)));
    added.set_to_zero(loss.to_zero);
    added.set_subnormal(loss.subnormal);
    added.set_overflow(loss.overflow);
    added.set_lost(seen.ShareLostIn(narrow));
  }
}

class Listing {
 public:
  explicit Listing(const ExponentsRequest& request) : format_(request.format) {}

  Status Add(const ExponentsSeen& seen) {
    if (rows_.size() >= kRowsMax) return TooManyRows("exponents");
    auto& [place, row] = rows_.emplace_back();
    place = {seen.def.key, seen.rank, seen.record.step};
    Fill(seen, format_, row);
    return Status::Ok();
  }
  void MoveTo(v1::ListExponentsResponse& out) && {
    std::stable_sort(rows_.begin(), rows_.end(),
                     [](const auto& x, const auto& y) { return x.first < y.first; });
    for (auto& [place, row] : rows_) *out.add_records() = std::move(row);
  }

 private:
  using Place = std::tuple<TensorKey, std::uint32_t, std::uint64_t>;  // rank, step
  const DType format_;
  std::vector<std::pair<Place, v1::ExponentRow>> rows_;
};

// A tensor's row that loses most, for all of its rows.
class Summary {
 public:
  explicit Summary(const ExponentsRequest& request)
      : format_(request.format),
        worst_by_(request.format == DType::kUnspecified ? DType::kF16 : request.format),
        lost_min_(request.lost_min) {}

  // Steps may come in any order, because those of several launches may alternate.
  Status Add(const ExponentsSeen& seen) {
    const double lost = seen.ShareLostIn(worst_by_);
    const std::uint64_t step = seen.record.step;
    const auto [entry, is_new] = worst_.try_emplace({seen.def.key, seen.rank});
    if (is_new && worst_.size() > kRowsMax) return TooManyRows("exponents");
    Kept& kept = entry->second;
    // At equal loss, the earlier step is kept.
    if (is_new || lost > kept.lost || (lost == kept.lost && step < kept.row.step())) {
      kept.lost = lost;
      kept.row.Clear();
      Fill(seen, format_, kept.row);
    }
    ++kept.steps;
    kept.last_step = std::max(kept.last_step, step);
    if (lost >= lost_min_) kept.since_step = std::min(kept.since_step.value_or(step), step);
    return Status::Ok();
  }
  void MoveTo(v1::ListExponentsResponse& out) && {
    std::vector<Kept*> rows;
    for (auto& [place, kept] : worst_) rows.push_back(&kept);
    std::stable_sort(rows.begin(), rows.end(),
                     [](const Kept* x, const Kept* y) { return x->lost > y->lost; });
    for (Kept* kept : rows) {
      v1::ExponentRow& row = *out.add_records();
      row = std::move(kept->row);
      row.set_steps(kept->steps);
      row.set_last_step(kept->last_step);
      if (kept->since_step) row.set_since_step(*kept->since_step);
    }
  }

 private:
  struct Kept {
    v1::ExponentRow row;
    double lost = 0;
    std::uint64_t steps = 0, last_step = 0;
    std::optional<std::uint64_t> since_step;
  };
  const DType format_, worst_by_;
  const double lost_min_;
  std::map<std::tuple<TensorKey, std::uint32_t>, Kept> worst_;  // by tensor and rank
};

template <typename Rows>
Status AddAll(const Context& context, const ExponentsRequest& request, Rows rows,
              v1::ListExponentsResponse& out) {
  const auto add = [&](const ExponentsSeen& seen) { return rows.Add(seen); };
  STATCOLLECT_RETURN_IF_ERROR(VisitExponents(context.store, request.of, add));
  std::move(rows).MoveTo(out);
  return Status::Ok();
}

// Why a selection has nothing of its activation: where the run has some, or of which activations.
Status NothingOf(const Context& context, const ExponentsSelection& asked) {
  std::set<std::string> names, kinds;
  std::set<std::uint64_t> steps;
  std::set<std::uint32_t> ranks;
  const auto note = [&](const ExponentsSeen& seen) {
    names.insert(seen.def.key.name);
    if (seen.def.key.name != asked.activation) return Status::Ok();
    steps.insert(seen.record.step);
    kinds.emplace(Name(seen.def.key.kind));
    ranks.insert(seen.rank);
    return Status::Ok();
  };
  const ExponentsSelection all{.run = asked.run};
  STATCOLLECT_RETURN_IF_ERROR(VisitExponents(context.store, all, note));
  const std::string attempted =
      "exponents of '" + Printable(asked.activation) + "' in run '" + Printable(asked.run) + "': ";
  if (!steps.empty()) {
    return {Code::kNotFound,
            attempted + "none of these steps, ranks and kinds; there are some at " +
                StepsNamed(steps) + ", of " + RanksNamed("rank", {ranks.begin(), ranks.end()}) +
                ", kind " + Joined(kinds)};
  }
  return {Code::kNotFound,
          attempted +
              (names.empty() ? "none were recorded, of no activation"
                             : "none were recorded; the run has those of: " +
                                   Suggest(asked.activation, {names.begin(), names.end()})) +
              "; STATAGENT_EXPONENTS says which are"};
}

}  // namespace

Result<ExponentsRequest> FromWire(const v1::ListExponentsRequest& request) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto of, SelectionFromWire<ExponentsSelection>(request));
  const auto format = static_cast<DType>(request.format());
  if (request.format() != v1::DTYPE_UNSPECIFIED &&
      (request.format() < 0 || request.format() >= kDTypeCount || !IsNarrow(format))) {
    return Status(
        Code::kInvalidArgument,
        "exponents: format: " + NotOneOf(EnumText(*v1::DType_descriptor(), request.format()),
                                         {"f16", "bf16", "f8e4m3", "f8e5m2"}));
  }
  if (!(request.lost_min() >= 0 && request.lost_min() <= 1)) {
    return Status(Code::kInvalidArgument, "exponents: lost_min is " +
                                              std::to_string(request.lost_min()) +
                                              "; expected a share of 0..1");
  }
  ExponentsRequest wanted{.of = std::move(of), .format = format, .summary = request.summary()};
  if (request.lost_min() > 0) wanted.lost_min = request.lost_min();
  return wanted;
}

Status ListExponents(const Context& context, const ExponentsRequest& request,
                     v1::ListExponentsResponse& out) {
  STATCOLLECT_RETURN_IF_ERROR(request.summary ? AddAll(context, request, Summary(request), out)
                                              : AddAll(context, request, Listing(request), out));
  if (out.records().empty() && !request.of.activation.empty())
    return NothingOf(context, request.of);
  return Status::Ok();
}

}  // namespace statcollect::query
