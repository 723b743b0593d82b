#include "server/query/logical/rank_factors.h"

#include <deque>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/query/logical/cut_tensor.h"

namespace statcollect::query {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using namespace statcollect::testing;  // NOLINT: the helpers

const Sizes kFactorShape = {8, 40};

// Records of one tensor, and the parts that they are.
class FactorParts {
 public:
  // `factors`: by rank.
  FactorParts(const std::vector<Held>& held, const std::vector<float>& factors,
              std::uint64_t seed = 1) {
    Random random(seed);
    const Whole whole = RandomTensor(random, kFactorShape);
    for (const Held& one : held) {
      Whole scaled = whole;
      for (float& x : scaled.values) x *= factors[one.rank];
      const Computed& computed = computed_.emplace_back(Compute(scaled, one.placement));
      parts_.push_back({.rank = one.rank,
                        .layout = &computed.layout,
                        .stats = &computed.stats,
                        .sketch = computed.sketch});
    }
  }
  std::span<const Part> get() const { return parts_; }

 private:
  std::deque<Computed> computed_;
  std::vector<Part> parts_;
};

std::map<std::uint32_t, double> Ask(const FactorParts& a, const FactorParts& b) {
  return RankFactors(a.get(), b.get());
}

const std::vector<Held> kOnOneRank = {{0, std::nullopt}};

TEST(RankFactors, OfPartsAreSolvedForTogether) {
  const FactorParts whole(kOnOneRank, {1});
  EXPECT_THAT(Ask(whole, FactorParts(Shards(kFactorShape, 0, 2), {0.8F, 1.2F})),
              ElementsAre(Pair(0, DoubleNear(0.8, 1e-4)), Pair(1, DoubleNear(1.2, 1e-4))));
  EXPECT_THAT(Ask(whole, FactorParts(Shards(kFactorShape, 1, 4), {1, 1, 0.5F, 1})),
              ElementsAre(Pair(0, DoubleNear(1, 1e-4)), Pair(1, DoubleNear(1, 1e-4)),
                          Pair(2, DoubleNear(0.5, 1e-4)), Pair(3, DoubleNear(1, 1e-4))));
}

TEST(RankFactors, OfReplicasAreThoseOfEach) {
  EXPECT_THAT(Ask(FactorParts(kOnOneRank, {1}), FactorParts(Copies(kFactorShape, 3), {1, 0.5F, 1})),
              ElementsAre(Pair(0, DoubleNear(1, 1e-6)), Pair(1, DoubleNear(0.5, 1e-6)),
                          Pair(2, DoubleNear(1, 1e-6))));
}

TEST(RankFactors, OfACutRunAreMeasuredAgainstTheSumOfItsParts) {
  EXPECT_THAT(Ask(FactorParts(Shards(kFactorShape, 1, 2), {1, 1}),
                  FactorParts(Shards(kFactorShape, 0, 2), {2, 1})),
              ElementsAre(Pair(0, DoubleNear(2, 1e-4)), Pair(1, DoubleNear(1, 1e-4))));
}

TEST(RankFactors, NothingWhereAllRanksHaveOneFactorOrSomethingElseDiffers) {
  const FactorParts whole(kOnOneRank, {1});
  EXPECT_THAT(Ask(whole, FactorParts(Shards(kFactorShape, 0, 2), {2, 2})), IsEmpty());
  EXPECT_THAT(Ask(whole, FactorParts(Shards(kFactorShape, 0, 2), {1, 1})), IsEmpty());
  EXPECT_THAT(Ask(whole, FactorParts(Shards(kFactorShape, 0, 2), {0.8F, 1.2F}, /*seed=*/2)),
              IsEmpty());
  EXPECT_THAT(Ask(whole, FactorParts(Shards(kFactorShape, 1, 10), std::vector<float>(10, 1))),
              IsEmpty())
      << "too many parts for 16 sums";
}

}  // namespace
}  // namespace statcollect::query
