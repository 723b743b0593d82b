#include "agent/staging/ledger.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace statcollect {
namespace {

bool Balanced(const AgentCounters& c) { return c.produced == c.acked + c.dropped() + c.pending; }

TEST(Ledger, MovesRecordsFromPendingToAckedOrDropped) {
  Ledger ledger;
  ledger.Produce(5);
  ledger.ProduceDropped(kDropBufferFull, 2);
  ledger.Ack(3);
  ledger.Drop(kDropClosed, 1);
  const AgentCounters c = ledger.Snapshot();
  EXPECT_EQ(c.produced, 7u);
  EXPECT_EQ(c.acked, 3u);
  EXPECT_EQ(c.pending, 1u);
  EXPECT_EQ(c.dropped_by_cause,
            (std::map<std::string, std::uint64_t>{{"buffer_full", 2}, {"closed", 1}}));
}

TEST(Ledger, BalancesInEverySnapshotWhileThreadsWrite) {
  Ledger ledger;
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (int t = 0; t < 3; ++t) {
    writers.emplace_back([&] {
      for (int i = 0; i < 5000; ++i) {
        ledger.Produce(3);
        ledger.Ack(1);
        ledger.Drop(i % 2 == 0 ? kDropClosed : kDropRejected, 1);
        ledger.ProduceDropped(kDropBufferFull);
      }
    });
  }
  std::thread reader([&] {
    while (!stop) ASSERT_TRUE(Balanced(ledger.Snapshot()));
  });
  for (std::thread& t : writers) t.join();
  stop = true;
  reader.join();
  const AgentCounters c = ledger.Snapshot();
  EXPECT_EQ(c.produced, 60000u);
  EXPECT_EQ(c.pending, 15000u);
  EXPECT_TRUE(Balanced(c));
}

TEST(Ledger, WaitsOnlyForWhatWasPendingAtTheCall) {
  Ledger ledger;
  ledger.Produce(2);
  EXPECT_FALSE(ledger.WaitSettled(std::chrono::steady_clock::now()));
  std::atomic<bool> settled{false};
  std::thread waiter([&] {
    settled = ledger.WaitSettled(std::chrono::steady_clock::now() + std::chrono::seconds(30));
  });
  // Later records keep coming, so that something is pending at every moment.
  for (int i = 0; i < 100'000'000 && !settled; ++i) {
    ledger.Produce();
    ledger.Ack(1);
  }
  waiter.join();
  EXPECT_TRUE(settled);
  EXPECT_EQ(ledger.Snapshot().pending, 2u);
}

TEST(Ledger, RegressTakesBackWhatWasAcknowledged) {
  Ledger ledger;
  ledger.Produce(10);
  ledger.Ack(8);
  ledger.Regress(6, 2);
  const AgentCounters c = ledger.Snapshot();
  EXPECT_EQ(c.acked, 2u);
  EXPECT_EQ(c.pending, 6u);
  EXPECT_EQ(c.dropped_by_cause.at("regressed"), 2u);
  EXPECT_EQ(c.produced, c.acked + c.dropped() + c.pending);
  EXPECT_FALSE(ledger.WaitSettled(std::chrono::steady_clock::now())) << "pending again";
  ledger.Ack(6);
  EXPECT_TRUE(ledger.WaitSettled(std::chrono::steady_clock::now()));
}

}  // namespace
}  // namespace statcollect
