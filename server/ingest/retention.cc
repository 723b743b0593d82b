#include "server/ingest/retention.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/byte_size.h"
#include "common/names.h"

namespace statcollect {
namespace {

using std::chrono::duration_cast;
using std::chrono::nanoseconds;

// "3 d 4 h", "4 h 20 min", "7 min 3 s".
std::string Span(nanoseconds span) {
  const std::int64_t seconds = duration_cast<std::chrono::seconds>(span).count();
  const auto two = [](std::int64_t a, const char* unit_a, std::int64_t b, const char* unit_b) {
    return std::to_string(a) + " " + unit_a + " " + std::to_string(b) + " " + unit_b;
  };
  if (seconds >= 86400) return two(seconds / 86400, "d", seconds / 3600 % 24, "h");
  if (seconds >= 3600) return two(seconds / 3600, "h", seconds / 60 % 60, "min");
  return two(seconds / 60, "min", seconds % 60, "s");
}

}  // namespace

Retention::Retention(Store& store, const Clock& clock, SessionRegistry& registry,
                     const RetentionOptions& options, std::function<void(const std::string&)> log)
    : store_(store), clock_(clock), registry_(registry), options_(options), log_(std::move(log)) {
  status_.age_seconds_max = options_.age_max.count();
  status_.disk_bytes_max = options_.disk_bytes_max;
}

void Retention::Tick() {
  now_ = clock_.Now();
  wall_ = clock_.UnixNanos();
  if (last_look_ && now_ - *last_look_ < options_.interval) return;
  note_.clear();
  const auto census = store_.Census();
  const auto usage = store_.Usage();
  if (!census.ok() || !usage.ok()) {
    return Note("cannot read the store: " +
                (census.ok() ? usage.status() : census.status()).message());
  }
  Runs runs = ByRun(*census);
  WatchClock(runs);
  last_look_ = now_;
  last_wall_ = wall_;
  RemoveExpired(&runs);
  RemoveForSpace(&runs, *usage);
  if (note_.empty()) noted_.clear();
  {
    MutexLock lock(mutex_);
    status_.disk_bytes_max = LimitBytes(*usage);
  }
  Publish(runs);
}

RetentionStatus Retention::status() {
  MutexLock lock(mutex_);
  return status_;
}

Retention::Runs Retention::ByRun(const std::vector<AttemptTally>& tallies) {
  std::map<std::string, Run> by_name;
  for (const AttemptTally& tally : tallies) {
    Run& run = by_name[tally.meta.run];
    run.name = tally.meta.run;
    run.bytes += tally.bytes;
    run.records += tally.records;
    run.last_write_unix_nanos = std::max(run.last_write_unix_nanos, tally.last_write_unix_nanos);
    run.finished = run.finished && tally.finished;
    run.kept = run.kept || tally.kept;
  }
  Runs runs;
  for (auto& [name, run] : by_name) runs.push_back(std::move(run));
  std::stable_sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) {
    return a.last_write_unix_nanos < b.last_write_unix_nanos;
  });
  return runs;
}

void Retention::WatchClock(const Runs& runs) {
  std::string reason;
  if (last_look_) {
    const nanoseconds moved = nanoseconds(wall_ - last_wall_) - (now_ - *last_look_);
    if (moved > kClockJump || moved < -kClockJump) {
      reason = std::string("the wall clock moved ") + (moved.count() > 0 ? "forward" : "back") +
               " by " + Span(moved.count() > 0 ? moved : -moved);
    }
  } else if (!runs.empty()) {
    const nanoseconds ahead(wall_ - runs.back().last_write_unix_nanos);
    if (ahead > kClockHold) reason = "the newest write is " + Span(ahead) + " old";
  }
  if (reason.empty() || options_.age_max.count() == 0) return;
  hold_until_ = now_ + kClockHold;
  hold_reason_ = reason;
}

void Retention::RemoveExpired(Runs* runs) {
  if (options_.age_max.count() == 0) return;
  if (held()) {
    return Note("nothing is removed by age: " + hold_reason_ + "; check the clock; continues in " +
                Span(*hold_until_ - now_));
  }
  std::erase_if(*runs, [this](const Run& run) {
    const nanoseconds age(wall_ - run.last_write_unix_nanos);
    return age > options_.age_max && MayRemove(run) &&
           Remove(run, "last written " + Span(age) + " ago, limit " + Span(options_.age_max));
  });
}

void Retention::RemoveForSpace(Runs* runs, const StoreUsage& usage) {
  const std::uint64_t limit = LimitBytes(usage);
  if (limit == 0) return;
  const auto live = [runs] {
    std::uint64_t bytes = 0;
    for (const Run& run : *runs) bytes += run.bytes;
    return bytes;
  };
  bool possible = true;
  while (live() > limit && possible) {
    possible = RemoveOldest(runs, "runs hold " + Mebibytes(live()) + ", limit " + Mebibytes(limit));
  }
  // The space of what was removed comes back only after its data has been deleted.
  if (usage.retired_attempts > 0) last_space_removal_ = now_;
  // Space that does not belong to runs, most likely not freed by RocksDB yet. Removes one run at a
  // time.
  const std::uint64_t overhead = std::min(kOverheadBytesMax, limit);
  if (possible && !last_space_removal_ && usage.disk_bytes > limit + overhead) {
    possible = RemoveOldest(
        runs, "the store takes " + Mebibytes(usage.disk_bytes) + ", limit " + Mebibytes(limit));
  }
  if (last_space_removal_ && now_ - *last_space_removal_ >= kSettle) last_space_removal_.reset();
  if (!possible) {
    Note("the store is larger than " + Mebibytes(limit) +
         ", and every run is exempt, being written, or unfinished and recent");
  }
}

bool Retention::MayRemove(const Run& run) {
  const nanoseconds idle(wall_ - run.last_write_unix_nanos);
  // While the clock is doubtful, silence proves nothing.
  const bool over = run.finished || (idle > kUnfinishedIdle && !held());
  return over && !run.kept && !registry_.HasOpenStream(run.name);
}

bool Retention::Remove(const Run& run, const std::string& why) {
  const auto deleted = registry_.DeleteRun(run.name, /*force=*/false, run.last_write_unix_nanos);
  if (!deleted.ok()) {
    log_("retention: " + deleted.status().message());
    return false;
  }
  {
    MutexLock lock(mutex_);
    ++status_.runs_removed;
    status_.bytes_removed += run.bytes;
  }
  log_("retention: removed run '" + Printable(run.name) + "': " + why + "; " +
       std::to_string(deleted->attempts) + (deleted->attempts == 1 ? " attempt, " : " attempts, ") +
       std::to_string(deleted->records) + " records, about " + Mebibytes(run.bytes));
  return true;
}

bool Retention::RemoveOldest(Runs* runs, const std::string& why) {
  for (auto run = runs->begin(); run != runs->end(); ++run) {
    if (!MayRemove(*run) || !Remove(*run, why)) continue;
    last_space_removal_ = now_;
    runs->erase(run);
    return true;
  }
  return false;
}

void Retention::Publish(const Runs& runs) {
  std::vector<RetentionStatus::Next> next;
  std::vector<std::string> kept;
  for (const Run& run : runs) {
    if (run.kept) kept.push_back(run.name);
    if (next.size() == options_.next_max || !(run.finished || options_.age_max.count() > 0))
      continue;
    if (run.kept || registry_.HasOpenStream(run.name)) continue;
    std::int64_t due = 0;
    if (options_.age_max.count() > 0) {
      due = run.last_write_unix_nanos + nanoseconds(options_.age_max).count();
      if (held()) due = std::max(due, wall_ + nanoseconds(*hold_until_ - now_).count());
    }
    next.push_back({.run = run.name,
                    .last_write_unix_nanos = run.last_write_unix_nanos,
                    .bytes = run.bytes,
                    .due_unix_nanos = due});
  }
  MutexLock lock(mutex_);
  status_.next = std::move(next);
  status_.kept = std::move(kept);
  status_.note = note_;
}

std::uint64_t Retention::LimitBytes(const StoreUsage& usage) const {
  const std::uint64_t share = usage.disk_capacity_bytes / 100 * options_.disk_percent_max;
  if (options_.disk_bytes_max == 0 || share == 0) return std::max(options_.disk_bytes_max, share);
  return std::min(options_.disk_bytes_max, share);
}

// One line a reason, though its figures change from look to look.
void Retention::Note(const std::string& note) {
  note_ += (note_.empty() ? "" : "; ") + note;
  const std::string kind = note.substr(0, note.find_first_of(":0123456789"));
  if (noted_.find(kind) == std::string::npos) {
    noted_ += kind + "\n";
    log_("retention: " + note);
  }
  MutexLock lock(mutex_);
  status_.note = note_;
}

}  // namespace statcollect
