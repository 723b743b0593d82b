// A rank under load, with a ledger: what it handed to its agent, and a check that the store holds
// exactly that.
#ifndef STATCOLLECT_TESTS_FAULTS_WRITER_H_
#define STATCOLLECT_TESTS_FAULTS_WRITER_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "server/store/store.h"
#include "statagent/agent.h"

namespace statcollect::testing {

inline constexpr std::uint32_t kWriterActivations = 20;
inline constexpr std::uint64_t kWriterRecords =
    kWriterActivations + 2;  // a step: with a scalar and its end

using Values = std::array<float, 4>;

inline Values ValuesOf(std::uint32_t rank, std::uint64_t step, std::uint32_t activation) {
  const std::uint64_t mix = (step * 1000 + activation) * 0x9e3779b97f4a7c15u + rank;
  return {static_cast<float>(rank) + 1, static_cast<float>(step % 65536),
          static_cast<float>(activation), static_cast<float>(mix >> 44)};
}

inline statagent::TensorView ViewOf(const Values& values) {
  static constexpr std::int64_t kShape[] = {4};
  return {.data = values.data(), .dtype = DType::kF32, .shape = kShape};
}

inline std::string WriterActivation(std::uint32_t i) { return "layer." + std::to_string(i); }

class Writer {
 public:
  Writer(statagent::Options options, std::chrono::microseconds pause)
      : rank_(*options.rank), pause_(pause) {
    auto started = statagent::Agent::Start(std::move(options));
    EXPECT_TRUE(started.ok()) << started.status().message();
    if (started.ok()) agent_ = *std::move(started);
  }
  ~Writer() { Stop(); }

  void Run() {
    thread_ = std::thread([this] {
      while (!stop_) WriteStep();
    });
  }
  void WriteStep() {
    for (std::uint32_t i = 0; i < kWriterActivations; ++i) {
      const Values values = ValuesOf(rank_, steps_, i);
      EXPECT_TRUE(agent_->Observe({.name = WriterActivation(i), .call = 0}, ViewOf(values)).ok());
    }
    EXPECT_TRUE(agent_->LogScalar("loss", static_cast<double>(steps_)).ok());
    agent_->EndStep();
    ++steps_;
    std::this_thread::sleep_for(pause_);
    // Nothing is to be dropped, so that the ledger is exact: waits while the collector is away.
    while (!stop_ && agent_->counters().pending > 10'000)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  std::uint64_t acked() const { return agent_->counters().acked; }
  std::uint64_t steps() const { return steps_; }
  std::uint32_t rank() const { return rank_; }
  statagent::Agent& agent() { return *agent_; }

 private:
  const std::uint32_t rank_;
  const std::chrono::microseconds pause_;
  std::unique_ptr<statagent::Agent> agent_;
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::uint64_t steps_ = 0;
};

// The store has a prefix of what a writer of that rank writes: no gap, nothing twice, values as
// they were, and a watermark that agrees. Returns the records.
inline std::uint64_t CheckWritersPrefix(Store& store, AttemptId attempt, std::uint32_t rank,
                                        const RankMeta& meta) {
  std::uint64_t records = 0, next_step = 0;
  std::uint32_t next = 0;  // activation
  const auto scan = store.ScanStats(attempt, rank, {});
  const auto defs = store.Definitions(attempt, rank);
  EXPECT_TRUE(defs.ok()) << defs.status().message();
  while (scan->Next()) {
    const StatColumns& columns = scan->block().columns;
    for (std::size_t i = 0; i < columns.size(); ++i, ++records) {
      if (next == kWriterActivations) next = 0, ++next_step;
      EXPECT_EQ(scan->block().step, next_step);
      EXPECT_EQ(columns.order[i], next);
      EXPECT_EQ((*defs)->activations.at(columns.activation[i]).key.name, WriterActivation(next));
      const Values values = ValuesOf(rank, next_step, next);
      const auto expected = statagent::Compute(ViewOf(values));
      EXPECT_EQ(columns.stats[i].hash, expected->hash)
          << "step " << next_step << ", activation " << next;
      EXPECT_EQ(columns.stats[i].l2, expected->l2);
      ++next;
      if (::testing::Test::HasFailure()) return records;
    }
  }
  EXPECT_TRUE(scan->status().ok()) << scan->status().message();
  const auto scalars = store.Scalars(attempt, rank, {});
  const auto ends = store.StepEnds(attempt, rank, {});
  EXPECT_TRUE(scalars.ok() && ends.ok());
  for (std::uint64_t i = 0; i < scalars->size(); ++i) EXPECT_EQ((*scalars)[i].step, i);
  for (std::uint64_t i = 0; i < ends->size(); ++i) EXPECT_EQ((*ends)[i].step, i);
  const auto events = store.Events(attempt, rank);
  records += scalars->size() + ends->size() + events->size();
  EXPECT_EQ(meta.durable_seq, records) << "the watermark is what is stored";
  EXPECT_EQ(meta.records, records);
  return records;
}

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_FAULTS_WRITER_H_
