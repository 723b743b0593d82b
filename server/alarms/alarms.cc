#include "server/alarms/alarms.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <sstream>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "common/names.h"

namespace statcollect::alarms {
namespace {

constexpr std::chrono::milliseconds kWait{50};
constexpr std::chrono::seconds kRemovedInterval{5};
constexpr std::chrono::seconds kIdleBeforeForgotten{10};
// Of a run without a document: records that a crash kept from being judged are at most so old.
constexpr std::int64_t kResumeNanosMax = std::int64_t{600} * 1'000'000'000;
constexpr std::size_t kRecordBytes = 160;  // of statistics, in the queue
constexpr std::size_t kItemBytes = 512;
constexpr std::size_t kItemsMax = 100'000;
constexpr int kItemsATick = 64;
constexpr std::size_t kUnwrittenMax = 10'000;
constexpr std::uint64_t kReplayStepsMax = 2000;  // that are not known to have been judged
constexpr int kNice = 15;

// The rules' own thread takes what is left over: ingest shares the processors with it.
void LowerPriority() { (void)setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice); }

std::uint64_t NumberOf(const Finding& finding) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::string_view part :
       {std::string_view(finding.kind), Name(finding.rule), std::string_view(finding.subject)}) {
    for (const char c : part) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    hash = (hash ^ 0xff) * 0x100000001b3u;
  }
  return hash >> 1;
}

std::uint64_t NumberOf(const EventRecord& event) {
  const auto field = [&](const char* name) {
    const auto found = event.fields.find(name);
    return found == event.fields.end() ? std::string() : found->second;
  };
  Finding finding{.kind = event.kind, .subject = field("subject"), .text = {}, .fields = {}};
  const std::string rule = field("rule");
  for (std::size_t i = 0; i < kAlarmRuleCount; ++i) {
    if (kAlarmRuleNames[i] == rule) finding.rule = static_cast<AlarmRule>(i);
  }
  return NumberOf(finding);
}

const char* SeverityOf(const Finding& finding) {
  switch (finding.sort) {
    case Finding::Sort::kAlarm:
      return "alarm";
    case Finding::Sort::kNote:
      return "note";
    case Finding::Sort::kCleared:
      return "cleared";
  }
  return "";
}

}  // namespace

Alarms::Alarms(Store& store, const Clock& clock, AlarmsOptions options)
    : store_(store), clock_(clock), options_(std::move(options)) {
  status_.enabled = options_.settings.AnyOn();
  for (std::size_t i = 0; i < kAlarmRuleCount; ++i) {
    status_.raised[std::string(kAlarmRuleNames[i])] = 0;
    status_.active[std::string(kAlarmRuleNames[i])] = 0;
  }
  documents_at_ = removed_at_ = clock_.Now();
  thread_ = std::thread([this] { Run(); });
}

Alarms::~Alarms() {
  Drain();
  for (auto left = TakeQueue(); left != nullptr;) left = std::move(left->next);  // came while it ended
}

void Alarms::Take(CommittedBatch batch) noexcept {
  try {
    if (stopping_.load(std::memory_order_acquire)) return;
    auto item = std::make_unique<Item>();
    item->batch = std::move(batch);
    StatColumns& stats = item->batch.batch.stats;
    const std::size_t records = options_.settings.AnyOn() ? stats.size() : 0;
    const std::size_t queued = queue_bytes_.load(std::memory_order_relaxed);
    if (queue_items_.load(std::memory_order_relaxed) >= kItemsMax) return;
    item->gap = records > 0 && queued > 0 && queued + records * kRecordBytes > options_.queue_bytes_max;
    if (item->gap) skipped_.fetch_add(records, std::memory_order_relaxed);
    if (item->gap || records == 0) stats = {};
    item->bytes = kItemBytes + stats.size() * kRecordBytes;
    queue_bytes_.fetch_add(item->bytes, std::memory_order_relaxed);
    queue_items_.fetch_add(1, std::memory_order_relaxed);
    Item* const added = item.release();
    Item* before = newest_.load(std::memory_order_relaxed);
    do {
      (void)added->next.release();
      added->next.reset(before);
    } while (!newest_.compare_exchange_weak(before, added, std::memory_order_acq_rel));
    work_.notify_one();
  } catch (const std::exception&) {  // no memory: as if the queue were full
  }
}

std::unique_ptr<Alarms::Item> Alarms::TakeQueue() {
  std::unique_ptr<Item> newest(newest_.exchange(nullptr, std::memory_order_acq_rel)), oldest;
  while (newest != nullptr) {
    std::unique_ptr<Item> before = std::move(newest->next);
    newest->next = std::move(oldest);
    oldest = std::move(newest);
    newest = std::move(before);
  }
  return oldest;
}

void Alarms::Drain() {
  std::lock_guard lock(join_mutex_);
  if (!thread_.joinable()) return;
  end_at_ = clock_.Now() + options_.drain;
  stopping_ = true;
  work_.notify_one();
  thread_.join();
}

AlarmStatus Alarms::GetStatus() {
  std::lock_guard lock(mutex_);
  AlarmStatus status = status_;
  status.evaluated_records = evaluated_.load(std::memory_order_relaxed);
  status.skipped_records = skipped_.load(std::memory_order_relaxed);
  return status;
}

void Alarms::AwaitIdle() {
  while (!stopping_ && (!resumed_ || queue_items_ > 0))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void Alarms::Run() {
  LowerPriority();
  ResumeAfterStart();
  resumed_ = true;
  std::mutex waiting;  // nobody else's
  for (bool more = true; more;) {
    {
      std::unique_lock lock(waiting);
      work_.wait_for(lock, kWait, [this] { return newest_.load() != nullptr || stopping_; });
    }
    more = !stopping_;  // before the queue is looked at
    auto item = TakeQueue();
    for (int n = 1; item != nullptr; ++n) {
      MustEnd() ? PublishEvents(item->batch) : Judge(*item);
      queue_bytes_ -= item->bytes;
      --queue_items_;
      item = std::move(item->next);
      if (n % kItemsATick == 0) Tick();
    }
    Tick();
  }
  WriteEvents();
  KeepDocuments(/*all=*/true);
}

void Alarms::Judge(const Item& item) {
  const CommittedBatch& batch = item.batch;
  PublishEvents(batch);
  if (!options_.settings.AnyOn()) return;
  Rank* rank = Find(batch.attempt, batch.rank);
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

void Alarms::JudgeStats(const Item& item, Rank* rank) {
  const StatColumns& stats = item.batch.batch.stats;
  const AttemptRank place(item.batch.attempt.id, item.batch.rank);
  bool usable = !item.gap;
  if (!stats.empty() && !rank->rules->Knows(stats))
    usable = DefineFromStore(place, rank).ok() && rank->rules->Knows(stats);
  if (rank->rules->bytes() > options_.settings.memory_bytes_max) {
    if (!std::exchange(rank->too_large, true)) {
      options_.log(fmt::format(
          "alarms: rank {} of run '{}' has more activations than alarm-memory-mib allows; its tensors are "
          "not judged",
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
    options_.feed->Publish(
        {.run = batch.attempt.run, .attempt = batch.attempt.number, .rank = batch.rank, .event = event});
  }
}

Alarms::Rank* Alarms::Find(const AttemptMeta& attempt, std::uint32_t number) {
  const AttemptRank place(attempt.id, number);
  if (const auto found = ranks_.find(place); found != ranks_.end()) return &found->second;
  if (!MakeRoom()) return nullptr;
  Rank rank;
  rank.attempt = attempt;
  rank.rules = std::make_unique<RankRules>(
      options_.settings, [this, place](std::uint32_t activation) { return Definition(place, activation); });
  rank.last = clock_.Now();
  Rank& kept = ranks_.emplace(place, std::move(rank)).first->second;
  Attempt& of = attempts_[attempt.id];
  of.meta = attempt;
  ++of.ranks;
  if (const Status loaded = Load(attempt, number, &kept); !loaded.ok()) {
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

Status Alarms::Load(const AttemptMeta& attempt, std::uint32_t number, Rank* rank) {
  const AttemptRank place(attempt.id, number);
  auto metas = store_.Ranks(attempt.id);
  if (!metas.ok()) return metas.status();
  const auto meta = metas->find(number);
  if (meta == metas->end()) return {Code::kNotFound, "it has been removed"};
  const auto document = ReadDocument(attempt.run);
  if (const auto kept = document.find(place); kept != document.end()) rank->silent_until = kept->second;
  STATCOLLECT_RETURN_IF_ERROR(LoadEvents(attempt, number, rank));
  STATCOLLECT_RETURN_IF_ERROR(DefineFromStore(place, rank));
  STATCOLLECT_RETURN_IF_ERROR(Replay(attempt, number, meta->second, rank));
  rank->stored.clear();
  return Status::Ok();
}

Status Alarms::LoadEvents(const AttemptMeta& attempt, std::uint32_t number, Rank* rank) {
  auto events = store_.Events(attempt.id, number);
  if (!events.ok()) return events.status();
  for (const EventRecord& event : *events) {
    if (!event.from_collector) continue;
    rank->stored.insert(NumberOf(event) ^ event.step);
    if (event.kind != Name(AlarmRule::kNanFirstSeen)) continue;
    rank->rules->SetNonfiniteSeen();
    auto& first = attempts_[attempt.id].nonfinite;
    first = std::min(first.value_or(std::pair(event.step, number)), std::pair(event.step, number));
  }
  return Status::Ok();
}

// Where to begin so that the rules' windows are full at `judged`.
Result<std::uint64_t> Alarms::ReplayFrom(const AttemptRank& place, std::uint64_t judged) {
  const std::uint64_t wanted =
      kAlarmWindowMax + std::max(options_.settings.vanishing_steps, options_.settings.dead_relu_steps);
  for (std::uint64_t back = 2 * wanted;; back *= 16) {
    const std::uint64_t first = judged > back ? judged - back : 0;
    auto steps = store_.StatSteps(place.first, place.second, {.first = first, .last = judged});
    if (!steps.ok()) return steps.status();
    if (steps->size() >= wanted) return (*steps)[steps->size() - wanted];
    if (first == 0 || back > kReplayStepsMax * 256) return steps->empty() ? first : steps->front();
  }
}

Status Alarms::Replay(const AttemptMeta& attempt, std::uint32_t number, const RankMeta& meta, Rank* rank) {
  if (!meta.last_step) return Status::Ok();
  const AttemptRank place(attempt.id, number);
  const std::uint64_t unknown = *meta.last_step > kReplayStepsMax ? *meta.last_step - kReplayStepsMax : 0;
  auto first = ReplayFrom(place, rank->silent_until.value_or(unknown));
  if (!first.ok()) return first.status();
  const StepBounds bounds{.first = *first};
  auto scalars = store_.Scalars(attempt.id, number, bounds);
  if (!scalars.ok()) return scalars.status();
  auto ends = store_.StepEnds(attempt.id, number, bounds);
  if (!ends.ok()) return ends.status();
  std::size_t scalar = 0, end = 0;
  // A scaler's word about a step may have come with a later one.
  const auto add_scalars = [&](std::uint64_t until) {
    for (; scalar < scalars->size() && (*scalars)[scalar].step <= until; ++scalar)
      rank->rules->AddScalar((*scalars)[scalar]);
  };
  const auto add_ends = [&](std::uint64_t before) {
    for (; end < ends->size() && (*ends)[end].step < before; ++end)
      rank->rules->AddStepEnd((*ends)[end].step);
  };
  const auto scan = store_.ScanStats(attempt.id, number, bounds);
  StatColumns columns;
  while (scan->NextHead()) {
    if (MustEnd()) return {Code::kCancelled, "the collector is stopping; it is judged after the next start"};
    const std::uint64_t step = scan->head().step;
    if (!scan->Load(/*sketches=*/false, &columns)) break;
    add_ends(step);
    add_scalars(step);
    columns.step.assign(columns.size(), step);
    if (!rank->rules->Knows(columns)) STATCOLLECT_RETURN_IF_ERROR(DefineFromStore(place, rank));
    if (!rank->rules->Knows(columns)) break;  // the definitions come with a batch that was stored just now
    rank->rules->AddStats(columns);
    if (rank->rules->bytes() > options_.settings.memory_bytes_max) return Status::Ok();
  }
  STATCOLLECT_RETURN_IF_ERROR(scan->status());
  add_scalars(~std::uint64_t{0});
  add_ends(~std::uint64_t{0});
  Collect(number, rank);
  return Status::Ok();
}

Status Alarms::DefineFromStore(const AttemptRank& place, Rank* rank) {
  auto activations = store_.Activations(place.first, place.second);
  if (!activations.ok()) return activations.status();
  auto layouts = store_.Layouts(place.first, place.second);
  if (!layouts.ok()) return layouts.status();
  rank->rules->Define(*activations, *layouts);
  return Status::Ok();
}

TensorDef Alarms::Definition(const AttemptRank& place, std::uint32_t activation) {
  auto found = definitions_.find(place);
  if (found == definitions_.end() || found->second.size() <= activation) {
    auto read = store_.Activations(place.first, place.second);
    if (!read.ok() || read->size() <= activation) return {.id = activation, .key = {.name = "?"}};
    found = definitions_.insert_or_assign(place, *std::move(read)).first;
  }
  return found->second[activation];
}

void Alarms::Collect(std::uint32_t number, Rank* rank) {
  for (Finding& finding : rank->rules->TakeFindings()) Tell(number, rank, std::move(finding));
  CompareReplicas(number, rank);
  unkept_.insert(rank->attempt.run);
  WriteEvents();
}

void Alarms::CompareReplicas(std::uint32_t number, Rank* rank) {
  const std::vector<StepDigest> digests = rank->rules->TakeDigests();
  const AttemptMeta& meta = rank->attempt;
  if (digests.empty() || meta.world_size < 2 || !options_.settings.On(AlarmRule::kRankDisagreement)) return;
  Attempt& attempt = attempts_[meta.id];
  // Of ranks that were judged before the last one was there; the first steps are the ones that count.
  for (const StepDigest& digest : digests) {
    if (attempt.waiting.size() < ReplicaRule::kDigestsMax) attempt.waiting.emplace_back(number, digest);
  }
  if (!attempt.replicas) {
    if (attempt.ranks < meta.world_size) return;
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

void Alarms::Tell(std::uint32_t number, Rank* rank, Finding finding) {
  const bool once = finding.rule == AlarmRule::kNanFirstSeen;
  const std::pair key(finding.rule, finding.subject);
  const bool alarm = finding.sort == Finding::Sort::kAlarm;
  if (alarm && !once && !rank->active.insert(key).second) return;
  if (finding.sort == Finding::Sort::kCleared && rank->active.erase(key) == 0) return;
  active_changed_ = true;
  if (rank->silent_until && finding.step <= *rank->silent_until) return;
  const std::uint64_t event_number = NumberOf(finding);
  if (rank->stored.contains(event_number ^ finding.step)) return;
  if (alarm && once) NameFirstOfRun(number, &attempts_[rank->attempt.id], &finding);
  if (unwritten_.size() >= kUnwrittenMax) {
    options_.log("alarms: too many events wait to be stored; the oldest is dropped");
    unwritten_.pop_front();
  }
  EventRecord event{.kind = std::move(finding.kind),
                    .step = finding.step,
                    .unix_nanos = clock_.UnixNanos(),
                    .text = std::move(finding.text),
                    .fields = std::move(finding.fields),
                    .from_collector = true};
  event.fields["severity"] = SeverityOf(finding);
  event.fields["rule"] = Name(finding.rule);
  event.fields["subject"] = finding.subject;
  unwritten_.push_back({.attempt = rank->attempt,
                        .event = {.rank = number, .number = event_number, .event = std::move(event)},
                        .alarm = alarm});
}

// Which rank was first is known as far as the ranks' steps have come in.
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

void Alarms::WriteEvents() {
  while (!unwritten_.empty()) {
    const AttemptId attempt = unwritten_.front().attempt.id;
    std::vector<CollectorEvent> events;
    for (const Unwritten& one : unwritten_) {
      if (one.attempt.id != attempt) break;
      events.push_back(one.event);
    }
    const Status written = store_.PutEvents(attempt, events);
    if (!written.ok() && written.code() != Code::kNotFound) return;  // tried again with the next tick
    for (std::size_t n = events.size(); n > 0; --n) {
      if (written.ok()) Announce(unwritten_.front());
      unwritten_.pop_front();
    }
  }
}

void Alarms::Announce(const Unwritten& written) {
  const FeedEvent event{.run = written.attempt.run,
                        .attempt = written.attempt.number,
                        .rank = written.event.rank,
                        .event = written.event.event};
  if (options_.feed != nullptr) options_.feed->Publish(event);
  if (!written.alarm) return;
  {
    std::lock_guard lock(mutex_);
    ++status_.raised[event.event.fields.at("rule")];
  }
  options_.log(fmt::format("alarm: run '{}' rank {} {}: {}", event.run, event.rank, event.event.kind,
                           Printable(event.event.text, 400)));
  if (options_.notify) options_.notify(event);
}

// --- what was judged

std::map<Alarms::AttemptRank, std::uint64_t> Alarms::ReadDocument(const std::string& run) {
  std::map<AttemptRank, std::uint64_t> judged;
  const auto document = store_.Document(run, kDocument);
  if (!document.ok() || !*document) return judged;
  documented_.insert(run);
  std::istringstream lines(**document);
  AttemptRank place;
  std::uint64_t step = 0;
  while (lines >> place.first >> place.second >> step) judged[place] = step;
  return judged;
}

void Alarms::KeepDocuments(bool all) {
  const auto now = clock_.Now();
  const bool due = all || now - documents_at_ >= options_.document_interval;
  if (due) documents_at_ = now;
  if (!unwritten_.empty()) return;  // what has been judged and is not stored has to be judged again
  for (auto run = unkept_.begin(); run != unkept_.end();) {
    if (!due && documented_.contains(*run)) {
      ++run;
      continue;
    }
    KeepDocument(*run);
    run = unkept_.erase(run);
  }
}

void Alarms::KeepDocument(const std::string& run) {
  const auto attempts = store_.Attempts(run);
  if (!attempts.ok() || attempts->empty()) return;
  std::map<AttemptRank, std::uint64_t> judged = ReadDocument(run);
  const std::map<AttemptRank, std::uint64_t> before = judged;
  std::set<AttemptId> ids;
  for (const AttemptMeta& attempt : *attempts) ids.insert(attempt.id);
  std::erase_if(judged, [&](const auto& entry) { return !ids.contains(entry.first.first); });
  for (const auto& [place, rank] : ranks_) {
    if (rank.attempt.run != run) continue;
    if (const auto step = rank.rules->judged()) judged[place] = std::max(judged[place], *step);
  }
  if (judged == before && documented_.contains(run)) return;
  std::string text;
  for (const auto& [place, step] : judged) text += fmt::format("{} {} {}\n", place.first, place.second, step);
  if (store_.PutDocument(run, kDocument, text).ok()) documented_.insert(run);
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
  const auto judged = ReadDocument(run);
  for (const auto& [number, meta] : *metas) {
    if (stopping_) return;
    const auto known = judged.find({newest.id, number});
    const bool recent = clock_.UnixNanos() - meta.last_write_unix_nanos < kResumeNanosMax;
    if (!meta.last_step || (known == judged.end() ? !recent : known->second >= *meta.last_step)) continue;
    Rank* rank = Find(newest, number);
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
  definitions_.clear();
  WriteEvents();
  if (now - removed_at_ >= kRemovedInterval) {
    removed_at_ = now;
    ForgetRemoved();
  }
  KeepDocuments(/*all=*/false);
  if (std::exchange(active_changed_, false)) CountActive();
  std::lock_guard lock(mutex_);
  status_.state_bytes = bytes_;
}

void Alarms::ForgetRemoved() {
  std::set<std::string> runs;
  for (const auto& [id, attempt] : attempts_) runs.insert(attempt.meta.run);
  std::set<AttemptId> live;
  for (const std::string& run : runs) {
    const auto attempts = store_.Attempts(run);
    if (!attempts.ok()) return;
    for (const AttemptMeta& attempt : *attempts) live.insert(attempt.id);
    if (attempts->empty()) documented_.erase(run);
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
    const auto oldest = std::min_element(ranks_.begin(), ranks_.end(), [](const auto& a, const auto& b) {
      return a.second.last < b.second.last;
    });
    if (oldest == ranks_.end()) return true;
    if (clock_.Now() - oldest->second.last < kIdleBeforeForgotten && !oldest->second.closed) return false;
    if (!oldest->second.closed) {
      oldest->second.rules->Close(/*all=*/true);
      Collect(oldest->first.second, &oldest->second);
    }
    KeepDocument(oldest->second.attempt.run);
    Forget(oldest);
  }
  return true;
}

void Alarms::Forget(std::map<AttemptRank, Rank>::iterator rank) {
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
  std::lock_guard lock(mutex_);
  status_.active = std::move(active);
}

}  // namespace statcollect::alarms
