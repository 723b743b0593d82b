#include "tests/simulation/world.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "tests/simulation/agent.h"
#include "tests/simulation/collector.h"
#include "tests/simulation/history.h"
#include "tests/simulation/importer.h"
#include "tests/simulation/network.h"
#include "tests/simulation/threads.h"

namespace statcollect::simulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::int64_t kFaultsUntilMillis = 25'000;
// After the faults: an agent waits up to 5 s between attempts, a silent connection is noticed
// within 30 s and one attempt takes up to 20 s more.
constexpr seconds kCalm{400};
constexpr seconds kRealCalm{30};  // of real time, on top
constexpr std::uint64_t kStepsMax = 2'000'000;

class World {
 public:
  World(const WorldPlan& plan, const std::vector<Event>& events)
      : plan_(plan),
        events_(events),
        random_(plan.seed ^ 0x5eed),
        machine_(plan.real_store, plan.seed),
        threads_(plan.seed),
        network_(threads_, history_),
        collector_(machine_, network_, threads_, history_) {}
  ~World() {
    if (!spill_.empty()) std::filesystem::remove_all(spill_);
  }

  Outcome Run() {
    std::string pattern =
        std::filesystem::temp_directory_path() / "statcollect_simulation_spill_XXXXXX";
    spill_ = mkdtemp(pattern.data());
    threads_.Spawn([this] { collector_.Start(); });
    const int launches = 1 + static_cast<int>(random_() % 2);
    for (int i = 0; i < launches; ++i) Launch("run" + std::to_string(i), IfExists::kError);
    for (const Event& event : events_)
      threads_.After(milliseconds(event.at_millis), [this, event] { Strike(event); });
    threads_.After(milliseconds(kFaultsUntilMillis), [this] { Calm(); });
    while (history_.failure().empty() && !over_) Step();
    while (history_.failure().empty() && threads_.Step()) continue;  // what is still on its way
    if (threads_.unfinished() > 0) history_.Fail("threads that never end");
    Outcome outcome{.failure = history_.failure(),
                    .steps = threads_.steps(),
                    .records = history_.records_written()};
    outcome.messages = network_.messages;
    outcome.broken = network_.broken;
    outcome.commits = collector_.commits();
    outcome.starts = collector_.starts();
    outcome.agents = agents_.size();
    outcome.simulated_seconds = std::chrono::duration<double>(threads_.now() - began_).count();
    if (!outcome.failure.empty()) {
      outcome.failure +=
          " (step " + std::to_string(outcome.steps) + ", after " +
          std::to_string(static_cast<std::int64_t>(outcome.simulated_seconds * 1000)) + " ms)";
      for (auto& agent : agents_) (void)agent.release();  // their threads are still on the way
    }
    return outcome;
  }

 private:
  void Step() {
    if (!threads_.Step()) return history_.Fail("nothing can run any more: " + Unfinished());
    for (const auto& agent : agents_) agent->Check();
    if (const auto* model = machine_.model(); model != nullptr && !model->violation().empty())
      history_.Fail("store: " + model->violation());
    if (threads_.steps() > kStepsMax) history_.Fail("too many steps: " + Unfinished());
  }

  void Launch(const std::string& run, IfExists policy) {
    const std::uint32_t ranks = 1 + static_cast<std::uint32_t>(random_() % 3);
    const std::string launch =
        random_() % 4 == 0 ? "" : "launch" + std::to_string(launches_++) + "#0";
    ++launches_of_[run];
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      AgentPlan plan{.number = static_cast<std::uint32_t>(agents_.size())};
      plan.session = {
          .run = run, .launch = launch, .if_exists = policy, .rank = rank, .world_size = ranks};
      for (auto& byte : plan.session.session) byte = static_cast<std::uint8_t>(random_());
      plan.batches = 10 + random_() % 50;
      if (random_() % 2 == 0) plan.spill = spill_;
      plan.close = random_() % 2 == 0 ? seconds(random_() % 4) : kCalm;
      agents_.push_back(std::make_unique<Agent>(std::move(plan), network_, threads_, history_));
      Agent* const agent = agents_.back().get();
      threads_.After(network_.Between(0, 1500), [agent] { agent->Start(); });
    }
  }

  void Strike(const Event& event) {
    const milliseconds duration(event.for_millis);
    Agent& agent = *agents_[event.choice % agents_.size()];
    switch (event.blow) {
      case Blow::kKillCollector:
        collector_.Kill(false);
        return RestartAfter(duration);
      case Blow::kCutPower:
        collector_.Kill(true);
        return RestartAfter(duration);
      case Blow::kCutPowerInWrite:
        machine_.CutPowerSoon();
        return;
      case Blow::kDrainCollector:
        collector_.Drain();
        return RestartAfter(duration);
      case Blow::kResetConnection:
        return network_.Reset(agent.plan().number);
      case Blow::kSilenceConnection:
        return network_.Silence(agent.plan().number);
      case Blow::kPartition:
        network_.SilenceAll();
        network_.unreachable = true;
        return threads_.After(duration, [this] { network_.unreachable = false; });
      case Blow::kSlowNetwork:
        network_.slow = true;
        return threads_.After(duration, [this] { network_.slow = false; });
      case Blow::kKillAgent:
        return agent.Kill();
      case Blow::kLaunchAgain:
        return Launch(agent.plan().session.run,
                      std::array{IfExists::kError, IfExists::kAppend, IfExists::kReplace,
                                 IfExists::kAppend}[event.choice % 4]);
      case Blow::kDiskFull:
        return FillDisk(duration);
      case Blow::kDeleteRun:
        removed_.insert(agent.plan().session.run);
        return collector_.DeleteRun(agent.plan().session.run);
      case Blow::kImport:
        return Import(false);
      case Blow::kJumpClock:  // by up to an hour, back or forth
        jumped_ = true;
        return threads_.JumpWall(duration * (event.choice % 2 == 0 ? 600 : -600));
    }
  }

  void FillDisk(milliseconds duration) {
    if (machine_.model() == nullptr) return;
    machine_.model()->FailAppends({Code::kResourceExhausted, "no space"});
    threads_.After(duration, [this] { machine_.model()->FailAppends({}); });
  }

  // `all`: whatever was left must be taken now.
  void Import(bool all) {
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::directory_iterator(spill_))
      paths.push_back(entry.path().string());
    std::sort(paths.begin(), paths.end());
    for (const std::string& path : paths) {
      SessionId id{};
      Status sent = Importer(network_, threads_).Run(path, &id);
      while (all && sent.code() == Code::kUnavailable && id == SessionId{} &&
             std::filesystem::exists(path)) {  // another import has it
        threads_.Sleep(seconds(1));
        sent = Importer(network_, threads_).Run(path, &id);
      }
      if (id == SessionId{} && !std::filesystem::exists(path))
        continue;  // the other import has sent it
      const SessionHistory& session = history_.Of(id);
      // Refused where the attempt that has the earlier records is gone, or another has the name.
      if (sent.ok() || !all || session.removed || sent.code() == Code::kDataLoss ||
          IsFatal(sent.code()))
        continue;
      history_.Fail(session.name + ": import of its spill file: " + sent.message());
    }
  }

  // The machine's init system, if the machine has power.
  void RestartAfter(milliseconds duration) {
    threads_.After(duration, [this] { StartIfDown(); });
  }
  void StartIfDown() {
    if (collector_.up() || leaving_) return;
    if (!collector_.settled()) return RestartAfter(milliseconds(50));
    collector_.Start();
  }

  static std::chrono::steady_clock::time_point RealNow() {
    const Real real;
    return std::chrono::steady_clock::now();
  }
  // Simulated time passes as fast as the processor allows, but RocksDB's own threads live in real
  // time, and a store that recovers waits for them: on a busy machine they may not have run yet.
  // Gives them some.
  static bool MayStillCome(std::chrono::steady_clock::time_point real_until) {
    const Real real;
    std::this_thread::sleep_for(milliseconds(10));
    return std::chrono::steady_clock::now() < real_until;
  }

  // No more faults: from now on all must come to its end.
  void Calm() {
    network_.unreachable = network_.slow = false;
    if (machine_.model() != nullptr) machine_.model()->FailAppends({});
    threads_.Spawn([this] {
      for (; !leaving_; threads_.Sleep(seconds(1))) StartIfDown();
    });
    const Nanos until = threads_.now() + kCalm + seconds(200);
    const auto real_until = RealNow() + kRealCalm;
    while (!std::all_of(agents_.begin(), agents_.end(),
                        [](const auto& agent) { return agent->done(); })) {
      if (threads_.now() > until && !MayStillCome(real_until))
        return history_.Fail("stalled: " + Unfinished() + "; the collector " + collector_.State());
      threads_.Sleep(seconds(1));
    }
    Import(true);
    for (const auto& agent : agents_) CheckEnd(*agent);
    leaving_ = true;
    collector_.Drain();
    while (!collector_.settled()) threads_.Sleep(milliseconds(50));
    {
      const Real real;
      machine_.PowerOn();
      if (const Status opened = machine_.Open(); !opened.ok()) {
        history_.Fail("the store does not open at the end: " + opened.message());
      } else {
        history_.CheckStore(*machine_.store());
      }
    }
    over_ = true;
  }

  // An agent that had the time, and that no other took the place of, has everything stored.
  void CheckEnd(const Agent& agent) {
    const SessionHistory& session = history_.Of(agent.plan().session.session);
    if (agent.killed() || session.removed) return;
    if (agent.kept() > 0 && session.written > 0 && session.written < session.acked + agent.kept())
      history_.Fail(session.name + ": left " + std::to_string(agent.kept()) +
                    " records in its file behind " + std::to_string(session.acked) +
                    " that were acknowledged; the store has " + std::to_string(session.written) +
                    " after the import");
    // How long ago a rank ended before the collector's start, only the wall clock could say.
    const bool maybe_late =
        agent.plan().session.launch.empty() && jumped_ && collector_.starts() > 1;
    if (agent.refused() && launches_of_[agent.plan().session.run] == 1 &&
        !removed_.contains(agent.plan().session.run) && !maybe_late)
      history_.Fail(session.name +
                    ": refused, though no other launch has its name: " + agent.result().message());
    if (agent.refused() || agent.plan().close < kCalm) return;
    if (agent.result().ok()) {
      if (session.written != session.submitted)
        history_.Fail(session.name + ": came to a good end with " +
                      std::to_string(session.written) + " of " + std::to_string(session.submitted) +
                      " records stored");
    } else if (!IsFatal(agent.result().code())) {
      history_.Fail(session.name + ": " + agent.result().message());
    }
  }

  std::string Unfinished() {
    std::string text;
    for (const auto& agent : agents_) {
      if (!agent->done())
        text += (text.empty() ? "" : ", ") + history_.Of(agent->plan().session.session).name;
    }
    return text.empty() ? "the collector" : text;
  }

  const WorldPlan plan_;
  const std::vector<Event>& events_;
  std::mt19937_64 random_;
  History history_;
  Machine machine_;
  std::vector<std::unique_ptr<Agent>> agents_;
  Threads threads_;
  Network network_;
  Collector collector_;
  const Nanos began_ = threads_.now();
  std::string spill_;
  int launches_ = 0;
  std::map<std::string, int> launches_of_;  // by run
  std::set<std::string> removed_;           // runs
  bool jumped_ = false, leaving_ = false, over_ = false;
};

}  // namespace

std::vector<Event> MakeEvents(const WorldPlan& plan) {
  std::mt19937_64 random(plan.seed ^ 0xe7e47);
  std::vector<Event> events(random() % 14);
  for (Event& event : events) {
    event.at_millis = static_cast<std::int64_t>(random() % kFaultsUntilMillis);
    event.blow = static_cast<Blow>(random() % kBlows);
    if (event.blow == Blow::kDeleteRun && random() % 4 != 0) event.blow = Blow::kKillCollector;
    event.choice = random();
    event.for_millis = static_cast<std::int64_t>(random() % 6000);
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const Event& a, const Event& b) { return a.at_millis < b.at_millis; });
  return events;
}

std::string Describe(const Event& event) {
  static constexpr std::array kNames = {
      "the collector is killed",   "the collector's machine loses its power",
      "the power goes in a write", "the collector is drained",
      "a connection is reset",     "a connection falls silent",
      "the network is parted",     "the network is slow",
      "an agent is killed",        "the run is launched again",
      "the disk is full",          "the run is deleted",
      "spill files are imported",  "the wall clock jumps"};
  static_assert(kNames.size() == kBlows);
  return std::to_string(event.at_millis) + " ms: " + kNames[static_cast<std::size_t>(event.blow)] +
         " (choice " + std::to_string(event.choice % 1000) + ", for " +
         std::to_string(event.for_millis) + " ms)";
}

Outcome Play(const WorldPlan& plan, const std::vector<Event>& events) {
  auto world = std::make_unique<World>(plan, events);
  Outcome outcome = world->Run();
  if (!outcome.failure.empty())
    (void)world.release();  // it stopped in the midst: nothing of it can be taken down
  return outcome;
}

std::vector<Event> Minimise(const WorldPlan& plan, std::vector<Event> events, int attempts_max) {
  for (std::size_t chunk = std::max<std::size_t>(events.size() / 2, 1);
       chunk > 0 && !events.empty();) {
    bool smaller = false;
    for (std::size_t at = 0; at < events.size() && attempts_max > 0;) {
      std::vector<Event> fewer = events;
      const std::size_t end = std::min(at + chunk, fewer.size());
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(at),
                  fewer.begin() + static_cast<std::ptrdiff_t>(end));
      --attempts_max;
      if (Play(plan, fewer).failure.empty()) {
        at += chunk;
      } else {
        events = std::move(fewer);
        smaller = true;
      }
    }
    if (!smaller) chunk /= 2;
  }
  return events;
}

}  // namespace statcollect::simulation
