#include "server/ingest/registry.h"

#include <algorithm>
#include <ctime>
#include <set>
#include <utility>

#include "common/failpoint.h"
#include "common/names.h"
#include "common/parse.h"
#include "common/project.h"
#include "common/step_set.h"
#include "common/text.h"

namespace statcollect {
namespace {

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
  return Status(Code::kAborted, "rank " + std::to_string(by.rank) + " of run '" + by.run +
                                    "': fenced by a newer session (" + Who(by) +
                                    "); this one can no longer write; give each launch its own run name");
}

Status NewerAttempt(const SessionInfo& info, const AttemptMeta& newest) {
  return Status(Code::kAborted, "rank " + std::to_string(info.rank) + " of run '" + info.run +
                                    "': fenced by attempt " + std::to_string(newest.number) + " of " +
                                    Utc(newest.start_unix_nanos) +
                                    "; this session can no longer write; give each launch its own run name");
}

// A launch text may end in '#', the number of the launcher's restarts of this launch, and ':' with what
// differs between them (see docs/protocol.md).
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
                    " and later belong; expected the collector and the run name that the training used; was "
                    "the run removed?");
}

// Not an error that ends the session: on a slow network the hello of a connection that the agent has given up may come after
// that of its next one, and then it is the living stream that is ended.
Status Superseded(const SessionInfo& by) {
  return Status(Code::kUnavailable, "rank " + std::to_string(by.rank) + " of run '" + by.run +
                                        "': fenced by a newer stream of the same session (" + Who(by) +
                                        "), which continues where this one ends");
}

Status Replaced(const SessionInfo& by) {
  return Status(Code::kAborted,
                "run '" + by.run + "' was fenced by a newer launch (" + Who(by) +
                    ") with if_exists=\"replace\", and its records were removed; give each launch its own "
                    "run name, or use if_exists=\"append\"");
}

}  // namespace

Result<Admission> SessionRegistry::Open(const SessionInfo& info, std::shared_ptr<OpenStream> stream,
                                        LateFrom late_from) {
  Endings endings;
  auto admission = [&]() -> Result<Admission> {
    MutexLock lock(mutex_);
    auto decided = DecideLocked(info, late_from, &endings);
    if (!decided.ok()) return decided;
    decided->lane = committer_.NewLane(info.rank);
    decided->captures = CapturesFor(*decided);
    if (const auto asked = steps_.find(decided->attempt.id); asked != steps_.end())
      decided->steps = asked->second;
    if (const auto full = full_.find(decided->attempt.id); full != full_.end()) decided->full = full->second;
    writers_[{decided->attempt.id, info.rank}] = {info.run, info.session, decided->lane, std::move(stream)};
    return decided;
  }();
  for (const Ending& ending : endings) ending.stream->EndStream(ending.why);
  changed_(info.run);
  return admission;
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

Result<std::uint32_t> SessionRegistry::RecordSteps(const std::string& run, const std::string& steps) {
  const std::string attempted = "record steps '" + Printable(steps) + "' of run '" + Printable(run) + "'";
  const auto parsed = StepSet::Parse(steps);
  if (!parsed.ok()) return Status(parsed.status().code(), attempted + ": " + parsed.status().message());
  std::vector<std::shared_ptr<OpenStream>> told;
  {
    MutexLock lock(mutex_);
    auto attempts = store_.Attempts(run);
    if (!attempts.ok()) return attempts.status();
    if (attempts->empty())
      return Status(Code::kNotFound, attempted + ": there is no such run; statctl runs lists them");
    const AttemptId newest = attempts->back().id;
    told = StreamsOfLocked(newest);
    const auto ranks = store_.Ranks(newest);
    if (!ranks.ok()) return ranks.status();
    const auto is_past = [&](const auto& entry) {
      return entry.second.last_step && *entry.second.last_step > parsed->last();
    };
    if (!told.empty() && !ranks->empty() && std::all_of(ranks->begin(), ranks->end(), is_past)) {
      const auto& [rank, meta] = *ranks->begin();
      return Status(Code::kOutOfRange,
                    attempted + ": all of them have passed (rank " + std::to_string(rank) + " is at step " +
                        std::to_string(*meta.last_step) +
                        "), and no later one would be recorded; expected future steps, such as " +
                        std::to_string(*meta.last_step + 10) + "-");
    }
    if (!told.empty()) steps_[newest] = steps;
  }
  if (told.empty()) {
    return Status(
        Code::kFailedPrecondition,
        attempted + ": none of its ranks is connected; expected a run in training; statctl runs shows them");
  }
  for (const auto& stream : told) stream->RecordSteps(steps);
  return static_cast<std::uint32_t>(told.size());
}

std::vector<std::shared_ptr<OpenStream>> SessionRegistry::StreamsOfLocked(AttemptId attempt) const {
  std::vector<std::shared_ptr<OpenStream>> streams;
  for (auto it = writers_.lower_bound({attempt, 0}); it != writers_.end() && it->first.first == attempt;
       ++it) {
    if (it->second.stream) streams.push_back(it->second.stream);
  }
  return streams;
}

void SessionRegistry::AnnounceFull(AttemptId attempt, const FullSteps& steps) {
  std::vector<std::shared_ptr<OpenStream>> told;
  {
    MutexLock lock(mutex_);
    if (steps.last == FullSteps::kNoEnd) full_[attempt] = steps;
    told = StreamsOfLocked(attempt);
  }
  for (const auto& stream : told) stream->RecordFull(steps);
}

void SessionRegistry::RequestFull(const std::string& run, std::uint64_t step) {
  const auto attempts = store_.Attempts(run);
  if (!attempts.ok() || attempts->empty()) return;
  std::shared_ptr<OpenStream> told;
  {
    MutexLock lock(mutex_);
    const auto writer = writers_.find({attempts->back().id, 0});
    if (writer != writers_.end()) told = writer->second.stream;
  }
  if (told != nullptr) told->RecordFull({.first = step, .last = step});
}

Result<RequestedCapture> SessionRegistry::RequestCapture(const std::string& run,
                                                         const std::vector<std::uint32_t>& ranks,
                                                         const CaptureSpec& spec) {
  const std::string attempted = "capture " + spec.Describe() + " of run '" + Printable(run) + "'";
  std::vector<std::shared_ptr<OpenStream>> told;
  CaptureRequest request{.id = 1, .ranks = ranks, .asked_unix_nanos = clock_.UnixNanos(), .spec = spec};
  {
    MutexLock lock(mutex_);
    auto attempts = store_.Attempts(run);
    if (!attempts.ok()) return attempts.status();
    if (attempts->empty())
      return Status(Code::kNotFound, attempted + ": there is no such run; statctl runs lists them");
    request.attempt = attempts->back().id;
    auto open = CheckCaptureLocked(attempted, &request);
    if (!open.ok()) return open.status();
    told = *std::move(open);
    auto requests = ReadCaptureRequests(store_, run);
    if (!requests.ok()) return requests.status();
    if (!requests->empty()) request.id = requests->back().id + 1;
    requests->push_back(request);
    STATCOLLECT_RETURN_IF_ERROR(WriteCaptureRequests(store_, run, *std::move(requests)));
  }
  for (const auto& stream : told) stream->Capture(request);
  return RequestedCapture{.request = request.id,
                          .ranks = std::move(request.ranks),
                          .told = static_cast<std::uint32_t>(told.size())};
}

Result<std::vector<std::shared_ptr<OpenStream>>> SessionRegistry::CheckCaptureLocked(
    const std::string& attempted, CaptureRequest* request) {
  const auto known = store_.Ranks(request->attempt);
  if (!known.ok()) return known.status();
  if (request->ranks.empty()) {
    for (const auto& [rank, meta] : *known) request->ranks.push_back(rank);
  }
  const std::uint64_t step = request->spec.steps.last();
  std::vector<std::shared_ptr<OpenStream>> open;
  bool past = true, any_away = false;
  std::string reached;
  for (const std::uint32_t rank : request->ranks) {
    const auto found = known->find(rank);
    if (found == known->end()) {
      return Status(Code::kNotFound, attempted + ": there is no rank " + std::to_string(rank) + "; it has " +
                                         Counted(known->size(), "rank") + ", the last one " +
                                         (known->empty() ? "-" : std::to_string(known->rbegin()->first)));
    }
    const auto& last = found->second.last_step;
    past = past && last && *last > step;
    if (past && reached.empty())
      reached = "rank " + std::to_string(rank) + " is at step " + std::to_string(*last);
    const AttemptRank place(request->attempt, rank);
    const auto writer = writers_.find(place);
    if (writer != writers_.end() && writer->second.stream) {
      open.push_back(writer->second.stream);
    } else {
      any_away = any_away || (!found->second.finished && MayComeBackLocked(place));
    }
  }
  const std::string again =
      "to capture it in a new launch, start that with STATAGENT_CAPTURES='" + request->spec.ToText() + "'";
  if (open.empty() && !any_away) {
    return Status(Code::kFailedPrecondition,
                  attempted + ": none of its ranks is connected; expected a run in training; " + again);
  }
  if (past) {
    return Status(Code::kOutOfRange, attempted + ": step " + std::to_string(step) + " has passed (" +
                                         reached + "); expected a future step; " + again);
  }
  return open;
}

std::vector<CaptureRequest> SessionRegistry::CapturesFor(const Admission& admission) {
  auto requests = ReadCaptureRequests(store_, admission.attempt.run);
  if (!requests.ok()) return {};
  const RankMeta& meta = admission.meta;
  std::erase_if(*requests, [&](const CaptureRequest& request) {
    return request.attempt != admission.attempt.id ||
           std::find(request.ranks.begin(), request.ranks.end(), meta.info.rank) == request.ranks.end() ||
           (meta.last_step && request.spec.steps.last() < *meta.last_step);
  });
  return *std::move(requests);
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
  const auto writer = writers_.find(place);
  const auto since = writer == writers_.end() ? start_ : writer->second.closed_at;
  return clock_.Now() - since < kAwayGrace;
}

std::uint32_t SessionRegistry::OpenStreams() {
  MutexLock lock(mutex_);
  return static_cast<std::uint32_t>(std::count_if(
      writers_.begin(), writers_.end(), [](const auto& entry) { return entry.second.stream != nullptr; }));
}

bool SessionRegistry::HasOpenStream(const std::string& run) {
  MutexLock lock(mutex_);
  return OpenStreamsLocked(run) > 0;
}

Result<bool> SessionRegistry::IsKept(const std::string& run) {
  const auto census = store_.Census();
  if (!census.ok()) return census.status();
  return std::any_of(census->begin(), census->end(),
                     [&](const AttemptTally& tally) { return tally.kept && tally.meta.run == run; });
}

Status SessionRegistry::KeepRun(const std::string& run, bool keep) {
  Status kept;
  {
    MutexLock lock(mutex_);  // waits for a removal under way
    kept = store_.KeepRun(run, keep);
  }
  changed_(run);
  return kept;
}

Status SessionRegistry::CheckUnchanged(const std::vector<AttemptMeta>& attempts,
                                       std::int64_t last_write_unix_nanos) {
  const std::string& run = attempts.front().run;
  const auto kept = IsKept(run);
  if (!kept.ok()) return kept.status();
  if (*kept)
    return {Code::kFailedPrecondition,
            "delete run '" + run + "': it has been marked as kept in the meantime; nothing was removed"};
  for (const AttemptMeta& attempt : attempts) {
    auto ranks = store_.Ranks(attempt.id);
    if (!ranks.ok()) return ranks.status();
    std::int64_t newest = attempt.start_unix_nanos;
    for (const auto& [rank, meta] : *ranks) newest = std::max(newest, meta.last_write_unix_nanos);
    if (newest <= last_write_unix_nanos) continue;
    return {Code::kFailedPrecondition,
            "delete run '" + attempt.run + "': it was written to in the meantime; nothing was removed"};
  }
  return Status::Ok();
}

Result<DeletedRun> SessionRegistry::DeleteRun(const std::string& run, bool force,
                                              std::optional<std::int64_t> last_write_unix_nanos) {
  Endings endings;
  auto deleted = [&]() -> Result<DeletedRun> {
    MutexLock lock(mutex_);
    auto attempts = store_.Attempts(run);
    if (!attempts.ok()) return attempts.status();
    if (attempts->empty()) {
      return Status(Code::kNotFound,
                    "delete run '" + Printable(run) + "': there is no such run; statctl runs lists them");
    }
    if (const std::size_t open = OpenStreamsLocked(run); open > 0 && !force) {
      return Status(Code::kFailedPrecondition,
                    "delete run '" + run + "': " + Counted(open, "rank") + (open == 1 ? " is" : " are") +
                        " still sending; wait until the training ends, or use force, which "
                        "ends the streams first");
    }
    if (last_write_unix_nanos) STATCOLLECT_RETURN_IF_ERROR(CheckUnchanged(*attempts, *last_write_unix_nanos));
    const Status why(Code::kAborted,
                     "run '" + run + "' was deleted while this rank was sending; start again to record");
    DeletedRun result{.records = 0, .attempts = static_cast<std::uint32_t>(attempts->size())};
    for (const AttemptMeta& attempt : *attempts) {
      for (auto it = writers_.lower_bound({attempt.id, 0});
           it != writers_.end() && it->first.first == attempt.id; ++it) {
        RetireLocked(it->first, why, &endings);
      }
      auto ranks = store_.Ranks(attempt.id);
      if (!ranks.ok()) return ranks.status();
      for (const auto& [rank, meta] : *ranks) result.records += meta.records;
    }
    STATCOLLECT_RETURN_IF_ERROR(DropLocked(*attempts, why, &endings));
    return result;
  }();
  for (const Ending& ending : endings) ending.stream->EndStream(ending.why);
  changed_(run);
  return deleted;
}

Result<Admission> SessionRegistry::DecideLocked(const SessionInfo& info, LateFrom late_from,
                                                Endings* endings) {
  // The later part of a session is of no use without the earlier one.
  const bool is_rest = late_from.value_or(1) > 1;
  auto attempts = store_.Attempts(info.run);
  if (!attempts.ok()) return attempts.status();
  if (attempts->empty())
    return is_rest ? Result<Admission>(SessionUnknown(info, *late_from)) : CreateLocked(info, 1);
  const AttemptMeta& newest = attempts->back();
  // Of this rank alone: where the store has parts, those of other ranks may be down.
  const auto own = store_.Rank(newest.id, info.rank);
  if (!own.ok()) return own.status();
  if (*own && (*own)->info.session == info.session) return ResumeLocked(info, newest, endings);
  const auto older = FindOlderLocked(info, *attempts);
  if (!older.ok()) return older.status();
  if (*older != nullptr) {
    if (late_from) return ResumeLocked(info, **older, endings);
    return NewerAttempt(info, newest);
  }
  if (is_rest) return SessionUnknown(info, *late_from);
  if (info.attempt_start_unix_nanos != 0 && newest.start_unix_nanos > info.attempt_start_unix_nanos &&
      newest.launch != info.launch) {
    return NewerAttempt(info, newest);  // its own attempt was removed, and the name given to another launch
  }
  const auto may_join = *own ? Result<bool>(false) : MayJoin(info, newest);
  if (!may_join.ok()) return may_join.status();
  if (*may_join) {
    // The first rank of its launch fenced only its own place in the older attempts.
    for (std::size_t i = 0; i + 1 < attempts->size(); ++i)
      RetireLocked({(*attempts)[i].id, info.rank}, Fenced(info), endings);
    return JoinLocked(info, newest);
  }
  return ApplyPolicyLocked(info, *attempts, endings);
}

Result<const AttemptMeta*> SessionRegistry::FindOlderLocked(const SessionInfo& info,
                                                            const std::vector<AttemptMeta>& attempts) {
  const AttemptMeta* found = nullptr;
  for (std::size_t i = 0; i + 1 < attempts.size() && found == nullptr; ++i) {
    const auto sessions = OlderSessionsLocked(attempts[i].id, store_.PartOf(info.rank));
    if (!sessions.ok()) return sessions.status();
    const auto own = (*sessions)->find(info.rank);
    if (own != (*sessions)->end() && own->second == info.session) found = &attempts[i];
  }
  return found;
}

Result<const SessionRegistry::Sessions*> SessionRegistry::OlderSessionsLocked(AttemptId attempt,
                                                                              std::size_t part) {
  const auto known = older_sessions_.find({attempt, part});
  if (known != older_sessions_.end()) return &known->second;
  const auto ranks = store_.part(part).Ranks(attempt);
  if (!ranks.ok()) return ranks.status();
  if (older_sessions_.size() >= kOlderAttemptsMax) older_sessions_.clear();
  Sessions& sessions = older_sessions_[{attempt, part}];
  for (const auto& [rank, meta] : *ranks) sessions[rank] = meta.info.session;
  return &sessions;
}

void SessionRegistry::ForgetSessionsLocked(AttemptId attempt) {
  older_sessions_.erase(older_sessions_.lower_bound({attempt, 0}),
                        older_sessions_.lower_bound({attempt + 1, 0}));
}

Result<bool> SessionRegistry::MayJoin(const SessionInfo& info, const AttemptMeta& attempt) {
  if (attempt.world_size != info.world_size) return false;
  if (!info.launch.empty() && !attempt.launch.empty()) return info.launch == attempt.launch;
  const auto ranks = store_.Ranks(attempt.id);
  if (!ranks.ok()) return ranks.status();
  if (ranks->empty()) return true;
  for (const auto& [rank, meta] : *ranks) {
    if (!meta.finished || EndedLatelyLocked({attempt.id, rank}, meta)) return true;
  }
  return false;
}

bool SessionRegistry::EndedLatelyLocked(const AttemptRank& place, const RankMeta& meta) const {
  const auto writer = writers_.find(place);
  if (writer != writers_.end() && writer->second.session == meta.info.session &&
      (writer->second.stream != nullptr || clock_.Now() - writer->second.closed_at < kLateRankGrace))
    return true;
  const std::chrono::nanoseconds ago(clock_.UnixNanos() - meta.last_write_unix_nanos);
  return -kLateRankGrace < ago && ago < kLateRankGrace;
}

Result<Admission> SessionRegistry::ResumeLocked(const SessionInfo& info, const AttemptMeta& attempt,
                                                Endings* endings) {
  // First, so that what is read afterwards is final.
  RetireLocked({attempt.id, info.rank}, Superseded(info), endings);
  STATCOLLECT_RETURN_IF_ERROR(store_.ClaimRank(attempt.id, info.rank));
  auto meta = store_.Rank(attempt.id, info.rank);
  if (!meta.ok()) return meta.status();
  if (!*meta) return SessionUnknown(info, 1);
  return Admission{.attempt = attempt, .meta = **std::move(meta), .lane = nullptr, .resumed = true};
}

Result<Admission> SessionRegistry::JoinLocked(const SessionInfo& info, const AttemptMeta& attempt) {
  RankMeta meta;
  meta.info = info;
  meta.last_write_unix_nanos = clock_.UnixNanos();
  STATCOLLECT_RETURN_IF_ERROR(store_.PutRank(attempt.id, info.rank, meta));
  STATCOLLECT_FAILPOINT("admission.rank_stored");
  return Admission{.attempt = attempt, .meta = std::move(meta), .lane = nullptr, .resumed = false};
}

Result<Admission> SessionRegistry::CreateLocked(const SessionInfo& info, std::uint32_t number) {
  AttemptMeta wanted;
  wanted.number = number;
  wanted.run = info.run;
  wanted.launch = info.launch;
  wanted.world_size = info.world_size;
  wanted.start_unix_nanos = clock_.UnixNanos();
  auto attempt = store_.CreateAttempt(wanted);
  if (!attempt.ok()) return attempt.status();
  STATCOLLECT_FAILPOINT("admission.attempt_created");
  return JoinLocked(info, *attempt);
}

Result<Admission> SessionRegistry::ApplyPolicyLocked(const SessionInfo& info,
                                                     const std::vector<AttemptMeta>& attempts,
                                                     Endings* endings) {
  // A session that was welcomed before is recorded, wherever its earlier part went.
  const bool welcomed = info.attempt_start_unix_nanos != 0;
  const bool replaces = info.if_exists == IfExists::kReplace && !welcomed;
  if (replaces && !IsRestartOf(attempts.back(), info)) return ReplaceLocked(info, attempts, endings);
  if (!replaces && !welcomed && info.if_exists != IfExists::kAppend) return NameTaken(info, attempts);
  for (const AttemptMeta& attempt : attempts) RetireLocked({attempt.id, info.rank}, Fenced(info), endings);
  return CreateLocked(info, attempts.back().number + 1);
}

Result<Admission> SessionRegistry::ReplaceLocked(const SessionInfo& info,
                                                 const std::vector<AttemptMeta>& attempts, Endings* endings) {
  const std::string attempted = "replace run '" + info.run + "'";
  const std::string otherwise =
      "; or choose a different name, or keep it and add an attempt with if_exists=\"append\"";
  std::size_t open = 0;
  for (const AttemptMeta& attempt : attempts) {
    const bool own = !info.launch.empty() && attempt.launch == info.launch;
    if (!own) open += StreamsOfLocked(attempt.id).size();
  }
  if (open > 0) {
    return Status(Code::kAlreadyExists, attempted + ": " + Counted(open, "rank") +
                                            (open == 1 ? " is" : " are") +
                                            " still sending; wait until that training ends" + otherwise);
  }
  const auto kept = IsKept(info.run);
  if (!kept.ok()) return kept.status();
  if (*kept) {
    return Status(Code::kAlreadyExists, attempted + ": it is kept; release it with statctl keep " +
                                            std::string(SplitRun(info.run).run) + " --off" + otherwise);
  }
  STATCOLLECT_RETURN_IF_ERROR(DropLocked(attempts, Replaced(info), endings));
  return CreateLocked(info, 1);
}

Status SessionRegistry::NameTaken(const SessionInfo& info, const std::vector<AttemptMeta>& attempts) {
  std::set<std::uint32_t> ranks_seen;
  std::uint64_t steps = 0, records = 0;
  for (const AttemptMeta& attempt : attempts) {
    auto ranks = store_.Ranks(attempt.id);
    if (!ranks.ok()) return ranks.status();
    for (const auto& [rank, meta] : *ranks) {
      ranks_seen.insert(rank);
      steps = std::max(steps, meta.steps);
      records += meta.records;
    }
  }
  return Status(
      Code::kAlreadyExists,
      "start run '" + info.run + "' as rank " + std::to_string(info.rank) +
          ": the name is taken by a run started " + Utc(attempts.front().start_unix_nanos) + " with " +
          Counted(attempts.size(), "attempt") + ", " + Counted(ranks_seen.size(), "rank") + ", " +
          Counted(steps, "step") + ", " + Counted(records, "record") +
          "; choose a different name, or remove its data with if_exists=\"replace\", or keep it and add an "
          "attempt with if_exists=\"append\"");
}

void SessionRegistry::RetireLocked(const AttemptRank& place, const Status& why, Endings* endings) {
  const auto writer = writers_.find(place);
  if (writer == writers_.end()) return;
  committer_.Abandon(writer->second.lane, why);
  if (writer->second.stream != nullptr) endings->push_back({std::move(writer->second.stream), why});
}

Status SessionRegistry::DropLocked(const std::vector<AttemptMeta>& attempts, const Status& why,
                                   Endings* endings) {
  std::vector<AttemptId> ids;
  for (const AttemptMeta& attempt : attempts) {
    ids.push_back(attempt.id);
    for (auto it = writers_.lower_bound({attempt.id, 0});
         it != writers_.end() && it->first.first == attempt.id; ++it) {
      RetireLocked(it->first, why, endings);
    }
  }
  STATCOLLECT_FAILPOINT("drop.before");
  STATCOLLECT_RETURN_IF_ERROR(store_.RetireAttempts(ids));
  STATCOLLECT_FAILPOINT("drop.after");
  for (const AttemptId id : ids) {
    writers_.erase(writers_.lower_bound({id, 0}), writers_.lower_bound({id + 1, 0}));
    steps_.erase(id);
    full_.erase(id);
    ForgetSessionsLocked(id);
  }
  retired_();
  return Status::Ok();
}

std::size_t SessionRegistry::OpenStreamsLocked(const std::string& run) const {
  return static_cast<std::size_t>(std::count_if(writers_.begin(), writers_.end(), [&](const auto& entry) {
    return entry.second.stream != nullptr && entry.second.run == run;
  }));
}

}  // namespace statcollect
