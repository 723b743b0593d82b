#include "server/query/tokens/routers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <stop_token>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/query/tokens/token_table.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {
namespace {

using ::testing::ElementsAre;
using testing::FakeStore;
using ::testing::IsEmpty;
using testing::RunWriter;
using ::testing::SizeIs;

using Values = std::vector<float>;

// As the agent computes them, but for the signs.
RowStats StatsOfRow(const Values& values) {
  RowStats stats;
  double squares = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    stats.sketch[i % kRowSketch] += values[i];
    squares += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    stats.hash = testing::MixBits(stats.hash + std::bit_cast<std::uint32_t>(values[i]) + i);
  }
  stats.l2 = static_cast<float>(std::sqrt(squares));
  return stats;
}

constexpr std::uint32_t kTokens = 12, kExperts = 6, kChosen = 2;

// A router of 6 experts: token t goes to experts t % 6 and (t + 1) % 6; expert (t + 2) % 6 is the
// next, by `Gap(t)`.
struct Model {
  double gap = 1;  // of token 5; of the others 1
  std::function<void(std::uint32_t token, Values&)> input, logits, output;
  DType dtype = DType::kF32;  // of the logits
};

class RoutersTest : public ::testing::Test {
 protected:
  void Train(const std::string& run, const Model& model, std::uint64_t step = 0) {
    TokenRecord input = Tap("layers.0.norm", 8, step), logits = Tap("layers.0.mlp.gate", 6, step);
    TokenRecord chosen = Tap("layers.0.mlp.gate:chosen", kChosen + 1, step);
    TokenRecord output = Tap("layers.0.mlp", 8, step);
    logits.dtype = model.dtype;
    for (std::uint32_t t = 0; t < kTokens; ++t) {
      Add(input, t, Row(t, 1), model.input);
      Values scores(kExperts, 0);
      scores[t % 6] = 4;
      scores[(t + 1) % 6] = 3;
      scores[(t + 2) % 6] = static_cast<float>(3 - (t == 5 ? model.gap : 1));
      Add(logits, t, scores, model.logits);
      std::vector<std::uint32_t> order(kExperts);
      for (std::uint32_t i = 0; i < kExperts; ++i) order[i] = i;
      std::stable_sort(order.begin(), order.end(),
                       [&](auto x, auto y) { return last_[x] > last_[y]; });
      const float margin = last_[order[kChosen - 1]] - last_[order[kChosen]];
      std::sort(order.begin(), order.begin() + kChosen);
      Add(chosen, t, {margin, static_cast<float>(order[0]), static_cast<float>(order[1])}, {});
      Add(output, t, Row(t, 10 * order[0] + order[1]), model.output);
    }
    RunWriter writer(store_, run);
    for (TokenRecord* record : {&input, &logits, &chosen, &output})
      writer.Tokens(0, std::move(*record));
    writer.Commit();
  }
  RouterAnswer Compare() {
    auto found =
        CompareRouters(store_, {.run_a = "a", .run_b = "b", .map = {}, .steps = {}, .noise = {}},
                       std::stop_token());
    EXPECT_TRUE(found.ok()) << found.status().message();
    return found.ok() ? *std::move(found) : RouterAnswer();
  }
  RouterDiff CompareOne(const Model& a, const Model& b) {
    Train("a", a);
    Train("b", b);
    auto answer = Compare();
    EXPECT_THAT(answer.routers, SizeIs(1));
    ties_ = answer.near_ties;
    return answer.routers.empty() ? RouterDiff() : answer.routers[0];
  }

  FakeStore store_;
  NearTies ties_;

 private:
  static TokenRecord Tap(const std::string& name, std::uint32_t columns, std::uint64_t step) {
    return {.step = step, .tap = name, .dtype = DType::kF32, .columns = columns};
  }
  static Values Row(std::uint32_t token, std::uint32_t seed) {
    Values values(8);
    for (std::uint32_t i = 0; i < 8; ++i) {
      const std::uint64_t bits = testing::MixBits(1000 * seed + 10 * token + i + 1);
      values[i] = static_cast<float>(static_cast<double>(bits >> 40) / (1 << 24) - 0.5);
    }
    return values;
  }
  void Add(TokenRecord& to, std::uint32_t token, Values values,
           const std::function<void(std::uint32_t, Values&)>& change) {
    if (change) change(token, values);
    to.rows.push_back({.key = 100 + token, .position = token, .stats = StatsOfRow(values)});
    last_ = std::move(values);
  }
  Values last_;
};

// Of token 5, the second expert and the next exchange their places.
void Exchange(std::uint32_t token, Values& logits) {
  if (token == 5) std::swap(logits[0], logits[1]);
}

TEST_F(RoutersTest, TheSameChoicesAreSaidToBeTheSame) {
  const RouterDiff found = CompareOne({}, {});
  EXPECT_EQ(found.finding, RouterFinding::kSame);
  EXPECT_EQ(found.router, "layers.0.mlp.gate");
  EXPECT_EQ(found.layer, "layers.0.mlp");
  EXPECT_EQ(found.tokens, kTokens);
  EXPECT_EQ(found.agreeing, kTokens * kChosen);
  EXPECT_THAT(found.load_a, ElementsAre(4, 4, 4, 4, 4, 4));
  EXPECT_THAT(ties_, IsEmpty());
}

TEST_F(RoutersTest, ANearTieThatGoesTheOtherWayIsRounding) {
  const RouterDiff found = CompareOne({.gap = 2e-6}, {.gap = 2e-6, .logits = Exchange});
  EXPECT_EQ(found.finding, RouterFinding::kRounding);
  EXPECT_EQ(found.flips, 1U);
  EXPECT_EQ(found.near_ties, 1U);
  EXPECT_EQ(found.agreeing, kTokens * kChosen - 1U);
  EXPECT_EQ(found.explained, 1.0);
  EXPECT_LE(*found.margin, *found.margin_limit);
  EXPECT_EQ(found.load_b[0], found.load_a[0] - 1);
  EXPECT_EQ(found.load_b[1], found.load_a[1] + 1);
  ASSERT_THAT(ties_, SizeIs(1));
  EXPECT_EQ(ties_.at(0)[0].router, "layers.0.mlp.gate");
  EXPECT_EQ(ties_.at(0)[0].within, "layers.0.mlp");
}

TEST_F(RoutersTest, RoundedLogitsWithTheSameChoicesExcuseTheirOrderAlone) {
  const auto rounded = [](std::uint32_t, Values& logits) {
    for (float& one : logits) one *= 1 + 2e-7F;
  };
  const RouterDiff found = CompareOne({}, {.logits = rounded});
  EXPECT_EQ(found.finding, RouterFinding::kSame);
  EXPECT_EQ(found.flips, 0U);
  ASSERT_THAT(ties_, SizeIs(1));
  EXPECT_EQ(ties_.at(0)[0].share, 0);
  EXPECT_EQ(ties_.at(0)[0].choices, kTokens * kChosen);
}

TEST_F(RoutersTest, OfALargeMarginItIsTheRouter) {
  const RouterDiff found = CompareOne({.gap = 0.01}, {.gap = 0.01, .logits = Exchange});
  EXPECT_EQ(found.finding, RouterFinding::kRouter);
  EXPECT_EQ(found.near_ties, 0U);
  EXPECT_NEAR(*found.margin, 0.01 / std::sqrt(16 + 9 + 2.99 * 2.99), 1e-4);
  EXPECT_THAT(ties_, IsEmpty());
}

TEST_F(RoutersTest, LogitsOfAnotherScaleOrDTypeAreTheRouterWithoutAnyOtherChoice) {
  const auto scaled = [](std::uint32_t, Values& logits) {
    for (float& one : logits) one *= 1.01F;
  };
  EXPECT_EQ(CompareOne({}, {.logits = scaled}).finding, RouterFinding::kRouter);
  const auto rounded = [](std::uint32_t, Values& logits) { logits[4] += 1e-6F; };
  EXPECT_EQ(CompareOne({}, {.logits = rounded}).finding, RouterFinding::kSame);
  EXPECT_EQ(CompareOne({}, {.logits = rounded, .dtype = DType::kBf16}).finding,
            RouterFinding::kRouter);
}

TEST_F(RoutersTest, AnExpertThatDiffersIsNamedByItsTokens) {
  const auto stale = [](std::uint32_t token, Values& output) {
    if (token % 6 == 3 || (token + 1) % 6 == 3) output[2] += 0.1F;
  };
  const RouterDiff found = CompareOne({}, {.output = stale});
  EXPECT_EQ(found.finding, RouterFinding::kExpert);
  EXPECT_EQ(found.expert, 3U);
  EXPECT_EQ(found.apart, 4U);
  EXPECT_EQ(found.expert_tokens, 4U);
  EXPECT_EQ(found.explained, 0.0);
}

TEST_F(RoutersTest, ATokenThatWasDroppedIsNoExpert) {
  const auto dropped = [](std::uint32_t token, Values& output) {
    if (token == 7) output[2] += 0.1F;
  };
  const RouterDiff found = CompareOne({}, {.output = dropped});
  EXPECT_EQ(found.finding, RouterFinding::kTokens);
  EXPECT_EQ(found.apart, 1U);
  EXPECT_FALSE(found.expert.has_value());
}

TEST_F(RoutersTest, NearTiesDoNotHideAnExpert) {
  const auto stale = [](std::uint32_t token, Values& output) {
    if (token % 6 == 3 || (token + 1) % 6 == 3) output[2] += 0.1F;
  };
  const RouterDiff found =
      CompareOne({.gap = 2e-6}, {.gap = 2e-6, .logits = Exchange, .output = stale});
  EXPECT_EQ(found.finding, RouterFinding::kExpert);
  EXPECT_EQ(found.near_ties, 1U);
}

TEST_F(RoutersTest, WhatBeginsBeforeARouterIsNotItsOwn) {
  const auto other = [](std::uint32_t, Values& input) { input[1] += 0.1F; };
  const RouterDiff found = CompareOne({}, {.input = other, .logits = Exchange});
  EXPECT_EQ(found.finding, RouterFinding::kBefore);
  EXPECT_THAT(ties_, IsEmpty());
}

TEST_F(RoutersTest, TheStepWithAFaultIsShownAndNotTheLastOne) {
  Train("a", {.gap = 0.01});
  Train("b", {.gap = 0.01});
  Train("a", {.gap = 0.01}, 1);
  Train("b", {.gap = 0.01, .logits = Exchange}, 1);
  Train("a", {.gap = 0.01}, 2);
  Train("b", {.gap = 0.01}, 2);
  const auto answer = Compare();
  ASSERT_THAT(answer.routers, SizeIs(1));
  EXPECT_EQ(answer.routers[0].step, 1U);
}

TEST_F(RoutersTest, ChoicesOfManyExpertsAreReadFromTheirParts) {
  RunWriter writer(store_, "a");
  for (const std::uint32_t first : {8U, 0U}) {
    TokenRecord part{.tap = "gate:chosen",
                     .dtype = DType::kF32,
                     .columns = first == 0 ? 8U : 3U,
                     .first_column = first};
    Values values = first == 0 ? Values{0.25F, -1, 2, -30, 41, 52, -63, 74} : Values{-80, 91, 255};
    part.rows.push_back({.key = 7, .position = 0, .stats = StatsOfRow(values)});
    writer.Tokens(0, part);
  }
  writer.Commit();
  const auto table = TokenTable::Read(store_, "a", "");
  ASSERT_TRUE(table.ok()) << table.status().message();
  ASSERT_THAT(table->routers(), SizeIs(1));
  EXPECT_THAT(table->taps(), IsEmpty());
  const TokenRouter& router = table->routers()[0];
  EXPECT_EQ(router.name, "gate");
  ASSERT_THAT(router.choices, SizeIs(1));
  EXPECT_EQ(router.choices[0].margin, 0.25F);
  EXPECT_THAT(router.choices[0].experts, ElementsAre(1, 2, 30, 41, 52, 63, 74, 80, 91, 255));
}

TEST_F(RoutersTest, RunsWithoutChoicesHaveNoAnswer) {
  RunWriter(store_, "a").Scalar(0, 0, "loss", 1).Commit();
  RunWriter(store_, "b").Scalar(0, 0, "loss", 1).Commit();
  EXPECT_THAT(Compare().routers, IsEmpty());
}

}  // namespace
}  // namespace statcollect::query
