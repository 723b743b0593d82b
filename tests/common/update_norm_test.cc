#include "common/update_norm.h"

#include <limits>

#include <gtest/gtest.h>

namespace statcollect {
namespace {

TensorStats Weight(std::uint64_t hash, double l2 = 10) {
  return {.numel = 100, .pos = 100, .has_finite = true, .l2 = l2, .hash = hash};
}

class UpdateNormTest : public ::testing::Test {
 protected:
  void Add(std::uint32_t activation, std::uint64_t step, double place) {
    norm_.Add(activation, step, Weight(static_cast<std::uint64_t>(place * 1000) + 1),
              std::vector<double>(16, place));
  }
  UpdateNorm norm_;
};

TEST_F(UpdateNormTest, SumsWhatAllWeightsMovedBy) {
  Add(0, 0, 0);
  Add(1, 0, 5);
  EXPECT_FALSE(norm_.EndStep()) << "nothing came before";
  Add(0, 1, 0.3 / 4);
  Add(1, 1, 5 + 0.4 / 4);
  EXPECT_NEAR(norm_.EndStep().value(), 0.5, 1e-6);
  EXPECT_EQ(norm_.weights(), 2u);
  EXPECT_GT(norm_.bytes(), 2 * 16 * sizeof(double));
}

TEST_F(UpdateNormTest, SaysNothingOfWeightsThatCannotBeCompared) {
  Add(0, 0, 0);
  (void)norm_.EndStep();
  Add(0, 2, 1);
  EXPECT_FALSE(norm_.EndStep()) << "the step between was not recorded";
  Add(0, 3, 1);
  EXPECT_FALSE(norm_.EndStep()) << "an update that was skipped";
  TensorStats spoiled = Weight(7);
  spoiled.nan = 1;
  norm_.Add(0, 4, spoiled, std::vector<double>(16, 0));
  EXPECT_FALSE(norm_.EndStep());
  norm_.Add(0, 5, Weight(8), {});
  EXPECT_FALSE(norm_.EndStep()) << "no sketch";
  EXPECT_FALSE(norm_.EndStep()) << "an empty step";
}

}  // namespace
}  // namespace statcollect
