#include "server/api/live_board.h"

#include <charconv>
#include <random>
#include <utility>
#include <vector>

#include "common/project.h"
#include "server/api/calls.h"
#include "server/query/answers/runs.h"

namespace statcollect::api {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::size_t kRunsAMessage = 500;
constexpr std::size_t kRemovedMax = 10'000;  // that are remembered for who comes back

std::uint64_t NewEpoch() {
  std::random_device random;
  return (std::uint64_t{random()} << 16 ^ random()) | 1;  // never 0: nobody's place
}

}  // namespace

LiveBoard::LiveBoard(const query::QueryEngine& engine, RunFeed& feed, const LiveLimits& limits)
    : engine_(engine), feed_(feed), limits_(limits), thread_([this] { Run(); }) {}

LiveBoard::~LiveBoard() {
  stop_.request_stop();
  {
    MutexLock lock(mutex_);
    ending_ = true;
    wake_.notify_all();
  }
  thread_.join();
  feed_.Watch({});
}

Result<std::uint64_t> LiveBoard::Join(std::weak_ptr<LiveFollower> follower) {
  MutexLock lock(mutex_);
  if (closed_ || ending_)
    return Status(Code::kUnavailable, "follow runs: the collector is shutting down");
  if (followers_.size() >= limits_.followers_max) {
    return Status(Code::kResourceExhausted,
                  "follow runs: " + std::to_string(limits_.followers_max) +
                      " pages or programs do already; ask for the runs now and then instead, or "
                      "try again later");
  }
  followers_.emplace(++last_id_, std::move(follower));
  woken_ = true;
  wake_.notify_all();
  return last_id_;
}

void LiveBoard::Leave(std::uint64_t id) {
  MutexLock lock(mutex_);
  followers_.erase(id);
}

bool LiveBoard::Read(const std::string& project, const std::set<std::string>& wanted, Place& place,
                     v1::FollowRunsResponse& message) {
  MutexLock lock(mutex_);
  if (!ready_) return false;
  if (place.epoch != epoch_ || place.number < forgotten_ || place.number > number_) {
    place = {.epoch = epoch_, .number = 0};
    message.set_whole(true);
  }
  const bool from_beginning = place.number == 0;
  auto next = by_number_.upper_bound(place.number);
  for (std::size_t taken = 0; next != by_number_.end() && taken < kRunsAMessage; ++next) {
    place.number = next->first;
    const ProjectRun of = SplitRun(next->second);
    const std::string name(of.run);
    if (of.project != project || (!wanted.empty() && !wanted.contains(name))) continue;
    const Entry& entry = runs_.at(next->second);
    if (!entry.change && from_beginning) continue;
    ++taken;
    if (entry.change) {
      v1::RunChange& added = *message.add_runs();
      added = *entry.change;
      added.mutable_run()->set_run(name);
    } else {
      message.add_removed(name);
    }
  }
  if (next == by_number_.end()) place.number = number_;
  message.set_caught_up(next == by_number_.end());
  message.set_cursor(Text(place));
  return message.whole() || message.runs_size() > 0 || message.removed_size() > 0;
}

std::string LiveBoard::Text(const Place& place) {
  char text[17] = {};
  const auto end = std::to_chars(text, text + 16, place.epoch, 16).ptr;
  return std::string(text, end) + "-" + std::to_string(place.number);
}

LiveBoard::Place LiveBoard::Parse(const std::string& text) {
  Place place;
  const char* const end = text.data() + text.size();
  const auto epoch = std::from_chars(text.data(), end, place.epoch, 16);
  if (epoch.ec != std::errc() || epoch.ptr == end || *epoch.ptr != '-') return {};
  const auto number = std::from_chars(epoch.ptr + 1, end, place.number);
  return number.ec == std::errc() && number.ptr == end ? place : Place{};
}

void LiveBoard::Run() {
  auto lonely_since = SteadyClock::now(), beat_at = SteadyClock::now() + limits_.beat;
  while (Wait(beat_at)) {
    bool followed = false, ready = false;
    {
      MutexLock lock(mutex_);
      followed = !followers_.empty();
      ready = ready_;
    }
    const auto now = SteadyClock::now();
    const bool beat = now >= beat_at;
    if (beat) beat_at = now + limits_.beat;
    if (followed) lonely_since = now;
    if (!followed && now - lonely_since >= limits_.linger) {
      if (ready) Clear();
      continue;
    }
    if (!followed && !ready) continue;
    if (const Status looked = Guarded([this] { return Look(); }); !looked.ok()) {
      Clear();
      EndAll(looked);
    }
    Tell(beat);
    if (!Pause()) break;
  }
}

Status LiveBoard::Look() {
  bool ready = false;
  {
    MutexLock lock(mutex_);
    ready = ready_;
  }
  if (!ready) {
    feed_.Watch([this] {  // before the list is read: what changes meanwhile is looked at again
      MutexLock lock(mutex_);
      woken_ = true;
      wake_.notify_all();
    });
  }
  const RunFeed::Changes changes = feed_.Take();
  if (changes.closed) {
    MutexLock lock(mutex_);
    closed_ = true;
    return {Code::kUnavailable, "follow runs: the collector is shutting down"};
  }
  if (ready) {
    for (const std::string& run : changes.runs) {
      const auto events = changes.events.find(run);
      LookAt(run, events == changes.events.end() ? 0 : events->second);
    }
    return Status::Ok();
  }
  v1::ListRunsResponse wire;
  STATCOLLECT_RETURN_IF_ERROR(engine_.Ask(query::ListRuns, {}, wire, stop_.get_token()));
  MutexLock lock(mutex_);
  epoch_ = NewEpoch();
  for (v1::RunSummary& run : *wire.mutable_runs()) {
    const std::string name = run.run();
    v1::RunChange change;
    *change.mutable_run() = std::move(run);
    PutLocked(name, std::move(change));
  }
  ready_ = true;
  return Status::Ok();
}

void LiveBoard::LookAt(const std::string& run, std::uint64_t events) {
  auto summary = engine_.Summary(run, stop_.get_token());
  if (!summary.ok() && summary.status().code() != Code::kNotFound)
    return;  // keep the last state; a query of the run itself reports the error
  std::optional<v1::RunChange> change;
  if (summary.ok()) {
    change.emplace();
    query::ToWire(*summary, *change->mutable_run());
    change->set_events(events);
  }
  MutexLock lock(mutex_);
  const auto known = runs_.find(run);
  if (!change && known == runs_.end()) return;
  if (change && events == 0 && known != runs_.end() && known->second.change)
    change->set_events(known->second.change->events());
  PutLocked(run, std::move(change));
}

void LiveBoard::PutLocked(const std::string& run, std::optional<v1::RunChange> change) {
  Entry& entry = runs_[run];
  const bool was_removed = entry.number > 0 && !entry.change;
  by_number_.erase(entry.number);
  if (!change) ++removed_;
  if (was_removed) --removed_;
  entry = {.number = ++number_, .change = std::move(change)};
  by_number_.emplace(number_, run);
  if (removed_ > kRemovedMax) ForgetRemovedLocked();
}

// The older half of them. Who has not read so far gets everything again.
void LiveBoard::ForgetRemovedLocked() {
  for (auto at = by_number_.begin(); at != by_number_.end() && removed_ > kRemovedMax / 2;) {
    const auto entry = runs_.find(at->second);
    if (entry->second.change) {
      ++at;
      continue;
    }
    forgotten_ = at->first;
    runs_.erase(entry);
    at = by_number_.erase(at);
    --removed_;
  }
}

std::vector<std::shared_ptr<LiveFollower>> LiveBoard::Followers(bool forget) {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<LiveFollower>> all;
  for (const auto& [id, weak] : followers_) {
    if (auto follower = weak.lock()) all.push_back(std::move(follower));
  }
  if (forget) followers_.clear();
  return all;
}

void LiveBoard::Tell(bool beat) {
  for (const auto& follower : Followers(/*forget=*/false)) follower->Advance(beat);
}

void LiveBoard::EndAll(const Status& why) {
  for (const auto& follower : Followers(/*forget=*/true)) follower->End(why);
}

void LiveBoard::Clear() {
  bool closed = false;
  {
    MutexLock lock(mutex_);
    ready_ = false;
    number_ = forgotten_ = removed_ = 0;
    runs_.clear();
    by_number_.clear();
    closed = closed_;
  }
  if (!closed) feed_.Watch({});
}

bool LiveBoard::Wait(SteadyClock::time_point until) {
  MutexLock lock(mutex_);
  wake_.wait_until(mutex_, until,
                   [this]() STATCOLLECT_REQUIRES(mutex_) { return woken_ || ending_; });
  woken_ = false;
  return !ending_;
}

bool LiveBoard::Pause() {
  MutexLock lock(mutex_);
  return !wake_.wait_until(mutex_, SteadyClock::now() + limits_.interval,
                           [this]() STATCOLLECT_REQUIRES(mutex_) { return ending_; });
}

}  // namespace statcollect::api
