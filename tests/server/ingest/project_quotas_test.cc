#include "server/ingest/project_quotas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/ingest/harness.h"

namespace statcollect {
namespace {

using testing::FakeClock;
using testing::FakeStore;
using testing::Harness;
using ::testing::HasSubstr;
using testing::NthBatch;

constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;

AttemptId AddRun(FakeStore& store, const std::string& run, std::uint64_t bytes) {
  AttemptMeta wanted;
  wanted.run = run;
  const AttemptId id = store.CreateAttempt(wanted).value().id;
  store.SetBytes(id, bytes);
  return id;
}

TEST(ProjectQuotas, TheRunsOfAProjectCountTogether) {
  FakeStore store;
  FakeClock clock;
  AddRun(store, "vision/base", 3 * kMebibyte);
  AddRun(store, "vision/ort", 3 * kMebibyte);
  AddRun(store, "base", 5 * kMebibyte - 1);
  ProjectQuotas quotas(store, clock, {.each = 5 * kMebibyte, .named = {{"speech", kMebibyte}}});
  EXPECT_TRUE(quotas.Admit("default").ok()) << "a byte less than it may";
  EXPECT_TRUE(quotas.Admit("speech").ok());
  const Status refused = quotas.Admit("vision");
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  for (const char* word :
       {"'vision'", "take 6 MiB", "less than 5 MiB", "statctl rm", "--project-disk-max"})
    EXPECT_THAT(refused.message(), HasSubstr(word));
  EXPECT_EQ(quotas.refused(), 1u);
  EXPECT_EQ(quotas.full(), 1u);
  EXPECT_EQ(quotas.uses().at("vision").bytes, 6 * kMebibyte);
  EXPECT_EQ(quotas.uses().at("speech").bytes_max, kMebibyte);
}

TEST(ProjectQuotas, ALimitOfItsOwnReplacesTheOneOfAllAndZeroIsNone) {
  FakeStore store;
  FakeClock clock;
  AddRun(store, "vision/base", 3 * kMebibyte);
  AddRun(store, "speech/base", 3 * kMebibyte);
  AddRun(store, "audio/base", 3 * kMebibyte);
  ProjectQuotas quotas(store, clock,
                       {.each = kMebibyte, .named = {{"vision", 4 * kMebibyte}, {"speech", 0}}});
  EXPECT_TRUE(quotas.Admit("vision").ok());
  EXPECT_TRUE(quotas.Admit("speech").ok());
  EXPECT_FALSE(quotas.Admit("audio").ok());
}

TEST(ProjectQuotas, LooksAgainAfterAWhileAndKeepsTheSumIfItCannot) {
  FakeStore store;
  FakeClock clock;
  const AttemptId id = AddRun(store, "base", 2 * kMebibyte);
  ProjectQuotas quotas(store, clock, {.each = kMebibyte});
  EXPECT_FALSE(quotas.Admit("default").ok());
  ASSERT_TRUE(store.RetireAttempts(std::vector{id}).ok());
  quotas.Tick();
  EXPECT_FALSE(quotas.Admit("default").ok()) << "not yet";
  clock.Advance(ProjectQuotas::kInterval);
  quotas.Tick();
  EXPECT_TRUE(quotas.Admit("default").ok());
}

TEST(ProjectQuotas, WithoutLimitsNothingIsSummed) {
  FakeStore store;
  FakeClock clock;
  AddRun(store, "base", 2 * kMebibyte);
  ProjectQuotas quotas(store, clock, {});
  EXPECT_TRUE(quotas.Admit("default").ok());
  EXPECT_TRUE(quotas.uses().empty());
}

TEST(ProjectQuotas, AStreamEndsWhenItsProjectIsFullAndWhatWasAcknowledgedStays) {
  Harness h(
      {.hello_timeout = std::chrono::milliseconds(40), .project_limits = {.each = kMebibyte}});
  auto agent = h.Agent();
  agent->Open();
  ASSERT_TRUE(agent->WriteBatch(NthBatch(0)));
  ASSERT_TRUE(agent->AwaitAck(NthBatch(0).last_seq()));
  h.store.SetBytes(h.store.Attempts("base").value().back().id, 2 * kMebibyte);
  h.clock.Advance(ProjectQuotas::kInterval);
  ASSERT_TRUE(Harness::Eventually([&] { return h.collector->GetStatus().projects_full == 1; }));
  ASSERT_TRUE(agent->WriteBatch(NthBatch(1)));
  const Status ended = agent->Finish();
  EXPECT_EQ(ended.code(), Code::kResourceExhausted);
  EXPECT_THAT(ended.message(), HasSubstr("project 'default' take"));
  EXPECT_EQ(h.Stored().durable_seq, NthBatch(0).last_seq());

  auto again = h.Agent();
  again->WriteHello();
  EXPECT_EQ(again->Finish().code(), Code::kResourceExhausted);
  EXPECT_EQ(h.collector->GetStatus().access.quota_refused, 2u);
  EXPECT_EQ(h.collector->GetStatus().project_disk.at("default").bytes, 2 * kMebibyte);

  h.store.SetBytes(h.store.Attempts("base").value().back().id, 1);
  h.clock.Advance(ProjectQuotas::kInterval);
  ASSERT_TRUE(Harness::Eventually([&] { return h.collector->GetStatus().projects_full == 0; }));
  auto later = h.Agent();
  EXPECT_EQ(later->Open().durable_seq(), NthBatch(0).last_seq());
  later->Cancel();
  EXPECT_EQ(later->Finish().code(), Code::kCancelled);
}

}  // namespace
}  // namespace statcollect
