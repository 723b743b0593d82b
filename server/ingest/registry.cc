#include "server/ingest/registry.h"

#include <algorithm>
#include <ctime>
#include <set>
#include <utility>

#include "common/failpoint.h"
#include "common/names.h"
#include "common/parse.h"
#include "common/project.h"
#include "common/saturating.h"
#include "common/text.h"
#include "server/store/tally.h"

namespace statcollect {
namespace {

// Until a run stays as it was while it is asked for.
constexpr int kDecisionTries = 100;

std::string Utc(std::int64_t unix_nanos) {
  const std::time_t seconds = static_cast<std::time_t>(unix_nanos / 1'000'000'000);
  std::tm parts{};
  char text[64] = "at an unknown time";
  if (gmtime_r(&seconds, &parts) != nullptr)
    std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

std::string Who(const SessionInfo& info) {
  const std::string host = info.host.empty() ? "" : " on " + Printable(info.host);
  return "process " + std::to_string(info.pid) + host;
}

Status Fenced(const SessionInfo& by) {
  return Status(Code::kAborted,
                "rank " + std::to_string(by.rank) + " of run '" + by.run +
                    "': fenced by a newer session (" + Who(by) +
                    "); this one can no longer write; give each launch its own run name");
}

Status NewerAttempt(const SessionInfo& info, const AttemptMeta& newest) {
  return Status(Code::kAborted,
                "rank " + std::to_string(info.rank) + " of run '" + info.run +
                    "': fenced by attempt " + std::to_string(newest.number) + " of " +
                    Utc(newest.start_unix_nanos) +
                    "; this session can no longer write; give each launch its own run name");
}

// A launch text may end in '#', the number of the launcher's restarts of this launch, and ':' with
// what differs between them (see docs/protocol.md).
struct LaunchText {
  std::string_view base;  // empty: not of this form
  std::uint64_t restarts = 0;
};

LaunchText ParseLaunch(std::string_view text) {
  const std::size_t mark = text.rfind('#');
  if (mark == std::string_view::npos) return {};
  const std::string_view rest = text.substr(mark + 1);
  const auto restarts = ParseNumber<std::uint64_t>(std::string(rest.substr(0, rest.find(':'))));
  return restarts ? LaunchText{.base = text.substr(0, mark), .restarts = *restarts} : LaunchText{};
}

// Whether the launcher started this launch again, after a crash.
bool IsRestartOf(const AttemptMeta& attempt, const SessionInfo& info) {
  const LaunchText now = ParseLaunch(info.launch), before = ParseLaunch(attempt.launch);
  return !now.base.empty() && now.base == before.base && now.restarts > before.restarts;
}

Status SessionUnknown(const SessionInfo& info, std::uint64_t first_seq) {
  return Status(Code::kFailedPrecondition,
                "run '" + info.run + "', rank " + std::to_string(info.rank) +
                    ": this collector does not know the session to which the records " +
                    std::to_string(first_seq) +
                    " and later belong; expected the collector and the run name that the training "
                    "used; was the run removed?");
}

// Not an error that ends the session: on a slow network the hello of a connection that the agent
// has given up may come after that of its next one, and then it is the living stream that is ended.
Status Superseded(const SessionInfo& by) {
  return Status(Code::kUnavailable, "rank " + std::to_string(by.rank) + " of run '" + by.run +
                                        "': fenced by a newer stream of the same session (" +
                                        Who(by) + "), which continues where this one ends");
}

Status Replaced(const SessionInfo& by) {
  return Status(Code::kAborted,
                "run '" + by.run + "' was fenced by a newer launch (" + Who(by) +
                    ") with if_exists=\"replace\", and its records were removed; give each launch "
                    "its own run name, or use if_exists=\"append\"");
}

}  // namespace

SessionRegistry::Plan SessionRegistry::Arrive(const AttemptMeta& attempt, std::uint32_t rank) {
  const AttemptRank place(attempt.id, rank);
  MutexLock lock(mutex_);
  arriving_.insert(place);
  return {.attempt = attempt, .fenced = {}, .arrival = Arrival(this, [this, place](void*) {
                                              MutexLock arrived(mutex_);
                                              arriving_.erase(place);
                                              arrived_.notify_all();
                                            })};
}

bool SessionRegistry::IsArrivingLocked(AttemptId attempt) const {
  const auto first = arriving_.lower_bound({attempt, 0});
  return first != arriving_.end() && first->first == attempt;
}

void SessionRegistry::AwaitArrivals(const std::vector<AttemptMeta>& attempts) {
  MutexLock lock(mutex_);
  for (const AttemptMeta& attempt : attempts) {
    arrived_.wait(mutex_,
                  [&]() STATCOLLECT_REQUIRES(mutex_) { return !IsArrivingLocked(attempt.id); });
  }
}

std::uint64_t SessionRegistry::Changes(const std::string& run) {
  MutexLock lock(mutex_);
  return changes_[std::hash<std::string>()(run) % changes_.size()];
}

void SessionRegistry::CountChange(const std::string& run) {
  MutexLock lock(mutex_);
  ++changes_[std::hash<std::string>()(run) % changes_.size()];
}

Result<Admission> SessionRegistry::Open(const SessionInfo& info, std::shared_ptr<OpenStream> stream,
                                        LateFrom late_from) {
  Endings endings;
  auto admission = [&]() -> Result<Admission> {
    const Turn turn(turns_, {info.run, info.rank});
    STATCOLLECT_ASSIGN_OR_RETURN(const auto plan, Decide(info, late_from, &endings));
    return Admit(info, plan, std::move(stream), &endings);
  }();
  for (const Ending& ending : endings) ending.stream->EndStream(ending.why);
  changed_(info.run);
  return admission;
}

// The store is asked before the run's turn, and again if the run has changed by then.
Result<SessionRegistry::Plan> SessionRegistry::Decide(const SessionInfo& info, LateFrom late_from,
                                                      Endings* endings) {
  for (int tries = 0; tries < kDecisionTries; ++tries) {
    const std::uint64_t before = Changes(info.run);
    STATCOLLECT_ASSIGN_OR_RETURN(const auto attempts, store_.Attempts(info.run));
    STATCOLLECT_ASSIGN_OR_RETURN(const auto known, FindKnown(info, attempts));
    const Turn turn(turns_, {info.run, kWholeRun});
    if (Changes(info.run) == before) return DecideInTurn(info, attempts, known, late_from, endings);
  }
  return Status(Code::kUnavailable,
                "start run '" + info.run + "' as rank " + std::to_string(info.rank) +
                    ": other launches of it begin or are removed all the time; expected a run name "
                    "for each training; the agent tries again");
}

Result<SessionRegistry::Known> SessionRegistry::FindKnown(
    const SessionInfo& info, const std::vector<AttemptMeta>& attempts) {
  Known known;
  if (attempts.empty()) return known;
  STATCOLLECT_ASSIGN_OR_RETURN(const auto own, store_.Rank(attempts.back().id, info.rank));
  if (own) known.newest = own->info.session;
  if (known.newest == info.session) return known;
  for (std::size_t i = 0; i + 1 < attempts.size() && !known.older; ++i) {
    STATCOLLECT_ASSIGN_OR_RETURN(const auto has, HasSession(attempts[i].id, info));
    if (has) known.older = attempts[i];
  }
  return known;
}

Result<Admission> SessionRegistry::Admit(const SessionInfo& info, const Plan& plan,
                                         std::shared_ptr<OpenStream> stream, Endings* endings) {
  STATCOLLECT_RETURN_IF_ERROR(FenceOlder(info, plan.fenced, endings));
  const AttemptRank place(plan.attempt.id, info.rank);
  Admission admission{
      .attempt = plan.attempt, .meta = {}, .lane = nullptr, .resumed = plan.resumes};
  if (plan.resumes) {
    // First, so that what is read afterwards is final.
    Retire(place, Superseded(info), endings);
    STATCOLLECT_ASSIGN_OR_RETURN(auto meta, store_.ClaimRank(place.first, place.second));
    if (!meta) return SessionUnknown(info, 1);
    admission.meta = *std::move(meta);
  } else {
    admission.meta.info = info;
    admission.meta.last_write_unix_nanos = clock_.UnixNanos();
    admission.meta.ranks_expected = RanksExpected(info);
    STATCOLLECT_RETURN_IF_ERROR(store_.PutRank(place.first, place.second, admission.meta));
    STATCOLLECT_FAILPOINT("admission.rank_stored");
  }
  admission.lane = committer_.NewLane(info.rank);
  {
    MutexLock lock(mutex_);
    if (const auto asked = steps_.find(place.first); asked != steps_.end())
      admission.steps = asked->second;
    if (const auto full = full_.find(place.first); full != full_.end())
      admission.full = full->second;
    writers_[place] = {info.run, info.session, admission.lane, std::move(stream)};
  }
  // Read after the stream is registered: a capture that is requested from here on is sent to it.
  admission.captures = CapturesFor(admission);
  return admission;
}

Status SessionRegistry::FenceOlder(const SessionInfo& info, const std::vector<AttemptMeta>& older,
                                   Endings* endings) {
  for (const AttemptMeta& attempt : older) Retire({attempt.id, info.rank}, Fenced(info), endings);
  // Other collectors write at most the last of them: when it began there, those before it were
  // ended.
  for (auto attempt = older.rbegin(); attempt != older.rend(); ++attempt) {
    STATCOLLECT_ASSIGN_OR_RETURN(const auto ended, store_.EndRank(attempt->id, info.rank));
    if (ended) break;
  }
  return Status::Ok();
}

void SessionRegistry::Close(AttemptId attempt, std::uint32_t rank, const OpenStream* stream) {
  std::shared_ptr<OpenStream> closed;  // released after the mutex
  std::string run;
  {
    MutexLock lock(mutex_);
    const auto writer = writers_.find({attempt, rank});
    if (writer == writers_.end() || writer->second.stream.get() != stream) return;
    closed = std::move(writer->second.stream);
    writer->second.closed_at = clock_.Now();
    run = writer->second.run;
  }
  changed_(run);
}

bool SessionRegistry::IsOpen(AttemptId attempt, std::uint32_t rank) {
  MutexLock lock(mutex_);
  const auto writer = writers_.find({attempt, rank});
  return writer != writers_.end() && writer->second.stream != nullptr;
}

bool SessionRegistry::MayComeBack(AttemptId attempt, std::uint32_t rank) {
  MutexLock lock(mutex_);
  return MayComeBackLocked({attempt, rank});
}

bool SessionRegistry::MayComeBackLocked(const AttemptRank& place) const {
  if (arriving_.contains(place)) return true;
  const auto writer = writers_.find(place);
  const auto since = writer == writers_.end() ? start_ : writer->second.closed_at;
  return clock_.Now() - since < kAwayGrace;
}

std::uint32_t SessionRegistry::OpenStreams() {
  MutexLock lock(mutex_);
  return static_cast<std::uint32_t>(
      std::count_if(writers_.begin(), writers_.end(),
                    [](const auto& entry) { return entry.second.stream != nullptr; }));
}

bool SessionRegistry::HasOpenStream(const std::string& run) {
  MutexLock lock(mutex_);
  return OpenStreamsLocked(run) > 0;
}

Status SessionRegistry::KeepRun(const std::string& run, bool keep) {
  Status kept;
  {
    const Turn turn(turns_, {run, kWholeRun});  // waits for a removal under way
    kept = store_.KeepRun(run, keep);
  }
  changed_(run);
  return kept;
}

Status SessionRegistry::CheckUnchanged(const std::vector<AttemptMeta>& attempts,
                                       std::int64_t last_write_unix_nanos) {
  const std::string& run = attempts.front().run;
  STATCOLLECT_ASSIGN_OR_RETURN(const auto kept, store_.IsKept(run));
  if (kept)
    return {Code::kFailedPrecondition,
            "delete run '" + run +
                "': it has been marked as kept in the meantime; nothing was removed"};
  for (const AttemptMeta& attempt : attempts) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto ranks, store_.Ranks(attempt.id));
    std::int64_t newest = attempt.start_unix_nanos;
    for (const auto& [rank, meta] : ranks) newest = std::max(newest, meta.last_write_unix_nanos);
    if (newest <= last_write_unix_nanos) continue;
    return {
        Code::kFailedPrecondition,
        "delete run '" + attempt.run + "': it was written to in the meantime; nothing was removed"};
  }
  return Status::Ok();
}

Result<DeletedRun> SessionRegistry::DeleteRun(const std::string& run, bool force,
                                              std::optional<std::int64_t> last_write_unix_nanos) {
  Endings endings;
  auto deleted = [&]() -> Result<DeletedRun> {
    const Turn turn(turns_, {run, kWholeRun});
    STATCOLLECT_ASSIGN_OR_RETURN(auto attempts, store_.Attempts(run));
    if (attempts.empty()) {
      return Status(Code::kNotFound, "delete run '" + Printable(run) +
                                         "': there is no such run; statctl runs lists them");
    }
    AwaitArrivals(attempts);
    if (const std::size_t open = StreamsOpen(run); open > 0 && !force) {
      return Status(Code::kFailedPrecondition, "delete run '" + run +
                                                   "': " + Counted(open, "rank") +
                                                   (open == 1 ? " is" : " are") +
                                                   " still sending; wait until the training ends, "
                                                   "or use force, which ends the streams first");
    }
    if (last_write_unix_nanos)
      STATCOLLECT_RETURN_IF_ERROR(CheckUnchanged(attempts, *last_write_unix_nanos));
    const Status why(
        Code::kAborted,
        "run '" + run + "' was deleted while this rank was sending; start again to record");
    DeletedRun result{.records = 0, .attempts = static_cast<std::uint32_t>(attempts.size())};
    for (const AttemptMeta& attempt : attempts) {
      RetireAll(attempt, why, &endings);
      STATCOLLECT_ASSIGN_OR_RETURN(auto ranks, store_.Ranks(attempt.id));
      for (const auto& [rank, meta] : ranks) result.records += meta.records;
    }
    STATCOLLECT_RETURN_IF_ERROR(Drop(attempts, why, &endings));
    return result;
  }();
  for (const Ending& ending : endings) ending.stream->EndStream(ending.why);
  changed_(run);
  return deleted;
}

void SessionRegistry::RemoveUnused(const AttemptMeta& attempt) {
  Endings endings;
  {
    const Turn turn(turns_, {attempt.run, kWholeRun});
    AwaitArrivals({attempt});
    {
      MutexLock lock(mutex_);
      if (!StreamsOfLocked(attempt.id).empty()) return;
    }
    const auto ranks = store_.Ranks(attempt.id);
    if (!ranks.ok() || ranks->empty()) return;
    for (const auto& [rank, meta] : *ranks) {
      if (meta.records > 0 || !meta.finished) return;
    }
    const auto kept = store_.IsKept(attempt.run);
    if (!kept.ok() || *kept) return;
    const Status why(Code::kAborted,
                     "run '" + attempt.run + "' was removed, because nothing was recorded in it");
    if (!Drop({attempt}, why, &endings).ok()) return;  // then it stays, empty
  }
  for (const Ending& ending : endings) ending.stream->EndStream(ending.why);
  changed_(attempt.run);
}

Result<SessionRegistry::Plan> SessionRegistry::DecideInTurn(
    const SessionInfo& info, const std::vector<AttemptMeta>& attempts, const Known& known,
    LateFrom late_from, Endings* endings) {
  // The later part of a session is of no use without the earlier one.
  const bool is_rest = late_from.value_or(1) > 1;
  if (attempts.empty())
    return is_rest ? Result<Plan>(SessionUnknown(info, *late_from)) : Create(info, 1);
  const AttemptMeta& newest = attempts.back();
  const auto resume = [&](const AttemptMeta& attempt) {
    Plan plan = Arrive(attempt, info.rank);
    plan.resumes = true;
    return plan;
  };
  if (known.newest == info.session) return resume(newest);
  if (known.older) {
    if (late_from) return resume(*known.older);
    return NewerAttempt(info, newest);
  }
  if (is_rest) return SessionUnknown(info, *late_from);
  if (info.attempt_start_unix_nanos != 0 &&
      newest.start_unix_nanos > info.attempt_start_unix_nanos && newest.launch != info.launch) {
    return NewerAttempt(
        info, newest);  // its own attempt was removed, and the name given to another launch
  }
  STATCOLLECT_ASSIGN_OR_RETURN(const auto may_join,
                               known.newest ? Result<bool>(false) : MayJoin(info, newest));
  if (!may_join) return ApplyPolicy(info, attempts, endings);
  // The first rank of its launch fenced only its own place in the older attempts.
  Plan plan = Arrive(newest, info.rank);
  plan.fenced.assign(attempts.begin(), attempts.end() - 1);
  return plan;
}

Result<bool> SessionRegistry::HasSession(AttemptId older, const SessionInfo& info) {
  const AttemptPart key(older, store_.PartOf(info.rank));
  const auto is_own = [&info](const Sessions& sessions) {
    const auto own = sessions.find(info.rank);
    return own != sessions.end() && own->second == info.session;
  };
  std::uint64_t forgotten = 0;
  bool settled = false;
  {
    MutexLock lock(mutex_);
    if (const auto known = older_sessions_.find(key); known != older_sessions_.end())
      return is_own(known->second);
    forgotten = sessions_forgotten_;
    settled = !IsArrivingLocked(older);
  }
  STATCOLLECT_ASSIGN_OR_RETURN(const auto ranks, store_.part(key.second).Ranks(older));
  Sessions sessions;
  for (const auto& [rank, meta] : ranks) sessions[rank] = meta.info.session;
  const bool has = is_own(sessions);
  MutexLock lock(mutex_);
  if (!settled || forgotten != sessions_forgotten_) return has;
  if (older_sessions_.size() >= kOlderAttemptsMax) older_sessions_.clear();
  older_sessions_[key] = std::move(sessions);
  return has;
}

void SessionRegistry::ForgetSessionsLocked(AttemptId attempt) {
  ++sessions_forgotten_;
  older_sessions_.erase(older_sessions_.lower_bound({attempt, 0}),
                        older_sessions_.lower_bound({SaturatingAdd(attempt, 1), 0}));
}

Result<bool> SessionRegistry::MayJoin(const SessionInfo& info, const AttemptMeta& attempt) {
  if (attempt.world_size != info.world_size) return false;
  if (!info.launch.empty() && !attempt.launch.empty()) return info.launch == attempt.launch;
  {
    MutexLock lock(mutex_);
    if (IsArrivingLocked(attempt.id)) return true;  // perhaps not stored yet
  }
  STATCOLLECT_ASSIGN_OR_RETURN(const auto ranks, store_.Ranks(attempt.id));
  if (ranks.empty()) return true;
  MutexLock lock(mutex_);
  for (const auto& [rank, meta] : ranks) {
    if (!meta.finished || EndedLatelyLocked({attempt.id, rank}, meta)) return true;
  }
  return false;
}

bool SessionRegistry::EndedLatelyLocked(const AttemptRank& place, const RankMeta& meta) const {
  const auto writer = writers_.find(place);
  if (writer != writers_.end() && writer->second.session == meta.info.session &&
      (writer->second.stream != nullptr ||
       clock_.Now() - writer->second.closed_at < kLateRankGrace))
    return true;
  const std::chrono::nanoseconds ago(clock_.UnixNanos() - meta.last_write_unix_nanos);
  return -kLateRankGrace < ago && ago < kLateRankGrace;
}

Result<SessionRegistry::Plan> SessionRegistry::Create(const SessionInfo& info,
                                                      std::uint32_t number) {
  AttemptMeta wanted;
  wanted.number = number;
  wanted.run = info.run;
  wanted.launch = info.launch;
  wanted.world_size = info.world_size;
  wanted.start_unix_nanos = clock_.UnixNanos();
  auto attempt = store_.CreateAttempt(wanted);
  CountChange(info.run);  // also after a failure, which may have made it
  if (!attempt.ok()) return attempt.status();
  STATCOLLECT_FAILPOINT("admission.attempt_created");
  return Arrive(*attempt, info.rank);
}

Result<SessionRegistry::Plan> SessionRegistry::ApplyPolicy(const SessionInfo& info,
                                                           const std::vector<AttemptMeta>& attempts,
                                                           Endings* endings) {
  // A session that was welcomed before is recorded, wherever its earlier part went.
  const bool welcomed = info.attempt_start_unix_nanos != 0;
  const bool replaces = info.if_exists == IfExists::kReplace && !welcomed;
  if (replaces && !IsRestartOf(attempts.back(), info)) return Replace(info, attempts, endings);
  if (!replaces && !welcomed && info.if_exists != IfExists::kAppend)
    return NameTaken(info, attempts);
  auto plan = Create(info, attempts.back().number + 1);
  if (plan.ok()) plan->fenced = attempts;
  return plan;
}

Result<SessionRegistry::Plan> SessionRegistry::Replace(const SessionInfo& info,
                                                       const std::vector<AttemptMeta>& attempts,
                                                       Endings* endings) {
  const std::string attempted = "replace run '" + info.run + "'";
  const std::string otherwise =
      "; or choose a different name, or keep it and add an attempt with if_exists=\"append\"";
  std::size_t open = 0;
  AwaitArrivals(attempts);
  {
    MutexLock lock(mutex_);
    for (const AttemptMeta& attempt : attempts) {
      const bool own = !info.launch.empty() && attempt.launch == info.launch;
      if (!own) open += StreamsOfLocked(attempt.id).size();
    }
  }
  if (open > 0) {
    return Status(Code::kAlreadyExists,
                  attempted + ": " + Counted(open, "rank") + (open == 1 ? " is" : " are") +
                      " still sending; wait until that training ends" + otherwise);
  }
  STATCOLLECT_ASSIGN_OR_RETURN(const auto kept, store_.IsKept(info.run));
  if (kept) {
    return Status(Code::kAlreadyExists, attempted + ": it is kept; release it with statctl pin " +
                                            std::string(SplitRun(info.run).run) + " --off" +
                                            otherwise);
  }
  STATCOLLECT_RETURN_IF_ERROR(Drop(attempts, Replaced(info), endings));
  return Create(info, 1);
}

Status SessionRegistry::NameTaken(const SessionInfo& info,
                                  const std::vector<AttemptMeta>& attempts) {
  std::set<std::uint32_t> ranks_seen;
  std::uint64_t steps = 0, records = 0;
  for (const AttemptMeta& attempt : attempts) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto ranks, store_.Ranks(attempt.id));
    for (const auto& [rank, meta] : ranks) {
      ranks_seen.insert(rank);
      steps = std::max(steps, meta.steps);
      records += meta.records;
    }
  }
  return Status(Code::kAlreadyExists,
                "start run '" + info.run + "' as rank " + std::to_string(info.rank) +
                    ": the name is taken by a run started " +
                    Utc(attempts.front().start_unix_nanos) + " with " +
                    Counted(attempts.size(), "attempt") + ", " +
                    Counted(ranks_seen.size(), "rank") + ", " + Counted(steps, "step") + ", " +
                    Counted(records, "record") +
                    "; choose a different name, or remove its data with if_exists=\"replace\", or "
                    "keep it and add an attempt with if_exists=\"append\"");
}

void SessionRegistry::Retire(const AttemptRank& place, const Status& why, Endings* endings) {
  std::shared_ptr<CommitLane> lane;
  {
    MutexLock lock(mutex_);
    const auto writer = writers_.find(place);
    if (writer == writers_.end()) return;
    lane = writer->second.lane;
  }
  committer_.Abandon(lane, why);  // may wait for the store
  MutexLock lock(mutex_);
  const auto writer = writers_.find(place);
  if (writer == writers_.end() || writer->second.lane != lane || writer->second.stream == nullptr)
    return;
  endings->push_back({std::move(writer->second.stream), why});
}

void SessionRegistry::RetireAll(const AttemptMeta& attempt, const Status& why, Endings* endings) {
  std::vector<AttemptRank> places;
  {
    MutexLock lock(mutex_);
    for (auto it = writers_.lower_bound({attempt.id, 0});
         it != writers_.end() && it->first.first == attempt.id; ++it)
      places.push_back(it->first);
  }
  for (const AttemptRank& place : places) Retire(place, why, endings);
}

Status SessionRegistry::Drop(const std::vector<AttemptMeta>& attempts, const Status& why,
                             Endings* endings) {
  std::vector<AttemptId> ids;
  for (const AttemptMeta& attempt : attempts) {
    ids.push_back(attempt.id);
    RetireAll(attempt, why, endings);
  }
  STATCOLLECT_FAILPOINT("drop.before");
  const Status removed = store_.RetireAttempts(ids);
  CountChange(attempts.front().run);
  STATCOLLECT_RETURN_IF_ERROR(removed);
  STATCOLLECT_FAILPOINT("drop.after");
  {
    MutexLock lock(mutex_);
    for (const AttemptId id : ids) {
      writers_.erase(writers_.lower_bound({id, 0}), writers_.lower_bound({id + 1, 0}));
      steps_.erase(id);
      full_.erase(id);
      ForgetSessionsLocked(id);
    }
  }
  retired_();
  return Status::Ok();
}

std::size_t SessionRegistry::OpenStreamsLocked(const std::string& run) const {
  return static_cast<std::size_t>(
      std::count_if(writers_.begin(), writers_.end(), [&](const auto& entry) {
        return entry.second.stream != nullptr && entry.second.run == run;
      }));
}

}  // namespace statcollect
