// Simulated worlds, each from a seed, until as many steps were taken as asked for or the time is
// over.
//
// STATCOLLECT_SIMULATION_SEED=N plays one world, with STATCOLLECT_SIMULATION_STORE=rocksdb over the
// real store, and STATCOLLECT_SIMULATION_EVENTS=0,3,4 with these of its events only.
// STATCOLLECT_SIMULATION_STEPS and _SECONDS ask for more than the short form.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/simulation/world.h"
#include "tests/support/fault_environment.h"

namespace statcollect::simulation {
namespace {

using testing::FromEnvironment;

constexpr std::uint64_t kShortSteps = 1'000'000, kShortSeconds = 20;
constexpr int kMinimiseAttempts = 200;

std::string ReplayOf(const WorldPlan& plan, const std::vector<Event>& all,
                     const std::vector<Event>& kept) {
  std::string indexes;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool is_kept = std::any_of(kept.begin(), kept.end(), [&](const Event& event) {
      return event.at_millis == all[i].at_millis && event.choice == all[i].choice;
    });
    if (is_kept) indexes += (indexes.empty() ? "" : ",") + std::to_string(i);
  }
  return "STATCOLLECT_SIMULATION_SEED=" + std::to_string(plan.seed) +
         (plan.real_store ? " STATCOLLECT_SIMULATION_STORE=rocksdb" : "") +
         " STATCOLLECT_SIMULATION_EVENTS=" + (indexes.empty() ? "none" : indexes);
}

std::vector<Event> EventsOf(const WorldPlan& plan) {
  const std::vector<Event> all = MakeEvents(plan);
  const char* const chosen = std::getenv("STATCOLLECT_SIMULATION_EVENTS");
  if (chosen == nullptr) return all;
  std::vector<Event> events;
  std::istringstream list(chosen);
  for (std::string index; std::getline(list, index, ',');) {
    if (index != "none") events.push_back(all.at(std::stoul(index)));
  }
  return events;
}

// Plays it, and if it fails, finds the smallest part of it that does.
Outcome PlayAndExplain(const WorldPlan& plan) {
  const std::vector<Event> events = EventsOf(plan);
  Outcome outcome = Play(plan, events);
  if (outcome.failure.empty()) return outcome;
  std::cout << "seed " << plan.seed << " fails: " << outcome.failure
            << "; leaving out what does not matter ..." << std::endl;
  const std::vector<Event> few = Minimise(plan, events, kMinimiseAttempts);
  std::ostringstream text;
  text << Play(plan, few).failure << "\n"
       << few.size() << " of " << events.size() << " events are needed:\n";
  for (const Event& event : few) text << "  " << Describe(event) << "\n";
  text << "again: " << ReplayOf(plan, MakeEvents(plan), few);
  outcome.failure = text.str();
  return outcome;
}

void PlayMany(bool real_store, std::uint64_t share) {
  if (const std::uint64_t seed = FromEnvironment("STATCOLLECT_SIMULATION_SEED", 0); seed != 0) {
    const char* const store = std::getenv("STATCOLLECT_SIMULATION_STORE");
    if (real_store != (store != nullptr && std::string(store) == "rocksdb")) return;
    const Outcome outcome = PlayAndExplain({.seed = seed, .real_store = real_store});
    std::cout << outcome.steps << " steps" << std::endl;
    EXPECT_EQ(outcome.failure, "");
    return;
  }
  const std::uint64_t steps =
      FromEnvironment("STATCOLLECT_SIMULATION_STEPS", kShortSteps) * share / 100;
  const std::uint64_t seconds =
      FromEnvironment("STATCOLLECT_SIMULATION_SECONDS", kShortSeconds) * share / 100;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  const std::uint64_t first = testing::FaultSeed();
  Outcome sum;
  std::uint64_t worlds = 0;
  while (sum.steps < steps && std::chrono::steady_clock::now() < until &&
         !::testing::Test::HasFailure()) {
    const Outcome outcome =
        PlayAndExplain({.seed = first * 1'000'003 + ++worlds, .real_store = real_store});
    EXPECT_EQ(outcome.failure, "");
    sum.steps += outcome.steps;
    sum.records += outcome.records;
    sum.messages += outcome.messages;
    sum.broken += outcome.broken;
    sum.starts += outcome.starts;
    sum.agents += outcome.agents;
    sum.simulated_seconds += outcome.simulated_seconds;
  }
  std::cout << worlds << " worlds, " << sum.steps << " steps, "
            << static_cast<std::uint64_t>(sum.simulated_seconds) << " simulated seconds, "
            << sum.agents << " agents, " << sum.starts << " starts of a collector, " << sum.broken
            << " broken connections, " << sum.messages << " messages, " << sum.records
            << " records stored" << std::endl;
  EXPECT_GT(sum.records, 0u);
}

TEST(Simulation, NothingAcknowledgedIsLostOrDoubledWhateverBefalls) {
  PlayMany(/*real_store=*/false, 70);
}

TEST(Simulation, NothingAcknowledgedIsLostOrDoubledOverRocksDb) {
  PlayMany(/*real_store=*/true, 30);
}

TEST(Simulation, TheSameSeedTakesTheSameSteps) {
  for (const std::uint64_t seed : {11u, 12u, 13u}) {
    const WorldPlan plan{.seed = seed};
    const Outcome once = Play(plan, MakeEvents(plan)), again = Play(plan, MakeEvents(plan));
    EXPECT_EQ(once.steps, again.steps);
    EXPECT_EQ(once.messages, again.messages);
    EXPECT_EQ(once.simulated_seconds, again.simulated_seconds);
  }
}

}  // namespace
}  // namespace statcollect::simulation
