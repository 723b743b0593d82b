// Reads the records of one kind, for the queries that list them.
#ifndef STATCOLLECT_SERVER_QUERY_EACH_RECORD_H_
#define STATCOLLECT_SERVER_QUERY_EACH_RECORD_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/names.h"
#include "common/status.h"
#include "common/step_set.h"
#include "common/text.h"
#include "server/query/rows.h"
#include "server/query/run_view.h"
#include "server/query/suggest.h"
#include "server/store/record_reader.h"

namespace statcollect::query {

inline constexpr std::size_t kNamesMax = 100'000;  // kept to suggest one

// Calls `take(attempt, rank, record)` for the wanted records of this kind, each as it is read: of
// each step from the newest attempt that has it: that has tensors or scalars in it, or else records
// of this kind. By rank; within a rank by attempt, the newest first; then by step. `ranks`: empty:
// all.
template <typename Record, typename Take>
Status ForEachRecord(RecordReader& store, const RunView& view,
                     const std::vector<std::uint32_t>& ranks, const StepSet& wanted,
                     const Take& take) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto owners, StepOwners::Of(view, wanted));
  const StepBounds bounds{.first = wanted.first(), .last = wanted.last()};
  const auto& attempts = view.attempts();
  for (const std::uint32_t rank : view.AllRanks()) {
    if (!IsWanted(ranks, rank)) continue;
    std::set<std::uint64_t> of_newer, own;  // steps
    for (std::size_t attempt = attempts.size(); attempt-- > 0;) {
      if (!view.ranks(attempt).contains(rank)) continue;
      Visitor<Record> visitor;
      visitor.take = [&](Record record) {
        if (!wanted.Contains(record.step) || !owners.IsOf(attempt, record.step))
          return Status::Ok();
        if (of_newer.contains(record.step)) return Status::Ok();
        if (attempt > 0) own.insert(own.end(), record.step);
        return take(attempt, rank, record);
      };
      STATCOLLECT_RETURN_IF_ERROR(store.Visit(attempts[attempt].id, rank, bounds, visitor));
      of_newer.merge(own);
      own.clear();
    }
  }
  return Status::Ok();
}

// The same with `take(rank, record)`. Request: has run, ranks, steps.
template <typename Record, typename Request, typename Take>
Status ForEachRecord(RecordReader& store, const Request& request, const Take& take) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto view, RunView::Open(store, request.run));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto wanted, StepSet::Parse(request.steps));
  return ForEachRecord<Record>(
      store, view, request.ranks, wanted,
      [&](std::size_t, std::uint32_t rank, Record& record) { return take(rank, record); });
}

// Why a selection has nothing of a name: where the run has some, or the closest names.
template <typename Record, typename Request>
Status NothingNamed(RecordReader& store, Request request, const std::string& query,
                    const std::string& what, const std::string& wanted, std::string Record::*name) {
  request.steps.clear();
  request.ranks.clear();
  std::set<std::string> names;
  std::set<std::uint64_t> steps;
  std::set<std::uint32_t> ranks;
  STATCOLLECT_RETURN_IF_ERROR(
      ForEachRecord<Record>(store, request, [&](std::uint32_t rank, Record& record) {
        if (record.*name == wanted) {
          steps.insert(record.step);
          ranks.insert(rank);
        } else if (names.size() < kNamesMax) {
          names.insert(std::move(record.*name));
        }
        return Status::Ok();
      }));
  const std::string found =
      query + " of run '" + request.run + "': no " + what + " '" + Printable(wanted) + "'";
  if (steps.empty() && names.empty()) return {Code::kNotFound, found + ", nor any other"};
  if (steps.empty())
    return {Code::kNotFound,
            found + " there; closest: " + Suggest(wanted, {names.begin(), names.end()})};
  return {Code::kNotFound, found + " at these steps and ranks; there are some at " +
                               StepsNamed(steps) + ", of " +
                               RanksNamed("rank", {ranks.begin(), ranks.end()})};
}

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_EACH_RECORD_H_
