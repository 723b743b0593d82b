#include "server/alarms/alarms.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "common/names.h"
#include "server/store/tally.h"

namespace statcollect::alarms {
namespace {

constexpr std::chrono::seconds kRemovedInterval{5};
constexpr std::chrono::seconds kIdleBeforeForgotten{10};
// In a run without a document, unjudged records older than this are not judged after a restart.
constexpr std::int64_t kResumeNanosMax = std::int64_t{600} * 1'000'000'000;
constexpr int kItemsATick = 64;
constexpr int kNice = 15;

// The rules' thread must not take processor time from ingest.
void LowerPriority() {
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice);
}

}  // namespace

Alarms::Alarms(DocumentStore& store, RecordWriter& writer, const Clock& clock,
               AlarmsOptions options)
    : store_(store),
      clock_(clock),
      options_(std::move(options)),
      queue_(options_.queue_bytes_max, options_.settings.AnyOn()),
      events_(writer, {.feed = options_.feed, .notify = options_.notify, .log = options_.log}),
      documents_(store),
      loader_(store, options_.settings, [this] { return MustEnd(); }) {
  status_.enabled = options_.settings.AnyOn();
  for (const std::string_view rule : kAlarmRuleNames) status_.active[std::string(rule)] = 0;
  documents_at_ = removed_at_ = clock_.Now();
  thread_ = std::thread([this] { Run(); });
}

Alarms::~Alarms() { Drain(); }

void Alarms::Take(CommittedBatch batch) noexcept {
  try {
    if (stopping_.load(std::memory_order_acquire)) return;
    skipped_.fetch_add(queue_.Push(std::move(batch)), std::memory_order_relaxed);
  } catch (const std::exception&) {  // no memory: as if the queue were full
  }
}

void Alarms::Drain() {
  MutexLock lock(join_mutex_);
  if (!thread_.joinable()) return;
  end_at_ = clock_.Now() + options_.drain;
  stopping_ = true;
  queue_.Wake();
  thread_.join();
}

AlarmStatus Alarms::GetStatus() {
  MutexLock lock(mutex_);
  AlarmStatus status = status_;
  status.evaluated_records = evaluated_.load(std::memory_order_relaxed);
  status.skipped_records = skipped_.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < kAlarmRuleCount; ++i)
    status.raised[std::string(kAlarmRuleNames[i])] = events_.raised(static_cast<AlarmRule>(i));
  return status;
}

void Alarms::AwaitIdle() {
  while (!stopping_ && (!resumed_ || !queue_.idle()))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void Alarms::Run() {
  LowerPriority();
  ResumeAfterStart();
  resumed_ = true;
  for (bool more = true; more;) {
    queue_.Wait(stopping_);
    more = !stopping_;  // before the queue is looked at
    auto item = queue_.TakeAll();
    for (int n = 1; item != nullptr; ++n) {
      MustEnd() ? PublishEvents(item->batch) : Judge(*item);
      queue_.Done(*item);
      item = std::move(item->next);
      if (n % kItemsATick == 0) Tick();
    }
    Tick();
  }
  events_.Write();
  WriteDocuments(/*all=*/true);
}

void Alarms::Judge(const BatchQueue::Item& item) {
  const CommittedBatch& batch = item.batch;
  PublishEvents(batch);
  if (!options_.settings.AnyOn()) return;
  RankState* rank = Find(batch.attempt, batch.rank);
  if (rank == nullptr) {
    skipped_.fetch_add(batch.batch.stats.size(), std::memory_order_relaxed);
    return;
  }
  rank->last = clock_.Now();
  rank->paused = rank->closed = false;
  rank->rules->Define(batch.batch.activations, batch.batch.layouts);
  for (const ScalarRecord& scalar : batch.batch.scalars) rank->rules->AddScalar(scalar);
  JudgeStats(item, rank);
  for (const StepRecord& step : batch.batch.steps) rank->rules->AddStepEnd(step.step);
  if (batch.goodbye) rank->rules->Close(/*all=*/true);
  Collect(batch.rank, rank);
  if (batch.goodbye) {
    active_changed_ = active_changed_ || !rank->active.empty();
    rank->active.clear();
    rank->paused = rank->closed = true;
  }
  bytes_ -= rank->bytes;
  rank->bytes = rank->rules->bytes();
  bytes_ += rank->bytes;
  definitions_.clear();
}

void Alarms::JudgeStats(const BatchQueue::Item& item, RankState* rank) {
  const StatColumns& stats = item.batch.batch.stats;
  const AttemptRank place(item.batch.attempt.id, item.batch.rank);
  bool usable = !item.gap;
  if (!stats.empty() && !rank->rules->Knows(stats))
    usable = loader_.Define(place, rank->rules.get()).ok() && rank->rules->Knows(stats);
  if (rank->rules->bytes() > options_.settings.memory_bytes_max) {
    if (!std::exchange(rank->too_large, true)) {
      options_.log(
          fmt::format("alarms: rank {} of run '{}' has more activations than alarm-memory-mib "
                      "allows; its tensors are not judged",
                      place.second, item.batch.attempt.run));
    }
    usable = false;
  }
  if (usable) {
    rank->rules->AddStats(stats);
    evaluated_.fetch_add(stats.size(), std::memory_order_relaxed);
  } else if (item.gap || !stats.empty()) {
    rank->rules->NoteGap();
    skipped_.fetch_add(stats.size(), std::memory_order_relaxed);
  }
}

void Alarms::PublishEvents(const CommittedBatch& batch) {
  if (options_.feed == nullptr) return;
  for (const EventRecord& event : batch.batch.events) {
    options_.feed->Publish({.run = batch.attempt.run,
                            .attempt = batch.attempt.number,
                            .rank = batch.rank,
                            .event = event});
  }
}

RankState* Alarms::Find(const AttemptMeta& attempt, std::uint32_t number) {
  const AttemptRank place(attempt.id, number);
  if (const auto found = ranks_.find(place); found != ranks_.end()) return &found->second;
  if (!MakeRoom()) return nullptr;
  RankState rank;
  rank.attempt = attempt;
  rank.rules = std::make_unique<RankRules>(
      options_.settings,
      [this, place](std::uint32_t activation) { return Definition(place, activation); });
  rank.last = clock_.Now();
  RankState& kept = ranks_.emplace(place, std::move(rank)).first->second;
  Attempt& of = attempts_[attempt.id];
  of.meta = attempt;
  ++of.ranks;
  if (const auto meta = store_.Rank(attempt.id, number); meta.ok() && *meta)
    of.ranks_expected = std::max<std::size_t>(of.ranks_expected, RanksExpected(**meta, attempt));
  if (const Status loaded = Load(place, &kept); !loaded.ok()) {
    if (loaded.code() != Code::kCancelled)
      options_.log(fmt::format("alarms: rank {} of run '{}' is not judged: {}", number, attempt.run,
                               loaded.message()));
    Forget(ranks_.find(place));
    return nullptr;
  }
  kept.bytes = kept.rules->bytes();
  bytes_ += kept.bytes;
  return &kept;
}

// Builds the state of a rank from what is stored.
Status Alarms::Load(const AttemptRank& place, RankState* rank) {
  const auto judged = documents_.Read(rank->attempt.run);
  if (const auto kept = judged.find(place); kept != judged.end()) rank->silent_until = kept->second;
  STATCOLLECT_ASSIGN_OR_RETURN(const auto complete,
                               loader_.Load(place, rank, &attempts_[place.first].nonfinite));
  if (complete) Collect(place.second, rank);
  rank->stored.clear();
  return Status::Ok();
}

TensorDef Alarms::Definition(const AttemptRank& place, std::uint32_t activation) {
  auto found = definitions_.find(place);
  if (found == definitions_.end() || found->second->activations.size() <= activation) {
    auto read = store_.Definitions(place.first, place.second);
    if (!read.ok() || (*read)->activations.size() <= activation)
      return {.id = activation, .key = {.name = "?"}};
    found = definitions_.insert_or_assign(place, *std::move(read)).first;
  }
  return found->second->activations[activation];
}

void Alarms::Collect(std::uint32_t number, RankState* rank) {
  for (Finding& finding : rank->rules->TakeFindings()) Tell(number, rank, std::move(finding));
  CompareReplicas(number, rank);
  documents_.Touch(rank->attempt.run);
  events_.Write();
}

void Alarms::CompareReplicas(std::uint32_t number, RankState* rank) {
  const std::vector<StepDigest> digests = rank->rules->TakeDigests();
  const AttemptMeta& meta = rank->attempt;
  if (digests.empty() || meta.world_size < 2 || !options_.settings.On(AlarmRule::kRankDisagreement))
    return;
  Attempt& attempt = attempts_[meta.id];
  // Digests wait until all ranks of the launch that record are known. If there are too many, the
  // first ones are kept.
  for (const StepDigest& digest : digests) {
    if (attempt.waiting.size() < ReplicaRule::kDigestsMax)
      attempt.waiting.emplace_back(number, digest);
  }
  if (!attempt.replicas) {
    if (attempt.ranks < attempt.ranks_expected) return;
    const auto metas = store_.Ranks(meta.id);
    if (!metas.ok()) return;
    std::map<std::uint32_t, std::map<std::string, std::string>> configs;
    for (const auto& [other, of] : *metas) configs[other] = of.info.config;
    attempt.replicas.emplace(query::FindReplicas(configs, meta.world_size));
  }
  std::stable_sort(attempt.waiting.begin(), attempt.waiting.end(),
                   [](const auto& a, const auto& b) { return a.second.step < b.second.step; });
  for (const auto& [of, digest] : std::exchange(attempt.waiting, {})) {
    for (ReplicaRule::Told& told : attempt.replicas->Add(of, digest)) {
      const auto about = ranks_.find({meta.id, told.rank});
      if (about != ranks_.end()) Tell(told.rank, &about->second, std::move(told.finding));
    }
  }
}

void Alarms::Tell(std::uint32_t number, RankState* rank, Finding finding) {
  const bool once = finding.rule == AlarmRule::kNanFirstSeen;
  const std::pair key(finding.rule, finding.subject);
  const bool alarm = finding.sort == Finding::Sort::kAlarm;
  if (alarm && !once && !rank->active.insert(key).second) return;
  if (finding.sort == Finding::Sort::kCleared && rank->active.erase(key) == 0) return;
  active_changed_ = true;
  if (rank->silent_until && finding.step <= *rank->silent_until) return;
  if (rank->stored.contains(EventId(EventNumber(finding), finding.step))) return;
  if (alarm && once) NameFirstOfRun(number, &attempts_[rank->attempt.id], &finding);
  events_.Add(rank->attempt, number, std::move(finding), clock_.UnixNanos());
}

// Compares with the steps that have arrived from the other ranks so far.
void Alarms::NameFirstOfRun(std::uint32_t number, Attempt* attempt, Finding* finding) const {
  const std::pair here(finding->step, number);
  const auto before = attempt->nonfinite;
  attempt->nonfinite = std::min(before.value_or(here), here);
  finding->fields["first_of_run"] = before && before < here ? "false" : "true";
  if (!before) {
    finding->text += "; no other rank has reported any";
  } else if (*before < here) {
    finding->text += fmt::format("; rank {} had some at step {}", before->second, before->first);
  } else {
    finding->text +=
        fmt::format("; before rank {}, which had some at step {}", before->second, before->first);
  }
}

// --- what was judged

JudgedDocuments::Judged Alarms::JudgedOf(const std::string& run) const {
  JudgedDocuments::Judged judged;
  for (const auto& [place, rank] : ranks_) {
    if (rank.attempt.run != run) continue;
    if (const auto step = rank.rules->judged()) judged[place] = *step;
  }
  return judged;
}

void Alarms::WriteDocuments(bool all) {
  const auto now = clock_.Now();
  const bool due = all || now - documents_at_ >= options_.document_interval;
  if (due) documents_at_ = now;
  if (!events_.empty()) return;  // what has been judged and is not stored has to be judged again
  documents_.Write(due, [this](const std::string& run) { return JudgedOf(run); });
}

// Records that were stored and not judged: of a daemon that was killed.
void Alarms::ResumeAfterStart() {
  if (!options_.settings.AnyOn()) return;
  const auto runs = store_.ListRuns();
  if (!runs.ok()) return;
  for (const std::string& run : *runs) {
    if (stopping_) return;
    Resume(run);
  }
}

void Alarms::Resume(const std::string& run) {
  const auto attempts = store_.Attempts(run);
  if (!attempts.ok() || attempts->empty()) return;
  const AttemptMeta& newest = attempts->back();
  const auto metas = store_.Ranks(newest.id);
  if (!metas.ok()) return;
  const auto judged = documents_.Read(run);
  for (const auto& [number, meta] : *metas) {
    if (stopping_) return;
    const auto known = judged.find({newest.id, number});
    const bool recent = clock_.UnixNanos() - meta.last_write_unix_nanos < kResumeNanosMax;
    if (!meta.last_step || (known == judged.end() ? !recent : known->second >= *meta.last_step))
      continue;
    RankState* rank = Find(newest, number);
    if (rank == nullptr) continue;
    if (meta.finished) {
      rank->rules->Close(/*all=*/true);
      rank->paused = rank->closed = true;
      Collect(number, rank);
      rank->active.clear();
    }
    definitions_.clear();
  }
}

// --- time and memory

void Alarms::Tick() {
  const auto now = clock_.Now();
  CloseSilent(now);
  definitions_.clear();
  events_.Write();
  if (now - removed_at_ >= kRemovedInterval) {
    removed_at_ = now;
    ForgetRemoved();
  }
  WriteDocuments(/*all=*/false);
  if (std::exchange(active_changed_, false)) CountActive();
  MutexLock lock(mutex_);
  status_.state_bytes = bytes_;
}

// Judges what there is of ranks from which nothing has come for a while.
void Alarms::CloseSilent(std::chrono::steady_clock::time_point now) {
  for (auto& [place, rank] : ranks_) {
    if (!rank.paused && now - rank.last >= options_.pause) {
      rank.paused = true;
      rank.rules->Close(/*all=*/false);
      Collect(place.second, &rank);
    }
    if (!rank.closed && now - rank.last >= options_.silence) {
      rank.closed = true;
      rank.rules->Close(/*all=*/true);
      Collect(place.second, &rank);
    }
  }
}

void Alarms::ForgetRemoved() {
  std::set<std::string> runs;
  for (const auto& [id, attempt] : attempts_) runs.insert(attempt.meta.run);
  std::set<AttemptId> live;
  for (const std::string& run : runs) {
    const auto attempts = store_.Attempts(run);
    if (!attempts.ok()) return;
    for (const AttemptMeta& attempt : *attempts) live.insert(attempt.id);
    if (attempts->empty()) documents_.Forget(run);
  }
  for (auto rank = ranks_.begin(); rank != ranks_.end();) {
    const auto next = std::next(rank);
    if (!live.contains(rank->first.first)) Forget(rank);
    rank = next;
  }
}

// False: what is held is in use.
bool Alarms::MakeRoom() {
  while (bytes_ > options_.settings.memory_bytes_max) {
    const auto oldest = std::min_element(
        ranks_.begin(), ranks_.end(),
        [](const auto& a, const auto& b) { return a.second.last < b.second.last; });
    if (oldest == ranks_.end()) return true;
    if (clock_.Now() - oldest->second.last < kIdleBeforeForgotten && !oldest->second.closed)
      return false;
    if (!oldest->second.closed) {
      oldest->second.rules->Close(/*all=*/true);
      Collect(oldest->first.second, &oldest->second);
    }
    const std::string& run = oldest->second.attempt.run;
    documents_.WriteOne(run, JudgedOf(run));
    Forget(oldest);
  }
  return true;
}

void Alarms::Forget(std::map<AttemptRank, RankState>::iterator rank) {
  bytes_ -= rank->second.bytes;
  active_changed_ = true;
  const auto attempt = attempts_.find(rank->first.first);
  ranks_.erase(rank);
  if (attempt != attempts_.end() && --attempt->second.ranks == 0) attempts_.erase(attempt);
}

void Alarms::CountActive() {
  std::map<std::string, std::uint64_t> active;
  for (const std::string_view name : kAlarmRuleNames) active[std::string(name)] = 0;
  for (const auto& [place, rank] : ranks_) {
    for (const auto& [rule, subject] : rank.active) ++active[std::string(Name(rule))];
  }
  MutexLock lock(mutex_);
  status_.active = std::move(active);
}

}  // namespace statcollect::alarms
