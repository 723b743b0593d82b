// Ranks whose models differ in their experts: one stage, and one order.
#include "server/query/logical/common_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "server/query/logical/stage.h"

namespace statcollect::query {
namespace {

// Tensors of each rank, in its order.
std::vector<std::uint32_t> InOrder(const std::vector<std::vector<std::uint32_t>>& ranks,
                                   std::size_t tensors) {
  std::vector<Ordered> records;
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    for (std::uint32_t i = 0; i < ranks[rank].size(); ++i)
      records.push_back({rank, i, ranks[rank][i]});
  }
  const std::vector<std::uint64_t> places = CommonOrder(records, tensors);
  std::vector<std::uint32_t> order(tensors);
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](auto x, auto y) { return std::pair(places[x], x) < std::pair(places[y], y); });
  return order;
}

// Rank 1 has many experts (10 and more) in the first layer: what comes behind them in the model
// stays behind, although rank 0 recorded it earlier in its step.
TEST(CommonOrder, ATensorOfOneRankStaysBetweenThoseOfAllRanks) {
  EXPECT_THAT(InOrder({{0, 1, 9, 4, 2, 3}, {0, 1, 5, 6, 7, 8, 2, 10, 3}}, 11),
              ::testing::ElementsAre(0, 1, 9, 4, 5, 6, 7, 8, 2, 10, 3));
}

TEST(CommonOrder, RanksWithTheSameTensorsKeepTheirOrder) {
  EXPECT_THAT(InOrder({{2, 0, 1}, {2, 0, 1}}, 3), ::testing::ElementsAre(2, 0, 1));
}

TEST(Stages, RanksWithOtherExpertsAreOfOneStage) {
  const auto rank = [](int first, int count) {
    WeightNames names = {"tokens.weight", "norm.weight", "head.weight"};
    for (int layer = 0; layer < 3; ++layer) {
      const std::string block = "blocks." + std::to_string(layer) + ".";
      names.insert({block + "ln1.weight", block + "attn.qkv.weight", block + "mlp.router.weight"});
      for (int expert = first; expert < first + count; ++expert)
        names.insert(block + "mlp.experts." + std::to_string(expert) + ".fc1.weight");
    }
    return names;
  };
  EXPECT_TRUE(AreOfOneStage(rank(0, 64), rank(64, 64)));
  EXPECT_TRUE(AreOfOneStage(rank(0, 1), rank(1, 1)));
}

TEST(Stages, RanksWithOtherLayersAreNot) {
  const WeightNames first = {"tokens.weight", "blocks.0.ln.weight", "blocks.1.ln.weight"};
  const WeightNames tied = {"tokens.weight", "blocks.2.ln.weight", "norm.weight", "head.weight"};
  EXPECT_FALSE(AreOfOneStage(first, tied));
  EXPECT_FALSE(AreOfOneStage({"0.weight"}, {"1.weight"}));
  EXPECT_FALSE(AreOfOneStage({}, {"1.weight"}));
  EXPECT_TRUE(AreOfOneStage({}, {}));
}

}  // namespace
}  // namespace statcollect::query
