// What a copy reads of a rank: the same records under the same numbers, from wherever it begins.
#include "server/transfer/rank_reader.h"

#include <algorithm>
#include <stop_token>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/transfer/rank_digest.h"
#include "tests/server/transfer/sides.h"
#include "tests/support/append_batch.h"

namespace statcollect::transfer {
namespace {

using testing::FakeStore;
using testing::FullBatch;
using ::testing::HasSubstr;

// A rank of one attempt with four steps; returns the number of its records but for settings.
std::uint64_t Fill(FakeStore& store, AttemptId* attempt, std::uint64_t seed = 5) {
  *attempt = store.CreateAttempt({.run = "base", .world_size = 1})->id;
  RankMeta meta;
  meta.info = testing::SessionOf(0);
  EXPECT_TRUE(store.PutRank(*attempt, 0, meta).ok());
  std::uint64_t records = 0;
  for (std::uint64_t n = 0; n < 2; ++n) {
    const RecordBatch batch = FullBatch(seed + n, meta.durable_seq + 1, 3 * n, n == 0);
    meta.durable_seq = batch.last_seq();
    records += batch.records() - batch.settings.size();
    EXPECT_TRUE(AppendBatch(store, *attempt, 0, batch, meta).ok());
  }
  return records;
}

std::vector<RecordBatch> ReadFromHere(FakeStore& store, AttemptId attempt, const ReadFrom& from,
                                      Status* end) {
  std::vector<RecordBatch> batches;
  *end = ReadRank(
      store, attempt, 0, from,
      [&](const RecordBatch& batch, std::span<const Layout>) {
        batches.push_back(batch);
        return Status::Ok();
      },
      std::stop_token());
  return batches;
}

TEST(RankReader, NumbersAreDenseAndBatchesFitAMessage) {
  FakeStore store;
  AttemptId attempt = 0;
  const std::uint64_t records = Fill(store, &attempt);
  Status end;
  std::uint64_t next = 1;
  std::size_t activations = 0;
  for (const RecordBatch& batch : ReadFromHere(store, attempt, {}, &end)) {
    EXPECT_EQ(batch.first_seq, next);
    next = batch.last_seq() + 1;
    for (const TensorDef& def : batch.activations) EXPECT_EQ(def.id, activations++);
    for (const std::uint32_t id : batch.stats.activation) EXPECT_LT(id, activations);
    EXPECT_LT(ToWire(batch, testing::StandardLayouts()).ByteSizeLong(), kMessageBytesMax / 2);
  }
  EXPECT_TRUE(end.ok());
  EXPECT_EQ(next, records + 1);
  EXPECT_EQ(activations, 700u);
}

// A copy that was interrupted anywhere has, in the end, what one in a single go has.
TEST(RankReader, GoesOnFromAnyRecord) {
  FakeStore store;
  AttemptId attempt = 0;
  const std::uint64_t records = Fill(store, &attempt);
  Status end;
  for (std::uint64_t after :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{255}, std::uint64_t{256},
        std::uint64_t{701}, std::uint64_t{2799}, records - 3, records - 1, records}) {
    const ReadFrom from{
        .records = after, .activations = after > 0 ? 700u : 0u, .layouts = after > 0 ? 4u : 0u};
    std::uint64_t next = after + 1;
    for (const RecordBatch& batch : ReadFromHere(store, attempt, from, &end)) {
      EXPECT_EQ(batch.first_seq, next);
      next = batch.last_seq() + 1;
    }
    EXPECT_TRUE(end.ok()) << end.message();
    EXPECT_EQ(next, records + 1) << "after " << after;
  }
}

TEST(RankReader, CopyWithMoreThanTheOriginalIsRefused) {
  FakeStore store;
  AttemptId attempt = 0;
  const std::uint64_t records = Fill(store, &attempt);
  Status end;
  ReadFromHere(store, attempt, {.records = records + 1, .activations = 700, .layouts = 4}, &end);
  EXPECT_EQ(end.code(), Code::kFailedPrecondition);
  EXPECT_THAT(end.message(), HasSubstr("expected no more than the original"));
}

TEST(RankReader, ErrorsOfTheReaderAndCancellationEndIt) {
  FakeStore store;
  AttemptId attempt = 0;
  Fill(store, &attempt);
  int calls = 0;
  const auto take = [&](const RecordBatch&, std::span<const Layout>) {
    ++calls;
    return Status(Code::kUnavailable, "gone");
  };
  EXPECT_EQ(ReadRank(store, attempt, 0, {}, take, {}).code(), Code::kUnavailable);
  EXPECT_EQ(calls, 1);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(ReadRank(store, attempt, 0, {}, take, stop.get_token()).code(), Code::kCancelled);
  EXPECT_EQ(calls, 1);
}

std::vector<StepDigest> DigestsOf(FakeStore& store, AttemptId attempt) {
  std::vector<StepDigest> digests;
  const auto take = [&](const StepDigest& digest) {
    digests.push_back(digest);
    return Status::Ok();
  };
  EXPECT_TRUE(DigestRank(store, attempt, 0, take, {}).ok());
  return digests;
}

bool Differ(const StepDigest& a, const StepDigest& b) {
  return a.what != b.what || a.step != b.step || a.records != b.records || a.low != b.low ||
         a.high != b.high;
}

TEST(RankDigest, HasEverySortOfRecordAndDoesNotDependOnBatches) {
  FakeStore store, other;
  AttemptId attempt = 0, copy = 0;
  Fill(store, &attempt);
  const std::vector<StepDigest> digests = DigestsOf(store, attempt);
  std::set<std::string> sorts;
  for (const StepDigest& digest : digests) sorts.insert(digest.what);
  EXPECT_EQ(sorts,
            (std::set<std::string>{"activations", "layouts", "stats", "scalars", "events", "memory",
                                   "densities", "steps", "captures", "exponents", "tokens"}));
  Status end;
  copy = other.CreateAttempt({.run = "copy", .world_size = 1})->id;
  RankMeta meta;
  meta.info = testing::SessionOf(0);
  ASSERT_TRUE(other.PutRank(copy, 0, meta).ok());
  for (const RecordBatch& batch : ReadFromHere(store, attempt, {}, &end)) {
    meta.durable_seq = batch.last_seq();
    ASSERT_TRUE(AppendBatch(other, copy, 0, batch, meta).ok());
  }
  const std::vector<StepDigest> copied = DigestsOf(other, copy);
  ASSERT_EQ(copied.size(), digests.size());
  for (std::size_t i = 0; i < digests.size(); ++i)
    EXPECT_FALSE(Differ(digests[i], copied[i])) << digests[i].what;
}

TEST(RankDigest, SeesEveryChange) {
  AttemptId attempt = 0;
  FakeStore store;
  Fill(store, &attempt);
  const auto original = DigestsOf(store, attempt);
  const std::vector<std::pair<std::string, std::function<void(RecordBatch&)>>> changes = {
      {"stats", [](RecordBatch& b) { b.stats.stats[300].hash ^= 1; }},
      {"stats",
       [](RecordBatch& b) {
         b.stats.stats[300].l2 += 1e-300;
         b.stats.stats[300].has_finite = !b.stats.stats[300].has_finite;
       }},
      {"stats", [](RecordBatch& b) { b.stats.sketch[17] += 1; }},
      {"stats", [](RecordBatch& b) { b.stats.order[0] += 1000; }},
      {"scalars", [](RecordBatch& b) { b.scalars[0].value += 1; }},
      {"events", [](RecordBatch& b) { b.events[0].fields["x"] = "y"; }},
      {"memory", [](RecordBatch& b) { b.memory[0].bytes[0] += 1; }},
      {"densities", [](RecordBatch& b) { b.densities[0].valid -= 1; }},
      {"steps", [](RecordBatch& b) { b.steps[0].unix_nanos += 1; }},
      {"captures", [](RecordBatch& b) { b.captures[1].data[5] = 'c'; }},
      {"exponents", [](RecordBatch& b) { b.exponents[0].counts[0] += 1; }},
      {"tokens", [](RecordBatch& b) { b.tokens[0].rows[1].stats.hash += 1; }},
      {"activations", [](RecordBatch& b) { b.activations[9].class_name = "Linear"; }},
  };
  for (const auto& [what, change] : changes) {
    FakeStore changed;
    const AttemptId there = changed.CreateAttempt({.run = "base", .world_size = 1})->id;
    RankMeta meta;
    meta.info = testing::SessionOf(0);
    ASSERT_TRUE(changed.PutRank(there, 0, meta).ok());
    for (std::uint64_t n = 0; n < 2; ++n) {
      RecordBatch batch = FullBatch(5 + n, meta.durable_seq + 1, 3 * n, n == 0);
      if (n == 0) change(batch);
      meta.durable_seq = batch.last_seq();
      ASSERT_TRUE(AppendBatch(changed, there, 0, batch, meta).ok());
    }
    const auto found = DigestsOf(changed, there);
    ASSERT_EQ(found.size(), original.size());
    std::set<std::string> differing;
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (Differ(found[i], original[i])) differing.insert(found[i].what);
    }
    EXPECT_EQ(differing, std::set<std::string>{what});
  }
}

}  // namespace
}  // namespace statcollect::transfer
