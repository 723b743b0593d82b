// Causes that gradients and updates tell.
#include "tests/server/query/cause/cause_fixture.h"

namespace statcollect::query {
namespace {

class CauseGradientsTest : public CauseTest {
 protected:
  static constexpr int kWeights = 6;
  static std::string WeightName(int i) { return "layers." + std::to_string(i) + ".weight"; }
  static Tensor Gradient(int i, std::uint64_t step) {
    return Noise(1000 + 10 * step + static_cast<std::uint64_t>(i),
                 200 + 40 * static_cast<std::size_t>(i), 0.1 + i);
  }
  // Weight gradients of the step; B's changed.
  void Gradients(std::uint64_t step, const std::function<Tensor(int, Tensor)>& change,
                 Kind kind = Kind::kWeightGrad) {
    for (int i = 0; i < kWeights; ++i) {
      const Tensor gradient = Gradient(i, step);
      Put(step, Key(WeightName(i), kind), gradient, change(i, gradient));
    }
  }
  static Tensor Same(int, Tensor tensor) { return tensor; }
  static std::function<Tensor(int, Tensor)> Scaled(double factor) {
    return [=](int, const Tensor& tensor) { return Times(tensor, factor); };
  }
  static void ClipToOne(std::vector<Tensor>& gradients) {
    double squares = 0;
    for (const Tensor& gradient : gradients) squares += std::pow(testing::StatsOf(gradient).l2, 2);
    for (Tensor& gradient : gradients)
      gradient = Times(std::move(gradient), 1 / std::sqrt(squares));
  }
  static Divergence GradientRoot(std::uint64_t step, Kind kind = Kind::kWeightGrad) {
    return Root(step, Key(WeightName(0), kind));
  }
};

TEST_F(CauseGradientsTest, GradientsThatWereNotSetToZeroAreASum) {
  Gradients(3, Same);
  Gradients(4, [](int i, const Tensor& tensor) { return Sum(tensor, Gradient(i, 3)); });
  const auto cause = Ask(GradientRoot(4));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rule, "zero_grad");
  EXPECT_EQ(cause->text,
            "gradients in ort at step 4 are those in base plus its own of step 3: they were not "
            "set to zero "
            "between the steps (zero_grad)");
  EXPECT_EQ(cause->confidence, Confidence::kCertain);
}

TEST_F(CauseGradientsTest, AShareOfTheOldGradientOnTopSaysNothing) {
  Gradients(3, Same);
  Gradients(4, [](int i, const Tensor& tensor) { return Sum(tensor, Times(Gradient(i, 3), 0.7)); });
  EXPECT_EQ(Say(GradientRoot(4)), "nothing");
}

// Both clip to a norm of 1, B what it adds to its clipped gradients of the step before.
// The last gradient has one element, which does not tell the two shares.
TEST_F(CauseGradientsTest, AnOldGradientOnTopIsFoundThroughClipping) {
  constexpr double kSmaller = 0.02;
  const auto gradient = [](int i, std::uint64_t step) {
    return Times(i < kWeights ? Gradient(i, step) : Noise(step, 1), kSmaller);
  };
  const auto key = [](int i) {
    return Key(i < kWeights ? WeightName(i) : "temperature", Kind::kWeightGrad);
  };
  for (const int root : {0, kWeights}) {
    Reset();
    std::vector<Tensor> before, plain, summed;
    for (int i = 0; i <= kWeights; ++i) before.push_back(gradient(i, 3));
    ClipToOne(before);
    for (int i = 0; i <= kWeights; ++i) {
      plain.push_back(gradient(i, 4));
      summed.push_back(Sum(plain.back(), before[static_cast<std::size_t>(i)]));
    }
    ClipToOne(plain);
    ClipToOne(summed);
    for (int i = 0; i <= kWeights; ++i) {
      const auto at = static_cast<std::size_t>(i);
      Put(3, key(i), before[at], before[at]);
      Put(4, key(i), plain[at], summed[at]);
    }
    const auto cause = Ask(Root(4, key(root)));
    ASSERT_TRUE(cause) << root;
    EXPECT_EQ(cause->rule, "zero_grad");
  }
}

TEST_F(CauseGradientsTest, AGradientThatIsZeroIsTheCauseOfTheOthersFactor) {
  Gradients(3, [](int i, const Tensor& tensor) {
    return i == 0 ? Times(tensor, 0) : Times(tensor, 1.01);
  });
  EXPECT_EQ(Say(GradientRoot(3)),
            "all_zero: weight grad layers.0.weight is zero in every element in ort at step 3, and "
            "not in base");
}

TEST_F(CauseGradientsTest, OneOldGradientOnTopIsNotAMissingZeroGrad) {
  Gradients(3, Same);
  Gradients(
      4, [](int i, const Tensor& tensor) { return i == 0 ? Sum(tensor, Gradient(i, 3)) : tensor; });
  EXPECT_EQ(Say(GradientRoot(4)), "nothing");
}

// Two models, each with an optimizer of its own, that are trained in turn. B keeps the gradients of
// the first.
class CauseTwoModelsTest : public CauseGradientsTest {
 protected:
  enum Update { kPlain, kKept, kOther };
  void Train(std::uint64_t step, const char* model, Update update) {
    for (int i = 0; i < kWeights; ++i) {
      const std::string name = std::string(model) + "." + WeightName(i);
      const Tensor gradient = Of(model, i, step);
      Both(step, Key(name, Kind::kGradOutput), gradient);
      Put(step, Key(name, Kind::kWeightGrad), gradient,
          update == kKept    ? Sum(gradient, Of(model, i, step - 1))
          : update == kOther ? Sum(gradient, Noise(7, gradient.values.size(), 0.1))
                             : gradient);
    }
    for (int i = 0; i < kWeights; ++i)
      Both(step, Key(std::string(model) + "." + WeightName(i), Kind::kWeight), Noise(step));
  }
  static Tensor Of(const char* model, int i, std::uint64_t step) {
    return Gradient(i, step + (std::string_view(model) == "dis" ? 500 : 0));
  }
  static Divergence RootIn(const char* model) {
    return Root(4, Key(std::string(model) + "." + WeightName(0), Kind::kWeightGrad));
  }
};

TEST_F(CauseTwoModelsTest, OneOfTwoOptimizersThatKeepsItsGradientsIsNamed) {
  for (const char* model : {"dis", "gen"}) Train(3, model, kPlain);
  Train(4, "dis", kKept);
  Train(4, "gen", kPlain);
  EXPECT_EQ(Say(RootIn("dis")),
            "zero_grad: gradients in ort at step 4 are those in base plus its own of step 3: they "
            "were not set "
            "to zero between the steps (zero_grad)");
}

TEST_F(CauseTwoModelsTest, WhatFollowsInTheOtherModelDoesNotHideIt) {
  for (const char* model : {"dis", "gen"}) Train(3, model, kPlain);
  Train(4, "dis", kKept);
  Train(4, "gen", kOther);
  EXPECT_THAT(Say(RootIn("dis")), HasSubstr("zero_grad: "));
}

TEST_F(CauseTwoModelsTest, OldGradientsInTheOtherModelDoNotExplainTheRoot) {
  for (const char* model : {"dis", "gen"}) Train(3, model, kPlain);
  Train(4, "dis", kOther);
  Train(4, "gen", kKept);
  EXPECT_EQ(Say(RootIn("dis")), "nothing");
}

TEST_F(CauseGradientsTest, SomeGradientsThatWereKeptAreCounted) {
  Gradients(3, Same);
  Gradients(
      4, [](int i, const Tensor& tensor) { return i < 3 ? Sum(tensor, Gradient(i, 3)) : tensor; });
  EXPECT_EQ(Say(GradientRoot(4)),
            "zero_grad: 3 of 6 gradients in ort at step 4 are those in base plus its own of step "
            "3: they were "
            "not set to zero between the steps (zero_grad)");
  Reset();  // the root is one of the others
  Gradients(3, Same);
  Gradients(4, [](int i, const Tensor& tensor) {
    return i >= 3 ? Sum(tensor, Gradient(i, 3)) : i == 0 ? Sum(tensor, Noise(7, 200)) : tensor;
  });
  EXPECT_EQ(Say(GradientRoot(4)), "nothing");
}

TEST_F(CauseGradientsTest, GradientsOfTheUpdateBeforeInTheSameStepAreNamed) {
  for (std::uint32_t call : {0u, 1u}) {
    for (int i = 0; i < kWeights; ++i) {
      const Tensor gradient = Gradient(i, call);
      Both(4, Key(WeightName(i), Kind::kGradOutput, "", 0, call), gradient);
      Put(4, Key(WeightName(i), Kind::kWeightGrad, "", 0, call), gradient,
          call == 1 ? Sum(gradient, Gradient(i, 0)) : gradient);
    }
    for (int i = 0; i < kWeights; ++i)
      Both(4, Key(WeightName(i), Kind::kWeight, "", 0, call), Noise(call));
  }
  EXPECT_EQ(Say(Root(4, Key(WeightName(0), Kind::kWeightGrad, "", 0, 1))),
            "zero_grad: gradients in ort at step 4 are those in base plus its own of the update "
            "before: they "
            "were not set to zero between the updates (zero_grad)");
}

TEST_F(CauseGradientsTest, OneFactorOnAllGradientsIsNamed) {
  Gradients(3, Scaled(1.7));
  const auto cause = Ask(GradientRoot(3));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rule, "gradient_scale");
  EXPECT_EQ(cause->text, "all 6 gradients of weights in ort are 1.7 times those in base at step 3");
  EXPECT_EQ(cause->confidence, Confidence::kCertain);
}

// As label smoothing makes them: about the same factor on all, and what remains is far more than
// rounding.
TEST_F(CauseGradientsTest, AFactorThatLeavesMoreThanRoundingIsNotOneOfAll) {
  const auto about = [](int i, const Tensor& tensor) {
    return Sum(Times(tensor, 1.107),
               Noise(70 + static_cast<std::uint64_t>(i), tensor.values.size(), 0.01 * (0.1 + i)));
  };
  Gradients(3, about);
  EXPECT_EQ(Say(GradientRoot(3)), "nothing");
  Reset();
  Put(3, Key("layers.0"), Noise(7), Sum(Noise(7), Noise(8, 256, 1e-3)));
  Gradients(3, about);
  EXPECT_THAT(Say(GradientRoot(3)), HasSubstr("gradient_scale: "))
      << "as far apart as what was before";
}

TEST_F(CauseGradientsTest, DifferentFactorsSayNothingAboutAllGradients) {
  Gradients(3, [](int i, const Tensor& tensor) { return Times(tensor, i % 2 == 0 ? 1.7 : 1.5); });
  const auto cause = Ask(GradientRoot(3));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rule, "tensor_scale");
}

TEST_F(CauseGradientsTest, AChangeOfOneGradientAmongEqualOnesIsItsOwn) {
  Gradients(3, [](int i, const Tensor& tensor) { return i == 0 ? Times(tensor, 0.5) : tensor; });
  const auto cause = Ask(GradientRoot(3));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->text, "weight grad layers.0.weight in ort is 0.5 times that in base at step 3");
}

TEST_F(CauseGradientsTest, TwoRanksSumInsteadOfAveraging) {
  Reset(/*world_size=*/2);
  Gradients(3, Scaled(2));
  const auto cause = Ask(GradientRoot(3));
  ASSERT_TRUE(cause);
  EXPECT_THAT(cause->text,
              HasSubstr("there are 2 ranks: ort sums gradients over them where base averages"));
  EXPECT_EQ(cause->confidence, Confidence::kCertain);
  EXPECT_EQ(cause->key, "world_size");
}

TEST_F(CauseGradientsTest, MicroBatchesThatOnlyOneRunHasAreNotSaidToBeDivided) {
  const auto write = [&](double factor) {
    Reset();
    for (int i = 0; i < kWeights; ++i) {
      const Tensor gradient = Gradient(i, 3);
      Put(3, Key(WeightName(i), Kind::kWeightGrad), gradient, Times(gradient, factor));
      for (std::uint32_t micro_batch = 0; micro_batch < 4; ++micro_batch)
        b_->Observe(0, 3, Key(WeightName(i), Kind::kGradOutput, "", micro_batch), gradient);
    }
  };
  write(4);
  EXPECT_EQ(
      Say(GradientRoot(3)),
      "gradient_scale: all 6 gradients of weights in ort are 4 times those in base at step 3");
}

TEST_F(CauseGradientsTest, ALearningRateWithTheSameRatioScalesNoGradients) {
  Gradients(3, Scaled(1.5));
  Configure({{"optimizer.group0.lr", "0.2"}}, {{"optimizer.group0.lr", "0.3"}});
  EXPECT_EQ(
      Say(GradientRoot(3)),
      "gradient_scale: all 6 gradients of weights in ort are 1.5 times those in base at step 3");
}

TEST_F(CauseGradientsTest, TheNumberOfMicroBatchesExplainsGradientsOfOutputs) {
  for (std::uint32_t micro_batch = 0; micro_batch < 4; ++micro_batch) {
    for (int i = 0; i < kWeights; ++i) {
      const auto key = Key(WeightName(i), Kind::kGradOutput, "", micro_batch);
      Put(3, key, Times(Gradient(i, micro_batch), 0.25), Gradient(i, micro_batch));
    }
  }
  EXPECT_EQ(Say(GradientRoot(3, Kind::kGradOutput)),
            "gradient_scale: all 6 gradients of outputs in ort are 4 times those in base at step "
            "3; there are 4 "
            "micro-batches: base divides the loss by their number, ort does not");
}

TEST_F(CauseGradientsTest, ALossScaleThatWasNotTakenBackIsTheFactor) {
  Gradients(3, Scaled(1024));
  Scalars(3, "loss_scale", 1024, 1024);
  const auto cause = Ask(GradientRoot(3));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rule, "loss_scale");
  EXPECT_THAT(cause->text,
              HasSubstr("that is the loss scale: the gradients of ort are not unscaled"));
  Reset();
  Gradients(3, Scaled(1024));
  Scalars(3, "loss_scale", 512, 512);
  EXPECT_THAT(Say(GradientRoot(3)), HasSubstr("gradient_scale: "));
}

TEST_F(CauseGradientsTest, ARoundNormIsClipping) {
  double squares = 0;
  for (int i = 0; i < kWeights; ++i) squares += std::pow(testing::StatsOf(Gradient(i, 3)).l2, 2);
  const double norm = std::sqrt(squares);
  const auto write = [&](double wanted) {
    Reset();
    for (int i = 0; i < kWeights; ++i) {
      const auto key = Key(WeightName(i), Kind::kWeightGrad);
      Put(3, key, Times(Gradient(i, 3), 0.5 / norm), Times(Gradient(i, 3), wanted / norm));
    }
  };
  write(0.6);
  EXPECT_EQ(Say(GradientRoot(3)),
            "clip_norm: all 6 gradients of weights in ort are 1.2 times those in base at step 3; "
            "the norm of "
            "all of them is 0.5 in base and 0.6 in ort: they are clipped to different norms");
  write(0.8888123);
  EXPECT_THAT(Say(GradientRoot(3)), HasSubstr("those of base are clipped, those of ort are not"));
}

class CauseClippedTest : public CauseGradientsTest {
 protected:
  // Base clips to a norm of 1, ort to `norm_b`, after its second gradient, which is `size` times as
  // large as the others, was multiplied by 1.5: all others make room for it.
  void Write(double norm_b, double size = 1) {
    Reset();
    const auto factor_of = [](int i) { return i == 1 ? 1.5 : 1.0; };
    const auto gradient = [=](int i) { return Times(Gradient(i, 3), i == 1 ? size : 1); };
    double squares_a = 0, squares_b = 0;
    for (int i = 0; i < kWeights; ++i) {
      const double squares = std::pow(testing::StatsOf(gradient(i)).l2, 2);
      squares_a += squares;
      squares_b += squares * factor_of(i) * factor_of(i);
    }
    for (int i = 0; i < kWeights; ++i) {
      Put(3, Key(WeightName(i), Kind::kWeightGrad), Times(gradient(i), 1 / std::sqrt(squares_a)),
          Times(gradient(i), norm_b * factor_of(i) / std::sqrt(squares_b)));
    }
  }
};

TEST_F(CauseClippedTest, GradientsThatAreClippedToOneNormAreNotClippedDifferently) {
  Write(1);
  EXPECT_THAT(Say(GradientRoot(3)),
              HasSubstr("gradient_scale: 5 of 6 gradients of weights in ort are 0.9"));
  Write(2);
  EXPECT_THAT(Say(GradientRoot(3)), HasSubstr("clip_norm: 5 of 6 gradients of weights"));
}

TEST_F(CauseClippedTest, TheExceptionHasAFactorOfItsOwn) {
  for (const double size :
       {1.0, 10.0}) {  // 10: its own difference is smaller than that of the others
    Write(1, size);
    EXPECT_THAT(Say(Root(3, Key(WeightName(1), Kind::kWeightGrad))),
                HasSubstr("tensor_scale: weight grad layers.1.weight in ort is 1.5 times that in "
                          "base at step 3, apart "
                          "from clipping, which makes all other gradients 0."))
        << size;
  }
}

TEST_F(CauseGradientsTest, ARootWithAFactorOfItsOwnIsNotOneOfAllGradients) {
  const auto write = [&](double own) {
    Reset();
    Gradients(3, [=](int i, const Tensor& tensor) { return Times(tensor, i == 0 ? own : 0.99); });
  };
  write(1.7);
  EXPECT_EQ(Say(GradientRoot(3)),
            "tensor_scale: weight grad layers.0.weight in ort is 1.7 times that in base at step 3");
  write(1.03);
  EXPECT_THAT(Say(GradientRoot(3)), HasSubstr("gradient_scale: 5 of 6 gradients of weights"));
}

TEST_F(CauseGradientsTest, RanksThatDifferInOneRunOnlyWereNotReduced) {
  const auto key = Key("w", Kind::kWeightGrad);
  Reset(/*world_size=*/2);
  Put(3, key, Noise(1), Noise(2), 0);
  Put(3, key, Noise(1), Noise(3), 1);
  const auto cause = Ask(Root(3, key));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rule, "reduction");
  EXPECT_EQ(cause->text,
            "ranks 0 and 1 of ort have different gradients at step 3, those of base agree: in ort "
            "they were not "
            "reduced over the ranks (all-reduce)");
  EXPECT_EQ(cause->confidence, Confidence::kCertain);
}

// A mean over each rank's own tokens.
TEST_F(CauseGradientsTest, AFactorThatDiffersByRankIsFoundNextToALossThatDiffers) {
  Reset(/*world_size=*/2);
  Put(3, Key("criterion", Kind::kGradOutput), Noise(1), Times(Noise(1), 0.8), 0);
  Put(3, Key("criterion", Kind::kGradOutput), Noise(2), Times(Noise(2), 1.2), 1);
  Divergence root;
  root.step = 3;
  root.stage = Stage::kLoss;
  root.activation = "loss";
  root.mode = "train";
  EXPECT_EQ(Say(root),
            "gradient_scale: grad output criterion in ort is 0.8 times that in base on rank 0 and "
            "1.2 times on rank 1 at step 3: each rank scales by itself");
  // All gradients of one rank having its factor is no second cause.
  for (int i = 0; i < 12; ++i) {
    const TensorKey key = Key("layers." + std::to_string(i), Kind::kGradOutput);
    Put(3, key, Noise(10 + i), Times(Noise(10 + i), 0.8), 0);
  }
  EXPECT_EQ(AskAll(root).size(), 1u);
}

// The gradients next to the loss agree, so another part of it differs.
TEST_F(CauseGradientsTest, ATermOfALossIsNamedByTheFirstGradientThatDiffers) {
  Divergence root;
  root.step = 3;
  root.stage = Stage::kLoss;
  root.activation = "loss";
  root.reason = Reason::kNumeric;
  root.mode = "train";
  const auto write = [&](const std::vector<std::pair<std::string, double>>& apart) {
    Reset();
    std::uint64_t seed = 1;
    for (const auto& [name, size] : apart) {
      const Tensor here = Noise(seed++);
      Put(3, Key(name, Kind::kGradOutput), here, Sum(here, Noise(99, 256, size)));
    }
    Scalars(3, "loss", 2, 2.5);
  };
  write({{"criterion", 0}, {"norm", 1e-7}, {"router", 0.5}, {"mlp", 0.2}});
  const auto cause = Ask(root);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rule, "loss_term");
  EXPECT_EQ(
      cause->text,
      "the term of loss that is computed from router differs at step 3: the gradient of router "
      "does, and those before it agree, from that of criterion on");
  ASSERT_TRUE(cause->at);
  EXPECT_EQ(cause->at->activation, "router");
  EXPECT_EQ(cause->at->stage, Stage::kBackward);
  EXPECT_NEAR(*cause->at->distance, 0.5, 0.2);
  write({{"criterion", 0.5}, {"norm", 0.5}, {"router", 0.5}});
  EXPECT_EQ(Say(root), "nothing") << "the loss as a whole";
  write({{"criterion", 1e-4}, {"norm", 1e-4}, {"router", 2e-4}});
  EXPECT_EQ(Say(root), "nothing") << "no more than what comes before";
  write({{"criterion", 0}, {"norm", 1e-7}, {"router", 1e-7}});
  EXPECT_EQ(Say(root), "nothing") << "only the number that was logged";
}

// One rank clips or scales by itself.
TEST_F(CauseGradientsTest, AFactorThatDiffersByRankIsTheFinding) {
  const auto key = Key("w", Kind::kWeightGrad);
  for (const std::uint32_t rank : {0u, 1u}) {
    Reset(/*world_size=*/2);
    Put(3, key, Noise(1), Noise(1), 0);
    Put(3, key, Noise(1), Times(Noise(1), 0.5), 1);
    Divergence root = Root(3, key);
    root.rank = rank;
    EXPECT_EQ(Say(root),
              "gradient_scale: weight grad w in ort is 1 times that in base on rank 0 and 0.5 "
              "times on rank 1 at "
              "step 3: each rank scales by itself")
        << rank;
  }
  Reset(/*world_size=*/2);
  for (const std::uint32_t rank : {0u, 1u}) Put(3, key, Noise(1), Times(Noise(1), 0.5), rank);
  EXPECT_THAT(Say(Root(3, key)), HasSubstr("tensor_scale: ")) << "the same factor on all ranks";
}

// Each of two ranks holds half of every weight. Base clips all of them together to a norm of 1.
class CauseShardsTest : public CauseGradientsTest {
 protected:
  void Write(std::uint64_t step, const std::function<double(double whole, double own)>& norm_of_b,
             std::uint64_t seed = 3) {
    double own[2] = {0, 0};
    for (int i = 0; i < kWeights; ++i) {
      for (const int rank : {0, 1})
        own[rank] += std::pow(testing::StatsOf(Half(i, rank, seed)).l2, 2);
    }
    const double whole = std::sqrt(own[0] + own[1]);
    for (int i = 0; i < kWeights; ++i) {
      for (const int rank : {0, 1}) {
        const Tensor half = Half(i, rank, seed);
        Shard(*a_, rank, step, i, Times(half, 1 / whole));
        Shard(*b_, rank, step, i, Times(half, norm_of_b(whole, std::sqrt(own[rank])) / whole));
      }
    }
  }

 private:
  static Tensor Half(int i, int rank, std::uint64_t seed) {
    return Times(Gradient(i, seed + 100 * static_cast<std::uint64_t>(rank)), 1 + rank);
  }
  static void Shard(RunWriter& run, int rank, std::uint64_t step, int i, const Tensor& half) {
    const auto size = static_cast<std::int64_t>(half.values.size());
    Placement placement;
    placement.global_shape = {2 * size};
    placement.boxes = {rank * size, size};
    Layout layout{.dtype = DType::kF32, .shape = {size}, .placement = placement};
    run.Record(static_cast<std::uint32_t>(rank), step, Key(WeightName(i), Kind::kWeightGrad),
               layout, testing::StatsOf(half), testing::SketchOf(half, 16));
  }
};

TEST_F(CauseShardsTest, ClippingIsReadFromTheNormOfTheWholeModel) {
  Reset(/*world_size=*/2);
  Write(3, [](double, double) { return 0.7; });
  EXPECT_THAT(Say(GradientRoot(3)), HasSubstr("the norm of all of them is 1 in base and 0.7 in "
                                              "ort: they are clipped to different norms"));
  Reset(/*world_size=*/2);
  Write(3, [](double whole, double) { return whole; });
  EXPECT_THAT(Say(GradientRoot(3)), HasSubstr("those of base are clipped, those of ort are not"));
}

TEST_F(CauseShardsTest, ARankThatClipsItsOwnPartIsFound) {
  Reset(/*world_size=*/2);
  Write(3, [](double whole, double own) { return whole / own; });
  const std::string said = Say(GradientRoot(3));
  EXPECT_THAT(said, HasSubstr("gradient_scale: weight grad layers.0.weight in ort is "));
  EXPECT_THAT(said, HasSubstr("each rank scales by itself: the norm of its own part is 1 in ort"));
}

// Experts, most of the tensors, are scaled; what agrees bit for bit has no factor.
TEST_F(CauseClippedTest, AFactorOfSomeGradientsIsNotOneOfAllOthers) {
  for (int i = 0; i < 10; ++i)
    Put(3, Key("w" + std::to_string(i), Kind::kWeightGrad), Gradient(i, 3),
        Times(Gradient(i, 3), i < 8 ? 2 : 1));
  EXPECT_EQ(Say(Root(3, Key("w0", Kind::kWeightGrad))),
            "tensor_scale: weight grad w0 in ort is 2 times that in base at step 3");
}

TEST_F(CauseGradientsTest, GradientsThatAreClippedBeforeTheyAreUnscaledAreOfTheRunThatDoes) {
  double squares = 0;
  for (int i = 0; i < kWeights; ++i) squares += std::pow(testing::StatsOf(Gradient(i, 3)).l2, 2);
  const double norm = std::sqrt(squares);
  // 0.7123: base need not clip at all.
  for (const double norm_a : {1.0, 0.7123}) {
    for (const bool in_b : {true, false}) {
      Reset();
      const double wrong = 1.0 / 1024;
      for (int i = 0; i < kWeights; ++i) {
        Put(3, Key(WeightName(i), Kind::kWeightGrad),
            Times(Gradient(i, 3), (in_b ? norm_a : wrong) / norm),
            Times(Gradient(i, 3), (in_b ? wrong : norm_a) / norm));
      }
      Scalars(3, "loss_scale", 1024, 1024);
      const std::string said = Say(GradientRoot(3));
      EXPECT_THAT(said, HasSubstr("clip_norm: all 6 gradients of weights in ort are "));
      EXPECT_THAT(
          said,
          HasSubstr(
              std::string("; those of ") + (in_b ? "ort" : "base") +
              " have a norm of 1 times 1 / 1024, the loss scale: they are clipped before they "
              "are unscaled"));
    }
  }
}

// In the step before, both unscaled: the run whose norm has changed by the scale is the one that
// departs.
TEST_F(CauseGradientsTest, TheRunThatDepartsIsNotUnscaledOrIsUnscaledTwice) {
  const auto say = [&](double a, double b) {
    Reset();
    Gradients(2, Same);
    for (int i = 0; i < kWeights; ++i)
      Put(3, Key(WeightName(i), Kind::kWeightGrad), Times(Gradient(i, 3), a),
          Times(Gradient(i, 3), b));
    for (const std::uint64_t step : {2u, 3u}) Scalars(step, "loss_scale", 1024, 1024);
    return Say(GradientRoot(3));
  };
  EXPECT_THAT(say(1, 1024),
              HasSubstr("that is the loss scale: the gradients of ort are not unscaled"));
  EXPECT_THAT(say(1024, 1),
              HasSubstr("that is the loss scale: the gradients of base are not unscaled"));
  EXPECT_THAT(say(1, 1.0 / 1024),
              HasSubstr("that is the loss scale: the gradients of ort are divided by it twice"));
}

TEST_F(CauseGradientsTest, RanksThatDifferInBothRunsSayNothing) {
  const auto key = Key("w", Kind::kWeightGrad);
  Reset(/*world_size=*/2);
  Put(3, key, Noise(1), Noise(2), 0);
  Put(3, key, Noise(4), Noise(3), 1);
  EXPECT_EQ(Say(Root(3, key)), "nothing");
}

TEST_F(CauseGradientsTest, AWeightThatKeptItsBitsWasNotUpdated) {
  const auto w = Key("w", Kind::kWeight), v = Key("v", Kind::kWeight);
  Both(2, w, Noise(1));
  Both(2, v, Noise(2));
  Both(3, Key("w", Kind::kWeightGrad), Noise(5));
  Both(3, Key("v", Kind::kWeightGrad), Noise(6));
  Put(3, w, Noise(3), Noise(1));
  Both(3, v, Noise(4));
  EXPECT_EQ(Say(Root(3, w)),
            "not_updated: w was not updated in ort at step 3; 1 of 2 weights with a gradient were");
}

// A clamp, an average that is copied back, weights that are loaded: no update does that.
TEST_F(CauseGradientsTest, AWeightThatMovedFartherThanAnUpdateWasChangedBesideIt) {
  const auto w = Key("fc.w", Kind::kWeight), out = Key("fc", Kind::kOutput);
  const auto say = [&](const Tensor& of_b, double gradient_of_b, const char* root = "fc") {
    Reset();
    Both(2, w, Noise(1));
    Put(3, out, Noise(3), Noise(4));
    Put(3, Key("fc.w", Kind::kWeightGrad), Noise(5), Times(Noise(5), gradient_of_b));
    Put(3, w, Sum(Noise(1), Noise(7, 256, 0.01)), of_b);
    return Say(Root(3, Key(root, Kind::kOutput)));
  };
  const Tensor clamped = Changed(Noise(1), [](double x) { return std::clamp(x, -0.5, 0.5); });
  EXPECT_THAT(say(clamped, 1),
              HasSubstr("changed_beside: fc.w changed in ort between the update of step 2 and this "
                        "pass, not by its optimizer: it moved by "));
  EXPECT_EQ(say(Sum(Noise(1), Noise(8, 256, 0.01)), 1), "nothing") << "an update";
  EXPECT_EQ(say(Sum(Noise(1), Noise(8, 256, 0.1)), 10), "nothing") << "of a larger gradient";
  EXPECT_EQ(say(clamped, 1, "other"), "nothing") << "another module's";
}

// A buffer is recorded when it has changed.
TEST_F(CauseGradientsTest, ABufferThatStaysWhereItWasWasNotUpdated) {
  const auto mean = Key("norm.running", Kind::kBuffer), out = Key("norm", Kind::kOutput);
  const auto say = [&](bool before_in_b) {
    Reset();
    a_->Observe(0, 2, mean, Noise(2));
    if (before_in_b) b_->Observe(0, 2, mean, Noise(2));
    Put(3, out, Noise(3), Noise(4));
    a_->Observe(0, 3, mean, Noise(5));
    return Say(Root(3, out));
  };
  EXPECT_EQ(
      say(true),
      "not_updated: buffer norm.running was not updated in ort at step 3, as it was in the step "
      "before and in base");
  EXPECT_EQ(say(false), "nothing") << "it never was";
}

TEST_F(CauseGradientsTest, AWeightThatMovedALittleWasUpdated) {
  const auto w = Key("w", Kind::kWeight);
  Both(2, w, Noise(1));
  Both(3, Key("w", Kind::kWeightGrad), Noise(5));
  Put(3, w, Noise(3), Times(Noise(1), 1 + 1e-6));
  EXPECT_EQ(Say(Root(3, w)), "nothing");
}

TEST_F(CauseGradientsTest, AnUpdateThatWasSkippedIsOneOfAllWeights) {
  for (const char* name : {"w", "v"}) {
    Both(2, Key(name, Kind::kWeight), Noise(1));
    Both(3, Key(name, Kind::kWeightGrad), Noise(5));
    Put(3, Key(name, Kind::kWeight), Noise(3), Noise(1));
  }
  Scalars(3, "found_inf", 0, 1);
  EXPECT_EQ(Say(Root(3, Key("w", Kind::kWeight))),
            "not_updated: no weight was updated in ort at step 3: its gradients were not finite, "
            "so the update "
            "was skipped");
}

class CauseResumeTest : public CauseGradientsTest {
 protected:
  // B's step 3 is of its second launch, with the moments given.
  void Resume(const std::function<Tensor(int)>& moment) {
    Gradients(2, Same);
    b_->Commit();
    b_.emplace(*store_, "ort");
    Gradients(3, Same);
    for (int i = 0; i < kWeights; ++i) {
      const Tensor kept = Sum(Times(Gradient(i, 3), 0.1), Times(Gradient(i, 2), 0.09));
      Put(3, Key(WeightName(i), Kind::kWeight), Noise(1), Noise(2));
      Put(3, Key(WeightName(i), Kind::kOptimizerState, "exp_avg"), kept, moment(i));
    }
  }
};

TEST_F(CauseResumeTest, StateThatIsAMultipleOfTheGradientBeganAtZero) {
  Resume([](int i) { return Times(Gradient(i, 3), 0.1); });
  const auto cause = Ask(Root(3, Key(WeightName(0), Kind::kWeight)));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rule, "resume");
  EXPECT_EQ(cause->text,
            "ort was launched again at step 3 without the optimizer's state: there it begins at "
            "zero, that of "
            "base continues");
  EXPECT_EQ(cause->confidence, Confidence::kCertain);
}

TEST_F(CauseResumeTest, StateThatGoesOnIsNotLost) {
  Resume([](int i) { return Sum(Times(Gradient(i, 3), 0.1), Times(Gradient(i, 2), 0.09)); });
  const auto cause = Ask(Root(3, Key(WeightName(0), Kind::kWeight)));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->confidence, Confidence::kLikely) << cause->text;
  EXPECT_THAT(cause->text, HasSubstr("gradients agree and updates do not"));
}

TEST_F(CauseGradientsTest, StateThatIsAMultipleInEveryStepDoesNotBeginAtZero) {
  const auto write = [&](double old_share) {
    Reset();
    for (std::uint64_t step : {2u, 3u}) {
      for (int i = 0; i < kWeights; ++i) {
        const Tensor fresh = Times(Gradient(i, step), 0.1);
        const Tensor kept = Sum(fresh, Times(Gradient(i, step - 1), 0.09));
        Both(step, Key(WeightName(i), Kind::kWeightGrad), Gradient(i, step));
        Put(step, Key(WeightName(i), Kind::kWeight), Noise(1 + step), Noise(2 + step));
        Put(step, Key(WeightName(i), Kind::kOptimizerState, "exp_avg"), kept,
            step == 3 ? fresh : Sum(fresh, Times(Gradient(i, step - 1), old_share)));
      }
    }
  };
  write(0.09);
  EXPECT_THAT(Say(Root(3, Key(WeightName(0), Kind::kWeight))),
              HasSubstr("optimizer_state: the optimizer's state of ort begins at zero at step 3"));
  write(0);  // without momentum
  EXPECT_EQ(Say(Root(3, Key(WeightName(0), Kind::kWeight))), "nothing");
}

TEST_F(CauseResumeTest, ALaunchThatBothRunsMadeSaysNothing) {
  Gradients(2, Same);
  a_->Commit();
  b_->Commit();
  a_.emplace(*store_, "base");
  b_.emplace(*store_, "ort");
  const auto key = Key("w", Kind::kWeight);
  Put(3, key, Noise(1), Noise(2));
  EXPECT_EQ(Say(Root(3, key)), "nothing");
}

TEST_F(CauseResumeTest, ALearningRateThatTheLaunchBroughtIsNamed) {
  Gradients(2, Same);
  b_->Commit();
  b_.emplace(*store_, "ort");
  const auto key = Key("w", Kind::kWeight);
  Put(3, key, Noise(1), Noise(2));
  Scalars(3, "lr/group0", 0.05, 0.1);
  EXPECT_EQ(Say(Root(3, key)),
            "learning_rate: learning rate of group 0 is 0.05 in base and 0.1 in ort at step 3, "
            "where ort was "
            "launched again");
}

TEST_F(CauseGradientsTest, ARootThatIsAFusedModuleHasACauseLikeAnyOther) {
  map_ = "(.*)\\.q\\.(.*), \\1.k.\\2 -> \\1.qk.\\2";
  const auto weight = [](const std::string& module) {
    return Key(module + ".weight", Kind::kWeightGrad);
  };
  Tensor fused;
  for (int part = 0; part < 2; ++part) {
    const Tensor gradient = Gradient(part, 3);
    a_->Observe(0, 3, weight(part == 0 ? "attn.q" : "attn.k"), gradient);
    for (const double x : gradient.values) fused.values.push_back(2 * x);
  }
  b_->Observe(0, 3, weight("attn.qk"), fused);
  for (int i = 2; i < kWeights; ++i)
    Put(3, Key(WeightName(i), Kind::kWeightGrad), Gradient(i, 3), Times(Gradient(i, 3), 2));
  EXPECT_THAT(Say(Root(3, weight("attn.q"))), HasSubstr("2 times"));
}

}  // namespace
}  // namespace statcollect::query
