#include "server/query/zoom/zoom.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "common/step_set.h"
#include "server/query/rows.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kCallsMax = 1000;  // of an answer

// Every zoomed call of a rank, each step of the launch that it comes from.
struct Found {
  std::size_t attempt = 0;
  ZoomDocument document;
};
using Calls = std::map<std::tuple<std::uint64_t, std::uint32_t, std::string, std::size_t,
                                  std::string, std::uint32_t, std::uint32_t>,
                       Found>;

// Passes in the order in which they run: those that are unknown come last.
std::size_t OrderOf(const std::string& pass) {
  static constexpr std::string_view kPasses[] = {"forward", "backward", "update"};
  return static_cast<std::size_t>(std::find(std::begin(kPasses), std::end(kPasses), pass) -
                                  std::begin(kPasses));
}

Result<Calls> CallsOf(RunView& view, const ZoomRequest& request, const StepSet& wanted, bool* any) {
  STATCOLLECT_ASSIGN_OR_RETURN(const StepOwners owners, StepOwners::Of(view, wanted));
  Calls calls;
  for (std::size_t attempt = 0; attempt < view.attempts().size(); ++attempt) {
    for (const auto& [rank, meta] : view.ranks(attempt)) {
      STATCOLLECT_ASSIGN_OR_RETURN(const auto events, view.Events(attempt, rank));
      for (ZoomDocument& document : ReadZoomDocuments(events)) {
        *any = true;
        if (!wanted.Contains(document.step) || !IsWanted(request.ranks, rank) ||
            !owners.IsOf(attempt, document.step) ||
            (!request.module.empty() && document.module != request.module))
          continue;
        auto key = std::tuple(document.step, rank, document.module, OrderOf(document.pass),
                              document.pass, document.micro_batch, document.call);
        calls.insert_or_assign(std::move(key),
                               Found{.attempt = attempt, .document = std::move(document)});
      }
    }
  }
  return calls;
}

// The records of a step's operators, by name, output path, micro-batch and call.
class Values {
 public:
  Status Read(RunView& view, std::size_t attempt, std::uint32_t rank, std::uint64_t step) {
    const auto at = std::tuple(attempt, rank, step);
    if (read_ && at_ == at) return Status::Ok();
    auto data = view.Read(attempt, rank, step);
    if (!data.ok()) return data.status();
    data_ = *std::move(data);
    at_ = at;
    read_ = true;
    by_key_.clear();
    for (const Observation& seen : data_.observations) {
      if (seen.def->key.kind == Kind::kOperator) by_key_[KeyOf(seen.def->key)] = &seen;
    }
    return Status::Ok();
  }

  ZoomSide Side(const ZoomDocument& document) const {
    return {.document = &document,
            .value = [this, &document](const ZoomRef& ref) -> const Observation* {
              auto [name, path] = RecordedAs(document, ref);
              const auto found = by_key_.find(
                  Key(std::move(name), std::move(path), document.micro_batch, document.call));
              return found == by_key_.end() ? nullptr : found->second;
            }};
  }

 private:
  using Key = std::tuple<std::string, std::string, std::uint32_t, std::uint32_t>;
  static Key KeyOf(const TensorKey& key) {
    return {key.name, key.output_path, key.micro_batch, key.call};
  }

  bool read_ = false;
  std::tuple<std::size_t, std::uint32_t, std::uint64_t> at_;
  StepData data_;
  std::map<Key, const Observation*> by_key_;
};

std::vector<ZoomOperator> Copied(const std::vector<const ZoomOperator*>& operators) {
  std::vector<ZoomOperator> copies;
  copies.reserve(operators.size());
  for (const ZoomOperator* one : operators) copies.push_back(*one);
  return copies;
}

ZoomCallReport ReportOf(std::uint32_t rank, const ZoomDocument& a, const ZoomDocument& b,
                        ZoomComparison comparison) {
  ZoomCallReport report{.module = a.module,
                        .class_name = a.class_name,
                        .pass = a.pass,
                        .step = a.step,
                        .rank = rank,
                        .micro_batch = a.micro_batch,
                        .call = a.call,
                        .operators_a = a.operators.size(),
                        .operators_b = b.operators.size(),
                        .left_out_a = a.left_out,
                        .left_out_b = b.left_out,
                        .outcome = comparison.outcome,
                        .a = Copied(comparison.a),
                        .b = Copied(comparison.b),
                        .comparison = std::move(comparison)};
  report.comparison.a.clear();
  report.comparison.b.clear();
  return report;
}

void NoteUnmatched(const std::string& has, const std::string& lacks, const Calls& of,
                   const Calls& other, std::vector<std::string>& notes) {
  const auto lone = std::count_if(of.begin(), of.end(),
                                  [&](const auto& call) { return !other.contains(call.first); });
  if (lone > 0) {
    notes.push_back("only " + has + " has zoomed into " + std::to_string(lone) +
                    (lone == 1 ? " of these calls; " : " of these calls; ") + lacks + " has not");
  }
}

void NoteUnreadable(const std::string& run, const Calls& calls, std::vector<std::string>& notes) {
  std::uint64_t lost = 0;
  for (const auto& [key, call] : calls) lost += call.document.unreadable;
  if (lost > 0) {
    notes.push_back("of " + run + "'s zooms, " + std::to_string(lost) +
                    " parts are missing or cannot be read; the comparison is of the rest");
  }
}

}  // namespace

Result<ZoomReport> CompareZooms(RunView& a, RunView& b, const ZoomRequest& request,
                                const std::stop_token& stop) {
  STATCOLLECT_ASSIGN_OR_RETURN(const StepSet wanted, StepSet::Parse(request.steps));
  ZoomReport report;
  report.run_a = a.run();
  report.run_b = b.run();
  STATCOLLECT_ASSIGN_OR_RETURN(const Calls calls_a, CallsOf(a, request, wanted, &report.zoomed_a));
  STATCOLLECT_ASSIGN_OR_RETURN(const Calls calls_b, CallsOf(b, request, wanted, &report.zoomed_b));
  Values values_a, values_b;
  for (const auto& [key, of_a] : calls_a) {
    if (stop.stop_requested()) return Cancelled();
    const auto other = calls_b.find(key);
    if (other == calls_b.end()) continue;
    if (report.calls.size() == kCallsMax) {
      report.notes.push_back("compared the first " + std::to_string(kCallsMax) +
                             " calls; name a module, steps or ranks for others");
      break;
    }
    const std::uint32_t rank = std::get<1>(key);
    STATCOLLECT_RETURN_IF_ERROR(values_a.Read(a, of_a.attempt, rank, of_a.document.step));
    STATCOLLECT_RETURN_IF_ERROR(values_b.Read(b, other->second.attempt, rank, of_a.document.step));
    report.calls.push_back(ReportOf(
        rank, of_a.document, other->second.document,
        CompareCalls(values_a.Side(of_a.document), values_b.Side(other->second.document))));
  }
  NoteUnmatched(a.run(), b.run(), calls_a, calls_b, report.notes);
  NoteUnmatched(b.run(), a.run(), calls_b, calls_a, report.notes);
  NoteUnreadable(a.run(), calls_a, report.notes);
  NoteUnreadable(b.run(), calls_b, report.notes);
  return report;
}

}  // namespace statcollect::query
