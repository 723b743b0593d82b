// Causes that batches tell.
#include "tests/server/query/cause/cause_fixture.h"

namespace statcollect::query {
namespace {

class CauseBatchTest : public CauseTest {
 protected:
  static Tensor Tokens(std::uint64_t seed) {
    Tensor tensor = Noise(seed, 64);
    tensor.dtype = DType::kI64;
    for (double& x : tensor.values) x = std::round(100 * std::abs(x));
    return tensor;
  }
  static inline const TensorKey kTokens = Key("tokens", Kind::kBatch);
};

TEST_F(CauseBatchTest, ABatchOfAnotherStepIsFound) {
  for (std::uint64_t step = 0; step < 6; ++step)
    Put(step, kTokens, Tokens(step), Tokens(step < 3 ? step : step + 1));
  const auto cause = Ask(Root(3, kTokens));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rule, "batch_order");
  EXPECT_EQ(cause->text,
            "the batch of step 3 in ort is that of step 4 in base: the data come in a different "
            "order (tokens)");
  EXPECT_EQ(cause->confidence, Confidence::kCertain);
}

TEST_F(CauseBatchTest, ABatchThatComesTwiceWhileTheOthersStayIsLikely) {
  for (std::uint64_t step = 0; step < 6; ++step)
    Put(step, kTokens, Tokens(step), Tokens(step == 3 ? 2 : step));
  const auto cause = Ask(Root(3, kTokens));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rule, "batch_order");
  EXPECT_EQ(cause->confidence, Confidence::kLikely) << "a loader that is stuck has no other order";
}

TEST_F(CauseBatchTest, ABatchThatTheOtherRunNeverHadSaysNothing) {
  for (std::uint64_t step = 0; step < 6; ++step)
    Put(step, kTokens, Tokens(step), Tokens(step < 3 ? step : step + 50));
  EXPECT_EQ(Say(Root(3, kTokens)), "nothing");
}

TEST_F(CauseBatchTest, AConstantBatchSaysNothing) {
  Tensor ones = Tokens(1), zeros = ones;
  std::fill(ones.values.begin(), ones.values.end(), 1);
  std::fill(zeros.values.begin(), zeros.values.end(), 0);
  Put(3, kTokens, ones, zeros);
  Put(4, kTokens, zeros, zeros);
  EXPECT_EQ(Say(Root(3, kTokens)), "nothing");
}

TEST_F(CauseBatchTest, SwappedMicroBatchesAreOfTheSameStep) {
  const auto second = Key("tokens", Kind::kBatch, "", 1);
  Put(3, kTokens, Tokens(1), Tokens(2));
  Put(3, second, Tokens(2), Tokens(1));
  EXPECT_EQ(Say(Root(3, kTokens)),
            "batch_order: the batch of step 3 in ort is micro-batch 1 of that step in base: the "
            "micro-batches "
            "are in a different order (tokens)");
}

TEST_F(CauseBatchTest, ABatchOfAnotherRankIsFound) {
  Reset(/*world_size=*/2);
  Put(3, kTokens, Tokens(1), Tokens(2), 0);
  Put(3, kTokens, Tokens(2), Tokens(1), 1);
  EXPECT_THAT(Say(Root(3, kTokens)),
              HasSubstr("is that of rank 1 in base: the data are distributed over"));
}

TEST_F(CauseBatchTest, AnotherSeedExplainsABatchThatIsNowhere) {
  Put(3, kTokens, Tokens(1), Tokens(2));
  Configure({{"random.torch.seed", "1"}}, {{"random.torch.seed", "2"}});
  EXPECT_EQ(Say(Root(3, kTokens)),
            "random_state: the seed is 1 in base and 2 in ort (random.torch.seed)");
}

// Most programs seed neither Python's nor NumPy's generator: their states differ in any two
// processes.
TEST_F(CauseBatchTest, RandomNumbersThatNeverAgreedAreNotBlamed) {
  const auto say = [&](bool agreed, const std::string& seed_a, const std::string& seed_b) {
    Reset();
    Put(3, kTokens, Tokens(1), Tokens(2));
    Scalars(2, "rng/python", 5, agreed ? 5 : 6);
    Scalars(3, "rng/python", 7, 8);
    Configure({{"random.python.seed", seed_a}}, {{"random.python.seed", seed_b}});
    return Say(Root(3, kTokens));
  };
  const std::string differs = "random_state: the state of the random numbers differs from step ";
  EXPECT_EQ(say(false, "unknown", "unknown"), "nothing");
  EXPECT_EQ(say(false, "0", "unknown"), "nothing");
  EXPECT_EQ(say(false, "none", "none"), "nothing");
  EXPECT_EQ(say(false, "0", "0"), differs + "2 on (rng/python)");
  EXPECT_EQ(say(true, "unknown", "unknown"), differs + "3 on (rng/python)");
}

// A program may seed with a number that the agent does not guess, and a guess may be of a generator
// that was not seeded.
TEST_F(CauseBatchTest, WhetherAGeneratorWasSeededIsAsRecorded) {
  const auto say = [&](const std::string& generator, const std::string& seed,
                       const std::string& seeded_a, const std::string& seeded_b) {
    Reset();
    Put(3, kTokens, Tokens(1), Tokens(2));
    Scalars(3, "rng/" + (generator == "torch" ? "cpu" : generator), 7, 8);
    const std::string of = "random." + generator + ".";
    Configure({{of + "seed", seed}, {of + "seeded", seeded_a}},
              {{of + "seed", seed}, {of + "seeded", seeded_b}});
    return Say(Root(3, kTokens));
  };
  for (const std::string generator : {"torch", "numpy", "python"}) {
    EXPECT_THAT(say(generator, "unknown", "true", "true"), HasSubstr("random_state: "))
        << generator;
    EXPECT_EQ(say(generator, "42", "true", "false"), "nothing") << generator;
    EXPECT_EQ(say(generator, "42", "unknown", "true"), "nothing") << generator;
  }
}

TEST_F(CauseBatchTest, ABatchOfWhichAnotherPartAgreesHasTheSameSamples) {
  const auto say = [&](const Tensor& other) {
    Reset();
    Put(3, Key("labels", Kind::kBatch), Tokens(1), Tokens(2));
    Put(2, kTokens, Changed(other, [](double x) { return x + 1; }), Tokens(9));
    Put(3, kTokens, other, other);
    Scalars(2, "rng/cpu", 5, 5);
    Scalars(3, "rng/cpu", 7, 8);
    Configure({{"random.torch.seed", "1"}}, {{"random.torch.seed", "2"}});
    return Say(Root(3, Key("labels", Kind::kBatch)));
  };
  EXPECT_EQ(say(Tokens(3)),
            "same_samples: labels differs at step 3 while tokens of the same batch agrees bit for "
            "bit: the same "
            "samples, prepared differently");
  Tensor ones = Tokens(1);
  std::fill(ones.values.begin(), ones.values.end(), 1);
  EXPECT_THAT(say(ones), HasSubstr("random_state: ")) << "a mask of ones agrees with any other";
}

TEST_F(CauseBatchTest, APartThatIsTheSameInEveryStepSaysNothing) {
  const auto labels = Key("labels", Kind::kBatch);
  for (const std::uint64_t step : {2u, 3u}) Both(step, Key("positions", Kind::kBatch), Tokens(5));
  Put(3, labels, Tokens(1), Tokens(2));
  EXPECT_EQ(Say(Root(3, labels)), "nothing");
}

TEST_F(CauseBatchTest, ExchangedPartsOfABatchAreNamed) {
  const auto source = Key("edges", Kind::kBatch, "0"), target = Key("edges", Kind::kBatch, "1");
  const auto say = [&](const Tensor& given) {
    Reset();
    for (std::uint64_t step = 0; step < 4; ++step) {  // the same in every step
      Both(step, kTokens, Tokens(10 + step));
      Put(step, source, Tokens(1), step < 2 ? Tokens(1) : given);
      Put(step, target, Tokens(2), step < 2 ? Tokens(2) : Tokens(1));
    }
    return Say(Root(2, source));
  };
  EXPECT_EQ(say(Tokens(2)),
            "other_tensor: batch edges[0] in ort equals edges[1] in base bit for bit at step 2");
  EXPECT_THAT(say(Tokens(3)), HasSubstr("same_samples: ")) << "nearly";
}

TEST_F(CauseBatchTest, ABatchOfAnotherStepBesideThatOfThisStepIsNoOrder) {
  const auto labels = Key("labels", Kind::kBatch);
  for (std::uint64_t step = 0; step < 6; ++step) {
    Both(step, kTokens, Tokens(10 + step));
    Put(step, labels, Tokens(step), Tokens(step < 3 ? step : step - 1));
  }
  EXPECT_THAT(Say(Root(3, labels)), HasSubstr("same_samples: labels differs at step 3"));
}

TEST_F(CauseBatchTest, WhatWasDoneToAPartOfABatchIsSaidFirst) {
  Tensor reversed = Tokens(1);
  std::reverse(reversed.values.begin(), reversed.values.end());
  Put(3, Key("labels", Kind::kBatch), Tokens(1), reversed);
  Both(2, kTokens, Tokens(2));
  Both(3, kTokens, Tokens(3));
  const auto causes = AskAll(Root(3, Key("labels", Kind::kBatch)));
  ASSERT_EQ(causes.size(), 2u);
  EXPECT_EQ(causes[0].rule, "permuted");
  EXPECT_EQ(causes[1].rule, "same_samples");
}

}  // namespace
}  // namespace statcollect::query
