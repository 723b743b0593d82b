// Causes that the root's own statistics and sketch tell.
#include "server/query/cause/text.h"
#include "tests/server/query/cause/cause_fixture.h"

namespace statcollect::query {
namespace {

class CauseTensorsTest : public CauseTest {
 protected:
  static inline const TensorKey kOutput = Key("blocks.1.mlp");
  std::string SayOf(const Tensor& a, const Tensor& b) {
    Reset();
    Put(3, kOutput, a, b);
    return Say(Root(3, kOutput));
  }
};

TEST_F(CauseTensorsTest, AFactorOnOneTensorIsNamed) {
  Put(3, kOutput, Noise(1), Times(Noise(1), 1.001));
  const auto cause = Ask(Root(3, kOutput));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rule, "tensor_scale");
  EXPECT_EQ(cause->text, "output blocks.1.mlp in ort is 1.001 times that in base at step 3");
  EXPECT_EQ(cause->confidence, Confidence::kCertain);
}

TEST_F(CauseTensorsTest, AFactorOnHalfOfATensorSaysNothing) {
  Tensor half = Noise(1);
  for (std::size_t i = 0; i < half.values.size(); i += 2) half.values[i] *= 1.1;
  EXPECT_EQ(SayOf(Noise(1), half), "nothing");
}

TEST_F(CauseTensorsTest, AFactorWithoutSketchesIsLikely) {
  const Tensor tensor = Noise(1);
  store_ = std::make_unique<FakeStore>();
  a_.emplace(*store_, "base", 1, 0);
  b_.emplace(*store_, "ort", 1, 0);
  Put(3, kOutput, tensor, Times(tensor, 1.5));
  const auto cause = Ask(Root(3, kOutput));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rule, "tensor_scale");
  EXPECT_EQ(cause->confidence, Confidence::kLikely);
}

// Label smoothing, buffers that an average leaves out: about a factor, but what remains is far more
// than rounding.
TEST_F(CauseTensorsTest, AFactorThatLeavesMoreThanRoundingSaysNothing) {
  const Tensor about = Sum(Times(Noise(1), 0.97), Noise(2, 256, 5e-3));
  EXPECT_EQ(SayOf(Noise(1), about), "nothing");
}

TEST_F(CauseTensorsTest, AFactorMayLeaveWhatDifferedBefore) {
  Put(3, Key("blocks.0.mlp"), Noise(7), Sum(Noise(7), Noise(8, 256, 1e-3)));
  Put(3, kOutput, Noise(1), Sum(Times(Noise(1), 0.97), Noise(2, 256, 5e-3)));
  EXPECT_THAT(Say(Root(3, kOutput)), HasSubstr("tensor_scale: "));
}

TEST_F(CauseTensorsTest, TheOppositeSignIsASignFlip) {
  EXPECT_EQ(
      SayOf(Noise(1), Times(Noise(1), -1)),
      "sign_flip: output blocks.1.mlp in ort has the opposite sign of that in base at step 3");
  Tensor some = Noise(1);
  for (std::size_t i = 0; i < some.values.size(); i += 4) some.values[i] = -some.values[i];
  EXPECT_EQ(SayOf(Noise(1), some), "nothing") << "every fourth element only";
}

TEST_F(CauseTensorsTest, ARoundedOppositeSignIsASignFlip) {
  // Rounded coarsely: the factor that fits best is -0.985.
  const Tensor rounded = Sum(Times(Noise(1), -0.985), Noise(2, 256, 0.008));
  EXPECT_EQ(
      SayOf(Noise(1), rounded),
      "sign_flip: output blocks.1.mlp in ort has the opposite sign of that in base at step 3");
  EXPECT_EQ(SayOf(Noise(1), Times(Noise(1), -0.985)),
            "tensor_scale: output blocks.1.mlp in ort is -0.985 times that in base at step 3")
      << "exactly that factor";
}

TEST_F(CauseTensorsTest, AFactorNear1IsPrintedByWhatItIsApart) {
  Tensor a = Noise(1);
  a.dtype = DType::kF64;
  Tensor b = a;
  for (double& x : b.values) x *= 1 + 3e-7;
  EXPECT_EQ(SayOf(a, b),
            "tensor_scale: output blocks.1.mlp in ort is (1 + 3e-07) times that in base at step 3");
  EXPECT_EQ(cause::FactorText(2), "2 times");
  EXPECT_EQ(cause::FactorText(1), "1 times");
  EXPECT_EQ(cause::FactorText(1.001), "1.001 times");
  EXPECT_EQ(cause::FactorText(0.999), "0.999 times");
  EXPECT_EQ(cause::FactorText(1 - 2.5e-5), "(1 - 2.5e-05) times");
  EXPECT_EQ(cause::FactorText(-1), "-1 times");
}

TEST_F(CauseTensorsTest, WhatIsAsSmallAsRoundingIsNotDescribed) {
  Put(3, kOutput, Noise(1, 4096), Times(Noise(1, 4096), 1 + 2.4e-7));
  Divergence root = Root(3, kOutput);
  EXPECT_THAT(Say(root), HasSubstr("tensor_scale: "));
  root.distance = 9.6e-8;
  EXPECT_EQ(Say(root), "nothing");
  root.distance = 3e-7;
  EXPECT_THAT(Say(root), HasSubstr("tensor_scale: "));
}

TEST_F(CauseTensorsTest, NearlyEqualValuesThatChangedPlacesAreNotPermuted) {
  Tensor swapped = Noise(1);
  std::vector<std::size_t> order(swapped.values.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](std::size_t x, std::size_t y) { return swapped.values[x] < swapped.values[y]; });
  const auto middle = order.size() / 2;  // where values lie close together
  std::swap(swapped.values[order[middle]], swapped.values[order[middle + 1]]);
  EXPECT_EQ(SayOf(Noise(1), swapped), "nothing");
  std::swap(swapped.values[order[3]], swapped.values[order[order.size() - 4]]);
  EXPECT_THAT(SayOf(Noise(1), swapped), HasSubstr("permuted: "));
}

TEST_F(CauseTensorsTest, TheSameValuesInAnotherOrderArePermuted) {
  Tensor turned = Noise(1);
  std::rotate(turned.values.begin(), turned.values.begin() + 7, turned.values.end());
  EXPECT_EQ(SayOf(Noise(1), turned),
            "permuted: output blocks.1.mlp in ort has the values of that in base at step 3 in a "
            "different order");
  turned.values[3] += 0.01;
  EXPECT_EQ(SayOf(Noise(1), turned), "nothing") << "one value is another";
}

TEST_F(CauseTensorsTest, DimensionsInAnotherOrderAreTransposed) {
  Tensor a = Noise(1), b = Noise(1);
  a.shape = {16, 16};
  b.shape = {16, 16};
  std::rotate(b.values.begin(), b.values.begin() + 16, b.values.end());
  EXPECT_THAT(SayOf(a, b), HasSubstr("in a different order: permuted or transposed"));
  a.shape = {8, 32};
  b.shape = {32, 8};
  EXPECT_THAT(SayOf(a, b),
              HasSubstr("transposed: output blocks.1.mlp has the same values in both runs"));
  b.shape = {64, 4};
  EXPECT_EQ(SayOf(a, b), "nothing") << "reshaped";
}

TEST_F(CauseTensorsTest, AWeightThatIsAnotherLayersIsFound) {
  const auto fc1 = Key("blocks.0.fc1.weight", Kind::kWeight, "", 0, 0, Mode::kInit),
             other = Key("blocks.1.fc1.weight", Kind::kWeight, "", 0, 0, Mode::kInit);
  Put(0, fc1, Noise(1), Noise(2));
  Put(0, other, Noise(2), Noise(1));
  EXPECT_EQ(Say(Root(0, fc1)),
            "other_tensor: weight blocks.0.fc1.weight in ort equals blocks.1.fc1.weight in base "
            "bit for bit "
            "at step 0");
  Reset();  // nearly
  Put(0, fc1, Noise(1), Times(Noise(2), 1 + 1e-6));
  Both(0, other, Noise(2));
  EXPECT_EQ(Say(Root(0, fc1)), "nothing");
}

Tensor RoundedTo(const Tensor& tensor, int bits) {
  return Changed(tensor, [=](double x) {
    int exponent = 0;
    const double significand = std::frexp(x, &exponent);
    return std::ldexp(std::round(std::ldexp(significand, bits)), exponent - bits);
  });
}
// Rounded and then computed with: the values themselves lie on no grid.
Tensor RoundedWithin(const Tensor& tensor, int bits) {
  Tensor rounded = RoundedTo(tensor, bits);
  for (double& x : rounded.values) x = static_cast<float>(x * (1 + 1e-7 * std::sin(1e6 * x)));
  return rounded;
}

TEST_F(CauseTensorsTest, AnotherDTypeIsACast) {
  Tensor narrow = RoundedTo(Noise(1), 8);
  narrow.dtype = DType::kBf16;
  Put(3, kOutput, Noise(1), narrow);
  Configure({{"torch.autocast.cpu", "false"}}, {{"torch.autocast.cpu", "torch.bfloat16"}});
  const auto cause = Ask(Root(3, kOutput, Reason::kDType));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->text,
            "output blocks.1.mlp is f32 in base and bf16 in ort at step 3; torch.autocast.cpu is "
            "false in base and "
            "torch.bfloat16 in ort");
  EXPECT_EQ(cause->key, "torch.autocast.cpu");
  EXPECT_EQ(cause->confidence, Confidence::kCertain);
}

TEST_F(CauseTensorsTest, ValuesOnACoarserGridWereRounded) {
  EXPECT_EQ(SayOf(Noise(1), RoundedTo(Noise(1), 8)),
            "cast: output blocks.1.mlp in ort at step 3 has values of bfloat16 precision, in base "
            "of f32");
  EXPECT_THAT(SayOf(Noise(1), RoundedTo(Noise(1), 11)), HasSubstr("of float16 precision"));
  EXPECT_EQ(SayOf(RoundedTo(Noise(1), 8), RoundedTo(Noise(2), 8)), "nothing") << "both lie on it";
}

TEST_F(CauseTensorsTest, AGridThatAChangeOfAnotherSizeLeftIsNoLikelyCast) {
  const auto write = [&](double noise) {
    Reset();
    const Tensor coarse = RoundedTo(Noise(1), 8);
    Put(3, kOutput, coarse, Sum(coarse, Noise(2, 256, noise)));
  };
  write(0.001);
  auto cause = Ask(Root(3, kOutput));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->confidence, Confidence::kLikely);
  write(0.1);
  cause = Ask(Root(3, kOutput));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rule, "cast");
  EXPECT_EQ(cause->confidence, Confidence::kPossible);
}

TEST_F(CauseTensorsTest, ErrorsOfTheSizeOfAFormatAreACastWithASetting) {
  const auto write = [&](int bits) {
    Reset();
    Put(3, kOutput, Noise(1, 4096), RoundedWithin(Noise(1, 4096), bits));
  };
  write(11);
  EXPECT_EQ(Say(Root(3, kOutput)), "nothing") << "without a setting";
  write(11);
  Configure({{"torch.cuda.matmul.allow_tf32", "false"}},
            {{"torch.cuda.matmul.allow_tf32", "true"}});
  const auto cause = Ask(Root(3, kOutput));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->confidence, Confidence::kLikely);
  EXPECT_THAT(
      cause->text,
      HasSubstr("float16 or TF32 does; torch.cuda.matmul.allow_tf32 is false in base and true"));
  write(15);
  Configure({{"torch.cuda.matmul.allow_tf32", "false"}},
            {{"torch.cuda.matmul.allow_tf32", "true"}});
  EXPECT_EQ(Say(Root(3, kOutput)), "nothing") << "far smaller";
}

class CauseDropoutTest : public CauseTest {
 protected:
  static inline const TensorKey kDrop = Key("blocks.0.drop");
  // Drops elements by their own values, so that other seeds drop others.
  static Tensor Dropped(std::uint64_t seed, double rate) {
    Tensor tensor = Noise(7, 4096);
    std::mt19937_64 generator(seed);
    for (double& x : tensor.values)
      x = std::uniform_real_distribution<>()(generator) < rate ? 0 : x / (1 - rate);
    return tensor;
  }
  static Divergence DropRoot(const std::string& mode = "train") {
    Divergence root = Root(3, kDrop);
    root.class_name = "Dropout";
    root.mode = mode;
    return root;
  }
};

TEST_F(CauseDropoutTest, OtherElementsAtOneRateAreOtherRandomNumbers) {
  Put(3, kDrop, Dropped(1, 0.1), Dropped(2, 0.1));
  auto cause = Ask(DropRoot());
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rule, "dropout");
  EXPECT_THAT(cause->text,
              HasSubstr("of its elements in both runs at step 3 and not the same ones"));
  EXPECT_EQ(cause->confidence, Confidence::kLikely);
  Reset();
  Scalars(2, "rng/cpu", 1, 1);
  Scalars(3, "rng/cpu", 2, 3);
  Put(3, kDrop, Dropped(1, 0.1), Dropped(2, 0.1));
  cause = Ask(DropRoot());
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->key, "rng/cpu");
  EXPECT_EQ(cause->confidence, Confidence::kCertain);
}

TEST_F(CauseDropoutTest, WithEqualStatesItIsNotTheRandomNumbers) {
  Scalars(3, "rng/cpu", 2, 2);
  Put(3, kDrop, Dropped(1, 0.1), Dropped(2, 0.1));
  EXPECT_EQ(Say(DropRoot()), "nothing");
}

TEST_F(CauseDropoutTest, CompiledCodeDrawsOtherNumbersFromEqualStates) {
  Scalars(3, "rng/cpu", 2, 2);
  Put(3, kDrop, Dropped(1, 0.1), Dropped(2, 0.1));
  Configure({}, {{"parallel.compiled", "true"}});
  const auto cause = Ask(DropRoot());
  ASSERT_TRUE(cause);
  EXPECT_THAT(cause->text, HasSubstr("torch.compile draws its own random numbers"));
}

TEST_F(CauseDropoutTest, WithoutASeedTheElementsDifferAndNoStateIsBlamed) {
  for (const std::uint64_t step : {2u, 3u}) Scalars(step, "rng/cpu", 2, 3);
  Put(3, kDrop, Dropped(1, 0.1), Dropped(2, 0.1));
  const auto cause = Ask(DropRoot());
  ASSERT_TRUE(cause);
  EXPECT_THAT(cause->text, HasSubstr("and not the same ones: the random numbers differ"));
  EXPECT_EQ(cause->key, "blocks.0.drop");
}

TEST_F(CauseDropoutTest, GeneratorsThatTorchDoesNotUseAreNotBlamed) {
  Scalars(3, "rng/cpu", 2, 2);
  Scalars(3, "rng/python", 5, 6);
  Put(3, kDrop, Dropped(1, 0.1), Dropped(2, 0.1));
  EXPECT_EQ(Say(DropRoot()).find("rng/python"), std::string::npos);
}

TEST_F(CauseDropoutTest, AStateThatDifferedLongBeforeIsNotBlamed) {
  const auto key = Key("blocks.0.attn");
  Put(2, key, Noise(1), Noise(1));
  Put(3, key, Noise(1), Noise(2));
  for (std::uint64_t step = 0; step < 4; ++step) Scalars(step, "rng/python", 1, 5);
  EXPECT_EQ(Say(Root(3, key)), "nothing");
}

TEST_F(CauseDropoutTest, TheZerosTellTheRate) {
  Put(3, kDrop, Dropped(1, 0.1), Dropped(1, 0.2));
  EXPECT_THAT(Say(DropRoot()), HasSubstr("dropout: the share of elements that are dropped is "));
}

TEST_F(CauseDropoutTest, AnotherModuleWithZerosIsNotDropout) {
  Put(3, kDrop, Dropped(1, 0.1), Dropped(2, 0.2));
  Divergence root = DropRoot();
  root.class_name = "ReLU";
  EXPECT_EQ(Say(root), "nothing");
}

TEST_F(CauseDropoutTest, DropoutThatIsOnInEvaluationIsCertain) {
  const auto eval = Key("blocks.0.drop", Kind::kOutput, "", 0, 0, Mode::kEval);
  Put(3, eval, Noise(7, 4096), Dropped(1, 0.1));
  const auto cause = Ask(DropRoot("eval"));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->text,
            "dropout is off in base and on in ort (blocks.0.drop at step 3, eval mode)");
  EXPECT_EQ(cause->confidence, Confidence::kCertain);
}

TEST_F(CauseDropoutTest, AStateThatDiffersBeforeTheRootIsPossible) {
  const auto key = Key("blocks.0.attn");
  Put(3, key, Noise(1), Noise(2));
  Scalars(1, "rng/cpu", 0, 0);
  Scalars(2, "rng/cpu", 1, 5);
  Scalars(3, "rng/cpu", 2, 3);
  const auto cause = Ask(Root(3, key));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->text, "the state of the random numbers differs from step 2 on (rng/cpu)");
  EXPECT_EQ(cause->confidence, Confidence::kPossible);
  Reset();  // only afterwards
  Put(3, key, Noise(1), Noise(2));
  Scalars(3, "rng/cpu", 1, 1);
  Scalars(4, "rng/cpu", 2, 3);
  EXPECT_EQ(Say(Root(3, key)), "nothing");
}

TEST_F(CauseDropoutTest, OneWeightThatDiffersWasNotDrawnFromAnotherState) {
  const auto weight = [](int i) {
    return Key("w" + std::to_string(i), Kind::kWeight, "", 0, 0, Mode::kInit);
  };
  const auto write = [&](int different) {
    Reset();
    for (int i = 0; i < 5; ++i) Put(0, weight(i), Noise(i), Noise(i < different ? i + 90 : i));
    Scalars(0, "rng/numpy", 1, 2);
    Configure({{"random.numpy.seed", "1"}}, {{"random.numpy.seed", "1"}});
  };
  write(1);
  EXPECT_EQ(Say(Root(0, weight(0))), "nothing");
  write(5);
  EXPECT_EQ(Say(Root(0, weight(0))),
            "random_state: the state of the random numbers differs from step 0 on (rng/numpy)");
}

TEST_F(CauseDropoutTest, AnotherSeedExplainsWeightsThatNearlyAllDiffer) {
  const auto weight = [](int i) {
    return Key("w" + std::to_string(i), Kind::kWeight, "", 0, 0, Mode::kInit);
  };
  const auto write = [&](int different) {
    Reset();
    for (int i = 0; i < 5; ++i) Put(0, weight(i), Noise(i), Noise(i < different ? i + 90 : i));
    Configure({{"random.torch.seed", "1"}}, {{"random.torch.seed", "2"}});
  };
  write(5);
  EXPECT_EQ(Say(Root(0, weight(0))),
            "random_state: the seed is 1 in base and 2 in ort (random.torch.seed)");
  write(1);
  EXPECT_EQ(Say(Root(0, weight(0))), "nothing");
}

}  // namespace
}  // namespace statcollect::query
