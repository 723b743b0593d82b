#include "server/query/answers/tokens.h"

#include <bit>
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/query/query.h"
#include "server/query/tokens/token_table.h"
#include "tests/server/query/ask.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {
namespace {

using testing::Ask;
using ::testing::ElementsAre;
using testing::FakeStore;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::RunWriter;

constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

// A row of 8 components, moved by `apart` of its norm.
RowStats Row(std::uint64_t seed, double apart = 0) {
  RowStats stats;
  double squares = 0;
  for (std::size_t i = 0; i < kRowSketch; ++i) {
    stats.sketch[i] = static_cast<float>(
        static_cast<double>(testing::MixBits(8 * seed + i) >> 40) / (1 << 24) - 0.5);
    squares += std::pow(static_cast<double>(stats.sketch[i]), 2);
  }
  stats.l2 = static_cast<float>(std::sqrt(squares));
  stats.sketch[3] += static_cast<float>(apart * std::sqrt(squares));
  for (const float sum : stats.sketch)
    stats.hash = testing::MixBits(stats.hash + std::bit_cast<std::uint32_t>(sum));
  return stats;
}
RowStats Value(float value) {
  return {.l2 = std::abs(value), .hash = std::bit_cast<std::uint32_t>(value), .sketch = {value}};
}

class TokensTest : public ::testing::Test {
 protected:
  // Rows of tokens `first` to `last`, whose keys are 100 more than their positions.
  static TokenRecord Rows(const std::string& tap, std::uint32_t first, std::uint32_t last,
                          double apart = 0, std::uint64_t step = 0) {
    TokenRecord record{.step = step, .tap = tap, .dtype = DType::kF32, .columns = 8};
    for (std::uint32_t at = first; at <= last; ++at) {
      record.rows.push_back({.key = 100 + at,
                             .position = at,
                             .stats = Row(testing::MixBits(at) % 1000 + 7 * tap.size(), apart)});
    }
    return record;
  }
  // A model of three taps, whose rows from `from` on lie `apart` from those of a clean run; a
  // batch.
  void Train(const std::string& run, std::size_t from = 9, double apart = 0) {
    RunWriter writer(store_, run);
    const std::vector<std::string> taps = {"embed", "layers.0", "layers.0.mlp"};
    for (std::size_t i = 0; i < taps.size(); ++i)
      writer.Tokens(0, Rows(taps[i], 0, 9, i >= from ? apart : 0));
    writer.Commit();
  }
  v1::GetTokensResponse Answer(TokensRequest request = {}) {
    request.run_a = "trainer";
    if (request.run_b.empty()) request.run_b = "engine";
    const auto found = Ask(store_, GetTokens, request);
    EXPECT_TRUE(found.ok()) << found.status().message();
    return found.ok() ? *found : v1::GetTokensResponse();
  }
  static std::string FirstOf(const v1::GetTokensResponse& found) {
    return found.has_first() ? found.taps(static_cast<int>(found.first())).tap() : "";
  }
  static std::string Detail(const v1::GetTokensResponse& found, const std::string& check) {
    for (const v1::PremiseCheck& one : found.comparable()) {
      if (one.check() == check) return (one.ok() ? "ok: " : "! ") + one.detail();
    }
    return "";
  }

  FakeStore store_;
};

TEST_F(TokensTest, TheSameTokensArePairedWhateverTheirStepsRanksChunksAndOrder) {
  Train("trainer");
  RunWriter engine(store_, "engine", 2);
  for (const char* tap : {"layers.0.mlp", "embed", "layers.0"}) {
    engine.Tokens(1, Rows(tap, 6, 9, 0, 7));
    engine.Tokens(0, Rows(tap, 3, 5, 0, 9));
    engine.Tokens(0, Rows(tap, 0, 2, 0, 8));
  }
  engine.Commit();
  const auto found = Answer();
  EXPECT_EQ(found.verdict(), v1::VERDICT_IDENTICAL) << found.DebugString();
  EXPECT_EQ(found.tokens(), 10u);
  ASSERT_EQ(found.taps_size(), 3);
  EXPECT_EQ(found.taps(0).tap(), "embed") << "in A's order";
  EXPECT_EQ(found.taps(2).rows(), 10u);
  EXPECT_EQ(found.taps(2).equal(), 10u);
}

TEST_F(TokensTest, TheFirstTapWhoseRowsPartIsNamedWithItsFirstToken) {
  Train("trainer");
  RunWriter engine(store_, "engine");
  engine.Tokens(0, Rows("embed", 0, 9));
  engine.Tokens(0, Rows("layers.0", 0, 3, 1e-7));
  engine.Tokens(0, Rows("layers.0", 4, 9, 0.01));
  engine.Tokens(0, Rows("layers.0.mlp", 0, 9, 0.1));
  engine.Commit();
  const auto found = Answer();
  EXPECT_EQ(found.verdict(), v1::VERDICT_DIVERGED);
  ASSERT_EQ(FirstOf(found), "layers.0");
  const v1::TokenTap& tap = found.taps(1);
  EXPECT_EQ(tap.diverged(), 6u);
  EXPECT_EQ(tap.rows(), 10u);
  EXPECT_EQ(tap.first().position(), 4u);
  EXPECT_EQ(tap.first().key(), 104u);
  EXPECT_NEAR(tap.distance(), 0.01, 1e-4);
  EXPECT_FALSE(tap.has_measured());
}

TEST_F(TokensTest, RoundingIsNoDifferenceUnlessEachBitCounts) {
  Train("trainer");
  Train("engine", 1, 2e-6);
  EXPECT_EQ(Answer().verdict(), v1::VERDICT_WITHIN_TOLERANCE);
  const auto exact = Answer({.exact = true});
  EXPECT_EQ(exact.verdict(), v1::VERDICT_DIVERGED);
  EXPECT_EQ(FirstOf(exact), "layers.0");
  EXPECT_EQ(exact.taps(1).diverged(), 10u);
}

TEST_F(TokensTest, WhatATapInheritsFromTheOnesBeforeItIsNoDifferenceOfItsOwn) {
  Train("trainer");
  RunWriter engine(store_, "engine");
  engine.Tokens(0, Rows("embed", 0, 9, 9e-6));
  engine.Tokens(0, Rows("layers.0", 0, 9, 6e-5));
  engine.Tokens(0, Rows("layers.0.mlp", 0, 9, 3e-4));
  engine.Commit();
  EXPECT_EQ(Answer().verdict(), v1::VERDICT_WITHIN_TOLERANCE);
}

TEST_F(TokensTest, RepeatsSayWhatRoundingIs) {
  Train("trainer");
  Train("engine", 1, 0.01);
  Train("again", 1, 0.004);
  EXPECT_EQ(Answer().verdict(), v1::VERDICT_DIVERGED);
  const auto found = Answer({.noise = {"again"}});
  EXPECT_EQ(found.verdict(), v1::VERDICT_WITHIN_TOLERANCE);
  EXPECT_THAT(found.noise(), ElementsAre("again"));
  EXPECT_NEAR(found.taps(1).measured(), 0.004, 1e-4);
  Train("quiet", 1, 1e-4);
  EXPECT_EQ(FirstOf(Answer({.noise = {"quiet"}})), "layers.0");
  RunWriter(store_, "bare").Scalar(0, 0, "loss", 1).Commit();
  EXPECT_THAT(Answer({.noise = {"bare"}}).notes(0), HasSubstr("'bare' measures nothing"));
}

TEST_F(TokensTest, TwinsAreFoundByTheirSettings) {
  Train("trainer");
  Train("engine", 1, 0.01);
  RunWriter twin(store_, "trainer.twin-1-1");
  twin.Config(0, {{"recording.perturb", "1"}, {"recording.perturb_base", "trainer"}});
  twin.Tokens(0, Rows("embed", 0, 9)).Tokens(0, Rows("layers.0", 0, 9, 0.004));
  twin.Tokens(0, Rows("layers.0.mlp", 0, 9, 0.004)).Commit();
  const auto found = Answer();
  EXPECT_THAT(found.noise(), ElementsAre("trainer.twin-1-1"));
  EXPECT_EQ(found.verdict(), v1::VERDICT_WITHIN_TOLERANCE);
}

TEST_F(TokensTest, RunsWithoutACommonTokenOrTapAreNotComparable) {
  Train("trainer");
  RunWriter(store_, "bare").Scalar(0, 0, "loss", 1).Commit();
  auto found = Answer({.run_b = "bare"});
  EXPECT_EQ(found.verdict(), v1::VERDICT_INCOMPARABLE);
  EXPECT_THAT(found.message(), HasSubstr("run 'bare' has no token records"));
  EXPECT_THAT(found.message(), HasSubstr("tokens=True"));

  RunWriter(store_, "engine").Tokens(0, Rows("embed", 50, 60)).Commit();
  found = Answer();
  EXPECT_EQ(found.verdict(), v1::VERDICT_INCOMPARABLE);
  EXPECT_THAT(found.message(), HasSubstr("same tokenizer"));
  EXPECT_EQ(Detail(found, "tokens"), "! 0 in both, 10 only in trainer, 11 only in engine");
  EXPECT_THAT(found.taps(), IsEmpty());

  RunWriter(store_, "engine").Tokens(0, Rows("wte", 0, 9)).Commit();
  found = Answer();
  EXPECT_EQ(found.verdict(), v1::VERDICT_INCOMPARABLE);
  EXPECT_THAT(found.message(), HasSubstr("--map"));
  EXPECT_EQ(Detail(found, "taps"),
            "! 0 in both, 3 only in trainer (embed, layers.0, layers.0.mlp), 1 only in engine "
            "(wte)");
  EXPECT_EQ(Ask(store_, GetTokens, {.run_a = "trainer", .run_b = "nobody"}).status().code(),
            Code::kNotFound);
}

TEST_F(TokensTest, AMapSaysWhichNamesBelongTogether) {
  Train("trainer");
  RunWriter engine(store_, "engine");
  engine.Tokens(0, Rows("embed", 0, 9));
  TokenRecord renamed = Rows("layers.0", 0, 9);
  renamed.tap = "blocks.0";
  engine.Tokens(0, renamed).Commit();
  const auto found = Answer({.map = "layers\\.(\\d+) -> blocks.\\1"});
  ASSERT_EQ(found.taps_size(), 2) << found.DebugString();
  EXPECT_EQ(found.taps(1).tap_b(), "blocks.0");
  EXPECT_EQ(found.taps(1).equal(), 10u);
  EXPECT_EQ(found.verdict(), v1::VERDICT_WITHIN_TOLERANCE) << "A has a tap more";
}

TEST_F(TokensTest, PartsOfTensorParallelRanksAddUp) {
  Train("trainer");
  RunWriter engine(store_, "engine", 2);
  for (const char* tap : {"embed", "layers.0", "layers.0.mlp"}) {
    TokenRecord left = Rows(tap, 0, 9), right = left;
    left.columns = 3;
    right.columns = 5;
    right.first_column = 3;
    for (std::size_t i = 0; i < left.rows.size(); ++i) {
      RowStats& x = left.rows[i].stats;
      RowStats& y = right.rows[i].stats;
      for (std::size_t sum = 0; sum < kRowSketch; ++sum) (sum < 3 ? y : x).sketch[sum] = 0;
      x.hash -= 77;
      y.hash = 77;
      y.l2 = x.l2 = x.l2 / std::sqrt(2.0f);
    }
    engine.Tokens(1, right).Tokens(0, left);
  }
  engine.Tokens(0, [] {
    TokenRecord lone = Rows("embed", 20, 20);
    lone.columns = 3;
    return lone;
  }());
  engine.Commit();
  const auto found = Answer();
  EXPECT_EQ(found.verdict(), v1::VERDICT_IDENTICAL) << found.DebugString();
  EXPECT_THAT(found.notes(), ElementsAre(HasSubstr("1 rows are left out")));
}

TEST_F(TokensTest, ATokenThatAStepHasTwiceIsComparedOnceAndSaid) {
  RunWriter trainer(store_, "trainer");
  trainer.Tokens(0, Rows("embed", 0, 9)).Tokens(0, Rows("embed", 0, 4)).Commit();
  RunWriter(store_, "engine").Tokens(0, Rows("embed", 0, 9)).Commit();
  auto found = Answer();
  EXPECT_EQ(found.taps(0).rows(), 10u);
  EXPECT_EQ(Detail(found, "repeated"),
            "ok: 5 rows of a token that a step has already, 0 with other bits");
  RunWriter(store_, "engine")
      .Tokens(0, Rows("embed", 0, 9))
      .Tokens(0, Rows("embed", 8, 9, 0.1))
      .Commit();
  found = Answer();
  EXPECT_EQ(Detail(found, "repeated"),
            "! 7 rows of a token that a step has already, 2 with other bits, more than rounding "
            "apart");
}

TEST_F(TokensTest, OfSeveralStepsTheLastThatBothHaveCounts) {
  RunWriter trainer(store_, "trainer"), engine(store_, "engine");
  for (const std::uint64_t step : {0, 1, 2})
    trainer.Tokens(0, Rows("embed", 0, 9, 0.1 * static_cast<double>(step), step));
  trainer.Commit();
  engine.Tokens(0, Rows("embed", 0, 9, 0.1, 1)).Tokens(0, Rows("embed", 0, 9, 0.5, 3)).Commit();
  const auto found = Answer();
  EXPECT_EQ(found.verdict(), v1::VERDICT_IDENTICAL) << found.DebugString();
  EXPECT_THAT(Answer({.steps = "0,3"}).taps(0).distance(), ::testing::Ge(0.4))
      << "no common step: the last of each";
}

TEST_F(TokensTest, OtherDtypesAreSaidAndJudgedByTheCoarser) {
  Train("trainer");
  RunWriter engine(store_, "engine");
  for (const char* tap : {"embed", "layers.0", "layers.0.mlp"}) {
    TokenRecord rows = Rows(tap, 0, 9, 0.004);
    rows.dtype = DType::kBf16;
    engine.Tokens(0, rows);
  }
  engine.Commit();
  const auto found = Answer();
  EXPECT_EQ(Detail(found, "dtype"), "! differ at 3 of 3 taps: f32 and bf16 at embed");
  EXPECT_EQ(found.verdict(), v1::VERDICT_WITHIN_TOLERANCE);
}

TEST_F(TokensTest, LogProbabilitiesAreComparedAsValues) {
  const auto values = [](float shift) {
    TokenRecord record{.tap = "logprob", .dtype = DType::kF32, .columns = 1};
    for (std::uint32_t at = 0; at < 5; ++at) {
      const float value = -1.0f - static_cast<float>(at) + (at == 3 ? shift : 0);
      record.rows.push_back({.key = at, .position = at, .stats = Value(value)});
    }
    return record;
  };
  RunWriter(store_, "trainer").Tokens(0, values(0)).Commit();
  RunWriter(store_, "engine").Tokens(0, values(0.5f)).Commit();
  const auto found = Answer();
  EXPECT_EQ(FirstOf(found), "logprob");
  EXPECT_EQ(found.taps(0).diverged(), 1u);
  EXPECT_FLOAT_EQ(static_cast<float>(found.taps(0).furthest().a()), -4);
  EXPECT_FLOAT_EQ(static_cast<float>(found.taps(0).furthest().b()), -3.5f);
  EXPECT_NEAR(found.taps(0).distance(), 0.125, 1e-6) << "relative to the larger";
}

TEST_F(TokensTest, ARowThatIsNotFiniteInOneRunOnlyIsInfinitelyFar) {
  RowStats bad = Row(1);
  bad.l2 = kNotANumber;
  EXPECT_TRUE(std::isinf(TokenDistance(Row(1), bad, 8)));
  EXPECT_EQ(TokenDistance(bad, bad, 8), 0);
  EXPECT_TRUE(std::isinf(TokenDistance(Value(1), Value(kNotANumber), 1)));
  EXPECT_EQ(TokenDistance(Value(kNotANumber), Value(kNotANumber), 1), 0);
  EXPECT_EQ(TokenDistance(RowStats(), RowStats(), 8), 0);
  const float infinite = std::numeric_limits<float>::infinity();
  EXPECT_EQ(TokenDistance(Value(-infinite), Value(-infinite), 1), 0);
  EXPECT_TRUE(std::isinf(TokenDistance(Value(-infinite), Value(1), 1)));
}

TEST_F(TokensTest, AQuestionIsCheckedFirst) {
  v1::GetTokensRequest request;
  EXPECT_EQ(FromWire(request).status().code(), Code::kInvalidArgument);
  request.set_run_a("trainer");
  request.set_run_b("engine");
  EXPECT_TRUE(FromWire(request).ok());
  request.set_steps("x");
  EXPECT_EQ(FromWire(request).status().code(), Code::kInvalidArgument);
  request.set_steps("");
  request.set_map("( -> x");
  EXPECT_EQ(FromWire(request).status().code(), Code::kInvalidArgument);
  request.set_map("");
  request.add_noise("");
  EXPECT_EQ(FromWire(request).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace statcollect::query
