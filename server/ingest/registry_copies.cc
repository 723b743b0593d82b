// Runs that are copied here from another collector.
#include <algorithm>
#include <utility>

#include "common/names.h"
#include "common/project.h"
#include "common/text.h"
#include "server/ingest/registry.h"
#include "server/transfer/documents.h"
#include "server/transfer/run_parts.h"

namespace statcollect {
namespace {

std::string CopyOf(const std::string& run) {
  return "copy run '" + Printable(std::string(SplitRun(run).run)) + "'";
}

Status OtherContent(const std::string& run, const std::string& found) {
  return {Code::kAlreadyExists,
          CopyOf(run) + ": the target has a run of this name with other content (" + found +
              "); remove it there (statctl rm), or copy other runs only (--run)"};
}

std::string OfLaunch(std::uint32_t number, std::uint32_t rank) {
  return "rank " + std::to_string(rank) + " of launch " + std::to_string(number);
}

// Whether it is the same launch, as far as anything tells.
bool IsSameLaunch(const AttemptMeta& a, const AttemptMeta& b) {
  return a.number == b.number && a.launch == b.launch && a.world_size == b.world_size &&
         a.start_unix_nanos == b.start_unix_nanos;
}

}  // namespace

Status SessionRegistry::BeginCopy(const std::string& run, std::span<const AttemptMeta> attempts) {
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    if (attempts[i].number > (i == 0 ? 0 : attempts[i - 1].number) && attempts[i].world_size > 0)
      continue;
    return {Code::kInvalidArgument,
            CopyOf(run) + ": launch " + std::to_string(attempts[i].number) + " of world size " +
                std::to_string(attempts[i].world_size) +
                "; expected ascending numbers from 1, and at least one rank"};
  }
  if (attempts.empty())
    return {Code::kInvalidArgument, CopyOf(run) + ": found no launch; expected one"};
  const Turn turn(turns_, {run, kWholeRun});
  STATCOLLECT_ASSIGN_OR_RETURN(const auto existing, store_.Attempts(run));
  for (std::size_t i = 0; i < existing.size(); ++i) {
    if (i < attempts.size() && IsSameLaunch(existing[i], attempts[i])) continue;
    return OtherContent(run, "launch " + std::to_string(existing[i].number) +
                                 " is not a launch of the original, or began at another time");
  }
  for (std::size_t i = existing.size(); i < attempts.size(); ++i) {
    AttemptMeta wanted = attempts[i];
    wanted.id = 0;
    wanted.run = run;
    const auto made = store_.CreateAttempt(wanted);
    CountChange(run);
    if (!made.ok()) return made.status();
    if (!IsSameLaunch(*made, wanted)) {
      return OtherContent(run, "launch " + std::to_string(made->number) +
                                   " was made by somebody else in the meantime");
    }
  }
  return Status::Ok();
}

Result<Admission> SessionRegistry::OpenCopy(SessionInfo info, std::uint32_t number,
                                            std::shared_ptr<OpenStream> stream) {
  Endings endings;
  auto admission = [&]() -> Result<Admission> {
    const Turn turn(turns_, {info.run, info.rank});
    STATCOLLECT_ASSIGN_OR_RETURN(const auto plan, DecideCopy(&info, number));
    auto admitted = Admit(info, plan, std::move(stream), &endings);
    if (!admitted.ok()) return admitted;
    // It records nothing that anybody could ask for.
    admitted->steps.reset();
    admitted->full.reset();
    admitted->captures.clear();
    return admitted;
  }();
  for (const Ending& ending : endings) ending.stream->EndStream(ending.why);
  changed_(info.run);
  return admission;
}

Result<SessionRegistry::Plan> SessionRegistry::ArriveAt(const std::string& run,
                                                        std::uint32_t number, std::uint32_t rank) {
  const Turn turn(turns_, {run, kWholeRun});
  STATCOLLECT_ASSIGN_OR_RETURN(const auto attempt, transfer::FindAttempt(store_, run, number));
  return Arrive(attempt, rank);
}

// Changes the session of `info` to that of the copy.
Result<SessionRegistry::Plan> SessionRegistry::DecideCopy(SessionInfo* info, std::uint32_t number) {
  auto plan = ArriveAt(info->run, number, info->rank);
  if (!plan.ok()) return plan;
  STATCOLLECT_ASSIGN_OR_RETURN(const auto own, store_.Rank(plan->attempt.id, info->rank));
  const SessionId original = info->session;
  info->session = InverseOf(original);
  if (!own) return plan;
  plan->resumes = true;
  const SessionId found = own->info.session;
  if (found == info->session) return plan;
  return OtherContent(info->run, OfLaunch(number, info->rank) +
                                     (found == original ? " is complete already"
                                                        : " was recorded by another process"));
}

Status SessionRegistry::PutCopiedRank(std::uint32_t number, const RankMeta& meta) {
  Endings endings;
  const Status put = [&] {
    const Turn turn(turns_, {meta.info.run, meta.info.rank});
    STATCOLLECT_ASSIGN_OR_RETURN(const auto plan, ArriveAt(meta.info.run, number, meta.info.rank));
    STATCOLLECT_ASSIGN_OR_RETURN(const auto own, store_.Rank(plan.attempt.id, meta.info.rank));
    const std::string which = OfLaunch(number, meta.info.rank);
    if (!own)
      return Status(Code::kNotFound, CopyOf(meta.info.run) + ": " + which + " has not been copied");
    if (own->info.session == meta.info.session) return Status::Ok();
    if (own->info.session != InverseOf(meta.info.session))
      return OtherContent(meta.info.run, which + " was recorded by another process");
    const AttemptRank place(plan.attempt.id, meta.info.rank);
    Retire(
        place,
        Status(Code::kAborted, CopyOf(meta.info.run) + ": " + which + " was completed meanwhile"),
        &endings);
    STATCOLLECT_RETURN_IF_ERROR(store_.ClaimRank(place.first, place.second).status());
    const Status written = store_.PutRank(place.first, place.second, meta);
    MutexLock lock(mutex_);
    ForgetSessionsLocked(plan.attempt.id);
    return written;
  }();
  for (const Ending& ending : endings) ending.stream->EndStream(ending.why);
  changed_(meta.info.run);
  return put;
}

Status SessionRegistry::PutEvent(const std::string& run, std::uint32_t number,
                                 const CollectorEvent& event) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto attempt, transfer::FindAttempt(store_, run, number));
  return store_.PutEvents(attempt.id, {&event, 1});
}

Status SessionRegistry::PutRunDocument(const std::string& run, const std::string& name,
                                       const std::string& content) {
  if (!transfer::IsDocument(name))
    return {Code::kInvalidArgument,
            CopyOf(run) + ": document '" + Printable(name) +
                "' is not one that this collector knows; upgrade statcollectord"};
  const Turn turn(turns_, {run, kDocuments});
  STATCOLLECT_ASSIGN_OR_RETURN(const auto attempts, store_.Attempts(run));
  std::map<std::uint32_t, std::uint32_t> ids;
  for (const AttemptMeta& attempt : attempts) ids[attempt.number] = attempt.id;
  STATCOLLECT_ASSIGN_OR_RETURN(const auto renumbered, transfer::Renumbered(name, content, ids));
  return store_.PutDocument(run, name, renumbered);
}

std::uint32_t SessionRegistry::StreamsOpen(const std::string& run) {
  MutexLock lock(mutex_);
  return static_cast<std::uint32_t>(OpenStreamsLocked(run));
}

}  // namespace statcollect
