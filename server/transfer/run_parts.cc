#include "server/transfer/run_parts.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/names.h"
#include "common/project.h"
#include "server/transfer/documents.h"

namespace statcollect::transfer {
namespace {

Status NoSuchRun(const std::string& run) {
  return {Code::kNotFound, "copy run '" + Printable(std::string(SplitRun(run).run)) +
                               "': there is no such run; statctl runs lists them"};
}

Status DescribeDocuments(RecordReader& store, const std::string& run,
                         const std::vector<AttemptMeta>& attempts, const PartVisitor& visitor) {
  std::map<std::uint32_t, std::uint32_t> numbers;
  for (const AttemptMeta& attempt : attempts) numbers[attempt.id] = attempt.number;
  for (const std::string_view name : kDocuments) {
    STATCOLLECT_ASSIGN_OR_RETURN(const auto content, store.Document(run, std::string(name)));
    if (!content) continue;
    const auto renumbered = Renumbered(name, *content, numbers);
    if (!renumbered.ok()) return Status(Code::kDataLoss, renumbered.status().message());
    STATCOLLECT_RETURN_IF_ERROR(visitor.document(std::string(name), *renumbered));
  }
  return Status::Ok();
}

Status DescribeEvents(RecordReader& store, const AttemptMeta& attempt, std::uint32_t rank,
                      const PartVisitor& visitor) {
  CollectorEvent own{.rank = rank};
  Visitor<EventRecord> events;
  events.take = [&](EventRecord event) {
    if (!event.from_collector) return Status::Ok();
    ++own.number;
    own.event = std::move(event);
    return visitor.event(attempt.number, own);
  };
  return store.Visit(attempt.id, rank, StepBounds(), events);
}

}  // namespace

Result<AttemptMeta> FindAttempt(RunReader& store, const std::string& run, std::uint32_t number) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto attempts, store.Attempts(run));
  if (attempts.empty()) return NoSuchRun(run);
  const auto found =
      std::find_if(attempts.begin(), attempts.end(),
                   [&](const AttemptMeta& attempt) { return attempt.number == number; });
  if (found != attempts.end()) return std::move(*found);
  return Status(Code::kNotFound, "copy run '" + Printable(std::string(SplitRun(run).run)) +
                                     "': it has no launch " + std::to_string(number) + "; it has " +
                                     std::to_string(attempts.size()));
}

Status DescribeRun(Store& store, const std::string& run, const PartVisitor& visitor) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto attempts, store.Attempts(run));
  if (attempts.empty()) return NoSuchRun(run);
  STATCOLLECT_ASSIGN_OR_RETURN(const auto kept, store.IsKept(run));
  STATCOLLECT_RETURN_IF_ERROR(visitor.head(kept));
  for (const AttemptMeta& attempt : attempts) STATCOLLECT_RETURN_IF_ERROR(visitor.attempt(attempt));
  if (visitor.document)
    STATCOLLECT_RETURN_IF_ERROR(DescribeDocuments(store, run, attempts, visitor));
  std::vector<std::map<std::uint32_t, RankMeta>> ranks;
  for (const AttemptMeta& attempt : attempts) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto read, store.Ranks(attempt.id));
    ranks.push_back(std::move(read));
    if (!visitor.event) continue;
    for (const auto& [rank, meta] : ranks.back())
      STATCOLLECT_RETURN_IF_ERROR(DescribeEvents(store, attempt, rank, visitor));
  }
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    for (const auto& [rank, meta] : ranks[i])
      STATCOLLECT_RETURN_IF_ERROR(visitor.rank(attempts[i].number, meta));
  }
  return Status::Ok();
}

}  // namespace statcollect::transfer
