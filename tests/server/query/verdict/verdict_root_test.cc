// Which difference Diff names as the root, and what it says of it.
#include <limits>

#include "tests/server/query/verdict/verdict_fixture.h"

namespace statcollect::query {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Lt;
using ::testing::SizeIs;

class VerdictRootTest : public VerdictTest {
 protected:
  // Replaces one tensor in each step from `from` on.
  static Edit Replace(const TensorKey& at, std::function<std::optional<Tensor>(Tensor)> change,
                      std::uint64_t from = 0) {
    return [=](std::uint64_t step, const TensorKey& key, Tensor tensor) -> std::optional<Tensor> {
      return key == at && step >= from ? change(std::move(tensor)) : std::move(tensor);
    };
  }
  static void ExpectLearningRateAt4(const DiffReport& report) {
    ASSERT_TRUE(report.root);
    EXPECT_EQ(report.root->at.step, 4u);
    EXPECT_EQ(report.root->at.stage, Stage::kOptimizer);
    ASSERT_FALSE(report.root->causes.empty());
    EXPECT_EQ(report.root->causes[0].rule, "learning_rate");
  }
  static Level RoundingEverywhere() { return RoundingOf(kRounding); }
  // A setting of the optimizer, `b` from step `from` on.
  void Record(const std::string& name, double a, double b, std::uint64_t from) {
    before_ = [=, this](RunWriter& run, bool is_b) {
      for (std::uint64_t step = 0; step < options_.steps; ++step)
        run.Scalar(0, step, name, is_b && step >= from ? b : a);
    };
  }
  static Level OfUpdates(double size, std::uint64_t from, const std::string& of = "") {
    return [=](std::uint64_t step, const TensorKey& key) {
      const bool updated = step == from && key.kind == Kind::kWeight && !IsInitial(key);
      if (updated) return key.name.starts_with(of) ? size : 0.0;
      return step > from && key.kind != Kind::kBatch ? size : 0.0;
    };
  }
};

// --- a jump

TEST_F(VerdictRootTest, AJumpOnTopOfRounding) {
  const DiffReport report = DiffWith(Sum(RoundingEverywhere(), BugAt("blocks.2.ln", 1e-5)));
  ASSERT_EQ(Say(report), "0 forward blocks.2.ln");
  const Root& root = *report.root;
  EXPECT_THAT(root.confidence, AnyOf(Confidence::kCertain, Confidence::kLikely));
  ASSERT_TRUE(root.times_expected);
  EXPECT_THAT(*root.times_expected, ::testing::AllOf(Gt(30), Lt(130))) << "planted: 1e-5 on 1e-7";
  EXPECT_FALSE(root.agreeing) << "what comes before it does not agree bit for bit";
  EXPECT_THAT(root.because, Contains(HasSubstr("2 modules of its kind stay at about")));
  EXPECT_NEAR(*root.at.distance, 1e-5, 4e-6);
  EXPECT_EQ(root.at.previous, "blocks.1");
  EXPECT_NEAR(*root.at.previous_distance, kRounding, 7e-8);
  EXPECT_TRUE(root.at.origin);
}

TEST_F(VerdictRootTest, AJumpOfTwiceTheRoundingIsNone) {
  ExpectExplained(DiffWith(Sum(RoundingEverywhere(), BugAt("blocks.2.ln", 2e-7))));
}

TEST_F(VerdictRootTest, AnUnsureRootHasAlternatives) {
  // Two modules a little above what is believed.
  const DiffReport report = DiffWith([](std::uint64_t step, const TensorKey& key) {
    if (IsInitial(key) || key.kind == Kind::kBatch) return 0.0;
    const bool at =
        key.kind == Kind::kOutput && (key.name == "blocks.1.ln" || key.name == "blocks.3.fc");
    return step == 0 && at ? 9e-7 : kRounding;
  });
  ASSERT_EQ(Say(report), "0 forward blocks.1.ln");
  EXPECT_NE(report.root->confidence, Confidence::kCertain);
  ASSERT_THAT(report.root->alternatives, SizeIs(1));
  EXPECT_EQ(report.root->alternatives[0].activation, "blocks.3.fc");
}

TEST_F(VerdictRootTest, ACertainRootHasNoAlternatives) {
  const DiffReport report = DiffWith(BugAt("blocks.2.ln", 1e-3, 1));
  ASSERT_EQ(Say(report), "1 forward blocks.2.ln");
  EXPECT_EQ(report.root->confidence, Confidence::kCertain);
  EXPECT_THAT(report.root->alternatives, IsEmpty());
}

// However large it is: without twins, what a kernel rounds by is a guess.
TEST_F(VerdictRootTest, ADistanceBeyondWhatTheRulesExpectIsLikelyAtMost) {
  for (const bool rounding : {false, true}) {
    store_ = std::make_unique<FakeStore>();
    const DiffReport report =
        DiffWith(rounding ? Sum(RoundingEverywhere(), BugAt("embed", 0.1)) : BugAt("embed", 0.1));
    ASSERT_EQ(Say(report), "0 forward embed") << rounding;
    EXPECT_EQ(report.root->confidence, Confidence::kLikely) << rounding;
  }
}

TEST_F(VerdictRootTest, AJumpWithoutRoundingCountsWhatAgrees) {
  const DiffReport report = DiffWith(BugAt("blocks.2.ln", 1e-3, 1));
  ASSERT_EQ(Say(report), "1 forward blocks.2.ln");
  // All of step 0; of step 1 the batch, embed and two blocks.
  EXPECT_EQ(report.root->agreeing, 72u + 1 + 1 + 2 * 3);
  EXPECT_EQ(report.root->confidence, Confidence::kCertain);
  EXPECT_THAT(report.root->because, Contains("everything before it agrees bit for bit"));
}

TEST_F(VerdictRootTest, ATinyDifferenceIsARootWhereTheSameKernelGaveEqualBits) {
  const DiffReport report = DiffWith(BugAt("blocks.2.ln", 1e-6, 1));
  ASSERT_EQ(Say(report), "1 forward blocks.2.ln");
  EXPECT_THAT(report.root->because, Contains(HasSubstr("gave equal bits in the steps before")));
  EXPECT_THAT(report.root->because,
              Contains(HasSubstr("2 modules of its kind and shape give equal bits")));
  EXPECT_TRUE(report.root->agreeing);
}

// A run that goes on from a checkpoint on another processor.
TEST_F(VerdictRootTest, EqualBitsOfAnEarlierLaunchSayNothingOfTheKernelsOfALaterOne) {
  const auto write = [&](bool launched_again) {
    store_ = std::make_unique<FakeStore>();
    for (const char* run : {"a", "b"}) {
      const bool is_b = run[0] == 'b';
      std::optional<RunWriter> writer(std::in_place, *store_, run);
      options_.first_step = 0;
      options_.steps = 3;
      WriteRank(*writer, 0, Nothing());
      if (is_b && launched_again) {
        writer->Commit();
        writer.emplace(*store_, run);
      }
      const Tensor batch = Noise(1), weight = Noise(2);
      for (std::uint64_t step = 3; step < 6; ++step) {
        writer->Observe(0, step, Key("ids", Kind::kBatch), batch);
        writer->Observe(0, step, Key("odd"),
                        is_b ? Differing(Noise(step), 3e-7, step) : Noise(step));
      }
      writer->Commit();
    }
    return Ask();
  };
  EXPECT_EQ(Say(write(false)), "3 forward odd");
  EXPECT_EQ(Say(write(true)), "none");
}

TEST_F(VerdictRootTest, AnotherKernelRoundsAtItsFirstUse) {
  // The first LayerNorm of the first step is the first that differs, and so do its sisters.
  ExpectExplained(DiffWith([](std::uint64_t, const TensorKey& key) {
    return IsInitial(key) || key.kind == Kind::kBatch || key.name == "embed" ? 0.0 : kRounding;
  }));
}

// --- settings

TEST_F(VerdictRootTest, AnotherLearningRate) {
  options_.steps = 6;
  Record("lr/group0", 0.1, 0.05, 4);
  const DiffReport report = DiffWith(OfUpdates(0.5, 4));
  EXPECT_EQ(Say(report), "4 optimizer embed.weight");
  EXPECT_EQ(report.root->confidence, Confidence::kCertain);
  ASSERT_FALSE(report.root->causes.empty());
  EXPECT_EQ(report.root->causes[0].rule, "learning_rate");
}

TEST_F(VerdictRootTest, AnotherLearningRateOnTopOfRounding) {
  options_.steps = 6;
  Record("lr/group0", 0.1, 0.1001, 4);
  ExpectLearningRateAt4(DiffWith(Sum(RoundingEverywhere(), OfUpdates(1e-3, 4))));
}

TEST_F(VerdictRootTest, AHardlyOtherLearningRate) {
  options_.steps = 6;
  Record("lr/group0", 0.1, 0.1 * (1 + 1e-6), 4);
  ExpectLearningRateAt4(DiffWith(Sum(RoundingEverywhere(), OfUpdates(1e-6, 4))));
}

TEST_F(VerdictRootTest, AWeightDecayThatOneRunChangedIsFound) {
  options_.steps = 6;
  before_ = [](RunWriter& run, bool is_b) {
    run.Scalar(0, 0, "weight_decay/group0", 0.1);
    if (is_b) run.Scalar(0, 4, "weight_decay/group0", 0.2);
  };
  const DiffReport report = DiffWith(Sum(RoundingEverywhere(), OfUpdates(1e-6, 4)));
  EXPECT_EQ(Say(report), "4 optimizer embed.weight");
  ASSERT_FALSE(report.root->causes.empty());
  EXPECT_EQ(report.root->causes[0].rule, "weight_decay");
}

// Of a group of biases, say.
TEST_F(VerdictRootTest, AWeightDecayIsPlacedAtTheUpdatesThatStandOut) {
  options_.steps = 6;
  before_ = [](RunWriter& run, bool is_b) {
    run.Scalar(0, 4, "weight_decay/group1", is_b ? 0.1 : 0.0);
  };
  const Level of_biases = [](std::uint64_t step, const TensorKey& key) {
    return step >= 4 && key.kind == Kind::kWeight && key.name.ends_with("bias") ? 1e-3 : 0.0;
  };
  EXPECT_EQ(Say(DiffWith(Sum(RoundingEverywhere(), of_biases))), "4 optimizer blocks.0.fc.bias");
}

TEST_F(VerdictRootTest, ALearningRateBeforeALaterLaunchIsFound) {
  options_.steps = 6;
  Record("lr/group0", 0.1, 0.1001, 4);
  Write(Sum(RoundingEverywhere(), OfUpdates(1e-3, 4)));
  for (const char* run : {"a", "b"}) {
    RunWriter later(*store_, run);
    later.NarrowSketches();
    later.Observe(0, 6, Key("embed"), Noise(5)).Scalar(0, 6, "lr/group0", 0.1).Commit();
  }
  ExpectLearningRateAt4(Ask());
}

TEST_F(VerdictRootTest, AnEqualLearningRateIsNoRoot) {
  options_.steps = 6;
  Record("lr/group0", 0.1, 0.1, 4);
  ExpectExplained(DiffWith(RoundingEverywhere()));
}

TEST_F(VerdictRootTest, AnotherScalarIsNoRoot) {
  options_.steps = 6;
  Record("grad_norm", 0.1, 0.2, 4);
  ExpectExplained(DiffWith(RoundingEverywhere()));
}

TEST_F(VerdictRootTest, ALearningRateNamesItsModel) {
  options_.steps = 6;
  Record("head/lr/group0", 0.1, 0.2, 4);
  const DiffReport report = DiffWith(Sum(RoundingEverywhere(), OfUpdates(0.5, 4, "head.")));
  EXPECT_EQ(Say(report), "4 optimizer head.weight");
}

// --- what comes first of all

TEST_F(VerdictRootTest, OtherInitialWeights) {
  const DiffReport report = DiffWith([](std::uint64_t, const TensorKey& key) {
    if (IsInitial(key)) return key.name == "blocks.1.fc.weight" ? 1e-3 : 0.0;
    return key.kind == Kind::kBatch ? 0.0 : 1e-3;
  });
  EXPECT_EQ(Say(report), "0 weights blocks.1.fc.weight");
  EXPECT_EQ(report.root->confidence, Confidence::kCertain);
}

TEST_F(VerdictRootTest, AnotherBatch) {
  const DiffReport report = DiffWith([](std::uint64_t step, const TensorKey& key) {
    return step == 0 || IsInitial(key) ? 0.0 : 0.5;
  });
  EXPECT_EQ(Say(report), "1 batch ids");
  EXPECT_EQ(report.root->confidence, Confidence::kCertain);
}

TEST_F(VerdictRootTest, OnlyALoss) {
  const DiffReport report = DiffWith([](std::uint64_t step, const TensorKey& key) {
    return key.name == "loss" && step == 1 ? 1e-2 : 0.0;
  });
  EXPECT_EQ(Say(report), "1 loss loss");
  EXPECT_EQ(report.verdict, Verdict::kDiverged);
  ASSERT_TRUE(report.root->at.a && report.root->at.b);
  EXPECT_EQ(*report.root->at.a->value, 2.3);
  EXPECT_NE(*report.root->at.b->value, 2.3);
}

TEST_F(VerdictRootTest, OnlyARoundedLoss) {
  ExpectExplained(DiffWith(
      [](std::uint64_t, const TensorKey& key) { return key.name == "loss" ? kRounding : 0.0; }));
}

// --- more than values

class StructureTest : public VerdictRootTest {
 protected:
  void ExpectRoot(const DiffReport& report, const std::string& where, Reason reason) {
    ASSERT_EQ(Say(report), where);
    EXPECT_EQ(report.root->at.reason, reason);
    EXPECT_EQ(report.root->confidence, Confidence::kCertain);
    EXPECT_EQ(report.verdict, Verdict::kDiverged);
    EXPECT_FALSE(report.explained_by_rounding);
  }
  const TensorKey at_ = Key("blocks.2.ln");
};

TEST_F(StructureTest, ANotANumber) {
  for (const bool rounding : {false, true}) {
    store_ = std::make_unique<FakeStore>();
    const auto nan = [](Tensor tensor) {
      tensor.values[3] = std::numeric_limits<double>::quiet_NaN();
      return tensor;
    };
    ExpectRoot(DiffWith(rounding ? RoundingEverywhere() : Nothing(), Replace(at_, nan, 1)),
               "1 forward blocks.2.ln", Reason::kNonfinite);
  }
}

TEST_F(StructureTest, AnotherShape) {
  const auto other = [](Tensor tensor) {
    tensor.shape = {2, static_cast<std::int64_t>(tensor.values.size() / 2)};
    return tensor;
  };
  ExpectRoot(DiffWith(RoundingEverywhere(), Replace(at_, other, 1)), "1 forward blocks.2.ln",
             Reason::kShape);
}

TEST_F(StructureTest, AnotherDtype) {
  ExpectRoot(DiffWith(RoundingEverywhere(), Replace(at_, AsBf16, 1)), "1 forward blocks.2.ln",
             Reason::kDType);
}

TEST_F(StructureTest, AMissingTensor) {
  const auto none = [](const Tensor&) { return std::optional<Tensor>(); };
  ExpectRoot(DiffWith(RoundingEverywhere(), Replace(at_, none, 1)), "1 forward blocks.2.ln",
             Reason::kMissingInB);
}

// Without it, clipping to a norm makes all others larger, also those before it.
TEST_F(StructureTest, AMissingGradientComesBeforeOthersOfItsUpdate) {
  const auto clipped = [](std::uint64_t step, const TensorKey& key,
                          Tensor tensor) -> std::optional<Tensor> {
    if (key.kind != Kind::kWeightGrad || step != 1) return tensor;
    if (key.name == "blocks.3.fc.weight") return std::nullopt;
    return Scaled(std::move(tensor), 1.003);
  };
  ExpectRoot(DiffWith(RoundingEverywhere(), clipped), "1 grad blocks.3.fc.weight",
             Reason::kMissingInB);
}

// Such as that of an output layer that only one run has untied.
TEST_F(StructureTest, AMissingWeightComesBeforeItsGradient) {
  const auto untied = [](std::uint64_t, const TensorKey& key,
                         Tensor tensor) -> std::optional<Tensor> {
    if (key.name == "blocks.3.fc.weight") return std::nullopt;
    return key.kind == Kind::kWeightGrad ? Scaled(std::move(tensor), 1.003) : tensor;
  };
  ExpectRoot(DiffWith(Nothing(), untied), "0 weights blocks.3.fc.weight", Reason::kMissingInB);
}

TEST_F(StructureTest, AMissingTensorIsFoundBehindMoreRowsThanAreListed) {
  const auto late = [](std::uint64_t step, const TensorKey& key,
                       Tensor tensor) -> std::optional<Tensor> {
    if (key == Key("head") && step == 2) return std::nullopt;
    return tensor;
  };
  Write(RoundingEverywhere(), late);
  DiffRequest request;
  request.tolerance = 1e-9;
  request.top = 1;
  ExpectRoot(Ask(request), "2 forward head", Reason::kMissingInB);
}

TEST_F(StructureTest, AnotherOrder) {
  swapped_from_ = 1;
  ExpectRoot(DiffWith(Sum(RoundingEverywhere(), BugAt("blocks.2.ln", 0.1, 1))),
             "1 forward blocks.2.ln", Reason::kOrder);
}

// Such as branches that do not depend on each other.
TEST_F(StructureTest, AnotherOrderOfValuesThatRoundingExplains) {
  options_.gradients = false;
  swapped_from_ = 1;
  const DiffReport report = DiffWith(RoundingEverywhere());
  ExpectExplained(report);
  EXPECT_THAT(report.notes, Contains(HasSubstr("different order")));
}

TEST_F(StructureTest, AJumpBeforeItComesFirst) {
  const auto none = [](const Tensor&) { return std::optional<Tensor>(); };
  const DiffReport report =
      DiffWith(Sum(RoundingEverywhere(), BugAt("blocks.1.ln", 1e-4)), Replace(at_, none, 1));
  EXPECT_EQ(Say(report), "0 forward blocks.1.ln");
  EXPECT_EQ(report.verdict, Verdict::kDiverged);
}

TEST_F(StructureTest, AJumpAfterItComesSecond) {
  const auto none = [](const Tensor&) { return std::optional<Tensor>(); };
  ExpectRoot(
      DiffWith(Sum(RoundingEverywhere(), BugAt("blocks.1.ln", 1e-4, 2)), Replace(at_, none, 1)),
      "1 forward blocks.2.ln", Reason::kMissingInB);
}

// Gradients are accumulated over micro-batches; the loss of the second follows its own forward
// pass.
TEST_F(VerdictRootTest, ALossStandsBehindTheForwardPassOfItsMicroBatch) {
  const auto say = [&](bool forward_differs) {
    store_ = std::make_unique<FakeStore>();
    for (const bool is_b : {false, true}) {
      RunWriter run(*store_, is_b ? "b" : "a", 1, 16);
      for (const std::uint32_t micro_batch : {0u, 1u}) {
        const bool differs = is_b && micro_batch == 1;
        for (const char* const module : {"fc", "head"}) {
          const TensorKey key = Key(module, Kind::kOutput, "", micro_batch);
          const Tensor output = Noise(SeedOf(key, micro_batch));
          run.Observe(0, 0, key, differs && forward_differs ? Differing(output, 1e-2, 3) : output);
        }
        run.Scalar(0, 0, "loss", differs ? 2.5 : 2.4, micro_batch);
        const TensorKey key = Key("head", Kind::kGradOutput, "", micro_batch);
        const Tensor gradient = Noise(SeedOf(key, micro_batch));
        run.Observe(0, 0, key, differs ? Differing(gradient, 1e-2, 4) : gradient);
      }
      run.Commit();
    }
    const DiffReport report = Ask();
    return Say(report) + ", micro-batch " + std::to_string(report.root->at.micro_batch);
  };
  EXPECT_EQ(say(/*forward_differs=*/true), "0 forward fc, micro-batch 1");
  EXPECT_EQ(say(/*forward_differs=*/false), "0 loss loss, micro-batch 1");
}

// Whatever the root is: a training of replicas that differ is another one.
TEST_F(VerdictRootTest, ReplicasThatDifferAreAmongTheCauses) {
  const auto replicas = [](const DiffReport& report) {
    std::vector<std::string> said;
    for (const Cause& cause : report.root->causes) {
      if (cause.rule == "replicas") said.push_back(cause.text);
    }
    return said;
  };
  options_.ranks = 2;
  const Level bug = [](std::uint64_t, const TensorKey& key) {
    return key == Key("blocks.1.ln") ? 1e-2 : 0.0;
  };
  of_rank_ = [](std::uint32_t rank, const TensorKey& key, Tensor& tensor) {
    if (rank == 1 && key == Key("head.weight", Kind::kWeight)) tensor.values[5] += 1;
  };
  const DiffReport report = DiffWith(bug);
  EXPECT_THAT(replicas(report),
              ElementsAre(HasSubstr("the replicas of b differ at step 0: ranks 0, 1 do not")));
  store_ = std::make_unique<FakeStore>();
  of_rank_ = nullptr;
  EXPECT_THAT(replicas(DiffWith(bug)), IsEmpty());
}

// A rank with a learning rate of its own, or whose weight was damaged.
TEST_F(VerdictRootTest, ReplicasThatDifferAtTheRootAreItsFirstCause) {
  options_.ranks = 2;
  of_rank_ = [](std::uint32_t rank, const TensorKey& key, Tensor& tensor) {
    if (rank == 1 && key == Key("head.weight", Kind::kWeight)) tensor.values[5] += 1;
  };
  const DiffReport report = DiffWith([](std::uint64_t, const TensorKey&) { return 0.0; });
  ASSERT_TRUE(report.root);
  EXPECT_EQ(report.root->at.activation, "head.weight");
  EXPECT_EQ(report.root->at.reason, Reason::kNumeric) << "on its rank, the runs differ as well";
  ASSERT_FALSE(report.root->causes.empty());
  EXPECT_EQ(report.root->causes.front().rule, "replicas");
}

// A gradient that one run has in every step, such as that of an input that a checkpoint needs.
class IdleTest : public StructureTest {
 protected:
  static std::optional<Tensor> Without(std::uint64_t, const TensorKey& key, Tensor tensor) {
    return key == Key("embed", Kind::kGradOutput) ? std::nullopt : std::optional(std::move(tensor));
  }
  static constexpr char kNote[] = "one run only (the first: grad_output embed";
};

TEST_F(IdleTest, AloneIsANote) {
  const DiffReport report = DiffWith(RoundingEverywhere(), Without);
  EXPECT_EQ(Say(report), "none");
  EXPECT_EQ(report.verdict, Verdict::kWithinTolerance);
  EXPECT_THAT(report.notes, Contains(HasSubstr(kNote)));
}

// What both have is explained in the steps before, so nothing there depends on it.
TEST_F(IdleTest, ABugInALaterStepIsTheRoot) {
  const DiffReport report =
      DiffWith(Sum(RoundingEverywhere(), BugAt("blocks.1.ln", 1e-2, /*from=*/2)), Without);
  EXPECT_EQ(Say(report), "2 forward blocks.1.ln");
  EXPECT_THAT(report.notes, Contains(HasSubstr(kNote)));
  EXPECT_EQ(report.root->above_tolerance, 2u);
}

TEST_F(IdleTest, IsTheRootWhereWhatBothHaveIsNotExplained) {
  const auto first = [](std::uint64_t, const TensorKey& key,
                        Tensor tensor) -> std::optional<Tensor> {
    return key == Key("head", Kind::kGradOutput) ? std::nullopt : std::optional(std::move(tensor));
  };
  const DiffReport report = DiffWith(
      [](std::uint64_t, const TensorKey& key) {
        return key == Key("blocks.1.ln", Kind::kGradOutput) ? 0.1 : 0.0;
      },
      first);
  ExpectRoot(report, "0 backward head", Reason::kMissingInB);
}

TEST_F(IdleTest, OtherRecordsOfOneRunAreTheRootAllTheSame) {
  const auto both = [](std::uint64_t step, const TensorKey& key,
                       Tensor tensor) -> std::optional<Tensor> {
    if (key == Key("head") && step == 1) return std::nullopt;
    return Without(step, key, std::move(tensor));
  };
  const Level bug = Sum(RoundingEverywhere(), BugAt("blocks.1.ln", 1e-2, /*from=*/2));
  ExpectRoot(DiffWith(bug, both), "1 forward head", Reason::kMissingInB);
}

}  // namespace
}  // namespace statcollect::query
