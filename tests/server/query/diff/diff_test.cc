// What Diff says about two runs: reasons, stages, order, verdicts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "server/query/query.h"
#include "tests/server/query/premises.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {
namespace {

using ::testing::ElementsAre;
using testing::FakeStore;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Key;
using testing::RunWriter;
using testing::Tensor;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Tensor Wave(double scale, std::size_t n = 64, DType dtype = DType::kF32) {
  Tensor tensor{.dtype = dtype};
  for (std::size_t i = 0; i < n; ++i)
    tensor.values.push_back(scale * std::sin(static_cast<double>(i) + 1));
  return tensor;
}

const std::vector<std::string> kModules = {"embed",    "blocks.0.ln", "blocks.0.mlp",
                                           "blocks.0", "blocks.1.ln", "blocks.1.mlp",
                                           "blocks.1", "head"};

// Writes a plausible step; `change` may replace any tensor (and return nothing to leave it out).
using Change =
    std::function<std::optional<Tensor>(std::uint64_t step, const TensorKey& key, Tensor tensor)>;
Tensor Unchanged(double scale) { return Wave(scale); }

void WriteStep(RunWriter& run, std::uint32_t rank, std::uint64_t step, const Change& change) {
  double scale = 1 + static_cast<double>(step) + 0.01 * rank;
  const auto put = [&](const TensorKey& key, const Tensor& tensor) {
    if (auto changed = change ? change(step, key, tensor) : tensor)
      run.Observe(rank, step, key, *changed);
  };
  if (step == 0) put(Key("embed.weight", Kind::kWeight, "", 0, 0, Mode::kInit), Unchanged(0.5));
  put(Key("ids", Kind::kBatch), {.values = {1, 2, 3, scale}, .dtype = DType::kI64});
  for (const std::string& name : kModules) put(Key(name), Unchanged(scale += 0.1));
  for (auto it = kModules.rbegin(); it != kModules.rend(); ++it)
    put(Key(*it, Kind::kGradOutput), Unchanged(scale += 0.1));
  put(Key("embed.weight", Kind::kWeightGrad), Unchanged(scale += 0.1));
  put(Key("embed.weight", Kind::kWeight), Unchanged(scale += 0.1));
  put(Key("embed.weight", Kind::kOptimizerState, "exp_avg"), Unchanged(scale += 0.1));
}

class DiffTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const Change& change = {}, std::uint64_t steps = 3,
             std::uint32_t ranks = 2, std::uint32_t sketch = 16,
             HashKind hash_kind = HashKind::kContent3) {
    RunWriter run(store_, name, ranks, sketch);
    run.UseHashKind(hash_kind);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      for (std::uint64_t step = 0; step < steps; ++step) {
        WriteStep(run, rank, step, change);
        run.Scalar(rank, step, "loss", 2.0 / static_cast<double>(step + 1));
      }
    }
    run.Commit();
    ASSERT_EQ(store_.violation(), "");
  }
  // Writes "a" unchanged and "b" changed, compares.
  DiffReport DiffWith(const Change& change, DiffRequest request = {}) {
    Write("a");
    Write("b", change);
    return Ask(std::move(request));
  }
  DiffReport Ask(DiffRequest request = {}) {
    request.run_a = "a";
    request.run_b = "b";
    auto report = QueryEngine(store_).Diff(request);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? *report : DiffReport();
  }

  FakeStore store_;
};

// Multiplies one tensor from a step on.
Change Scale(const std::string& name, Kind kind, double factor, std::uint64_t from = 0) {
  return [=](std::uint64_t step, const TensorKey& key, Tensor tensor) -> std::optional<Tensor> {
    if (key.name == name && key.kind == kind && key.mode == Mode::kTrain && step >= from) {
      for (double& x : tensor.values) x *= factor;
    }
    return tensor;
  };
}

TEST_F(DiffTest, EqualRunsAreIdentical) {
  const DiffReport r = DiffWith({});
  EXPECT_EQ(r.verdict, Verdict::kIdentical);
  EXPECT_FALSE(r.first);
  EXPECT_FALSE(r.first_bitwise);
  EXPECT_THAT(r.diverged, IsEmpty());
  EXPECT_THAT(r.origins, IsEmpty());
  EXPECT_EQ(r.compared.records, r.compared.identical);
  EXPECT_EQ(r.compared.records, 2u * (3 * (1 + 8 + 8 + 1 + 1 + 1 + 1) + 1));
  EXPECT_EQ(r.inputs.weights, "identical");
  EXPECT_EQ(r.inputs.batches, "identical");
  EXPECT_THAT(r.ranks, ElementsAre(0, 1));
  EXPECT_EQ(r.steps->first, 0u);
  EXPECT_EQ(r.steps->last, 2u);
  EXPECT_THAT(r.notes, IsEmpty());
}

TEST_F(DiffTest, ARunIsIdenticalToItself) {
  Write("a");
  auto report = QueryEngine(store_).Diff({.run_a = "a", .run_b = "a"});
  EXPECT_EQ(report->verdict, Verdict::kIdentical);
}

TEST_F(DiffTest, ASmallDifferenceIsWithinToleranceAndItsPlaceIsTold) {
  const DiffReport r = DiffWith(Scale("blocks.1.ln", Kind::kOutput, 1 + 1e-6, 1));
  EXPECT_EQ(r.verdict, Verdict::kWithinTolerance);
  EXPECT_FALSE(r.first);
  EXPECT_EQ(r.compared.within_tolerance, 4u);
  ASSERT_TRUE(r.first_bitwise);
  EXPECT_EQ(r.first_bitwise->activation, "blocks.1.ln");
  EXPECT_EQ(r.first_bitwise->step, 1u);
  EXPECT_EQ(r.first_bitwise->rank, 0u);
  EXPECT_EQ(r.first_bitwise->reason, Reason::kBitwise);
  EXPECT_NEAR(*r.first_bitwise->distance, 1e-6, 1e-7);
}

TEST_F(DiffTest, ExactReportsTheFirstDifferentBit) {
  const DiffReport r = DiffWith(Scale("blocks.1.ln", Kind::kOutput, 1 + 1e-12, 1), {.exact = true});
  EXPECT_EQ(r.verdict, Verdict::kDiverged);
  EXPECT_EQ(r.first->reason, Reason::kBitwise);
  EXPECT_EQ(r.first->activation, "blocks.1.ln");
  EXPECT_EQ(r.first->step, 1u);
}

TEST_F(DiffTest, NumericDivergenceCarriesDistanceToleranceAndBothSides) {
  const DiffReport r = DiffWith(Scale("blocks.0.mlp", Kind::kOutput, 1.01, 2));
  EXPECT_EQ(r.verdict, Verdict::kDiverged);
  const Divergence& first = r.first.value();
  EXPECT_EQ(first.step, 2u);
  EXPECT_EQ(first.rank, 0u);
  EXPECT_EQ(first.stage, Stage::kForward);
  EXPECT_EQ(first.kind, Kind::kOutput);
  EXPECT_EQ(first.activation, "blocks.0.mlp");
  EXPECT_EQ(first.reason, Reason::kNumeric);
  EXPECT_EQ(first.distance_kind, DistanceKind::kSketch);
  EXPECT_NEAR(*first.distance, 0.01 / 1.01, 0.006);
  EXPECT_LE(*first.distance_low, *first.distance);
  EXPECT_GE(*first.distance_high, *first.distance);
  EXPECT_EQ(*first.tolerance, 1e-4);
  EXPECT_TRUE(first.origin);
  EXPECT_EQ(first.mode, "train");
  EXPECT_EQ(first.class_name, "Module");
  EXPECT_NEAR(*first.b->l2 / *first.a->l2, 1.01, 1e-9);
  EXPECT_EQ(first.a->dtype, "f32");
  EXPECT_THAT(first.a->shape, ElementsAre(64));
  EXPECT_EQ(first.previous, "blocks.0.ln");
  EXPECT_EQ(*first.previous_distance, 0);
  EXPECT_THAT(r.spread.ranks, ElementsAre(0, 1));
  EXPECT_EQ(r.spread.steps, 1u);
  EXPECT_EQ(r.spread.activations, 1u);
}

TEST_F(DiffTest, PreviousTellsHowCloseTheLastAgreeingActivationWas) {
  Write("a");
  const Change ln = Scale("blocks.0.ln", Kind::kOutput, 1 + 3e-8),
               mlp = Scale("blocks.0.mlp", Kind::kOutput, 1.01);
  Write("b", [&](std::uint64_t step, const TensorKey& key, Tensor tensor) {
    return mlp(step, key, *ln(step, key, tensor));
  });
  const DiffReport r = Ask();
  EXPECT_EQ(r.first->previous, "blocks.0.ln");
  EXPECT_NEAR(*r.first->previous_distance, 3e-8, 2e-8);
}

TEST_F(DiffTest, WithoutSketchesTheDistanceComesFromStatistics) {
  Write("a", {}, 1, 1, 0);
  Write("b", Scale("blocks.0.mlp", Kind::kOutput, 1.01), 1, 1, 0);
  const DiffReport r = Ask();
  EXPECT_EQ(r.first->distance_kind, DistanceKind::kStatistics);
  EXPECT_NEAR(*r.first->distance, 0.01 / 1.01, 1e-9);
  EXPECT_FALSE(r.first->distance_low);
}

TEST_F(DiffTest, RunsOfDifferentDefinitionsAreComparedByStatisticsAlone) {
  Write("a", {}, 2, 1);
  Write("b", {}, 2, 1, 16, HashKind::kXor64);
  const DiffReport same = Ask();
  EXPECT_EQ(same.verdict, Verdict::kIdentical);
  EXPECT_EQ(same.compared.diverged, 0u);
  EXPECT_THAT(testing::Broken(same), ::testing::Contains(HasSubstr("definitions")));
  Write("c", Scale("blocks.0.mlp", Kind::kOutput, 1.01), 2, 1, 16, HashKind::kXor64);
  const auto other = QueryEngine(store_).Diff({.run_a = "a", .run_b = "c"});
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(other->verdict, Verdict::kDiverged);
  EXPECT_EQ(other->first->activation, "blocks.0.mlp");
  EXPECT_EQ(other->first->distance_kind, DistanceKind::kStatistics);
  EXPECT_EQ(other->compared.diverged, 2u);
}

TEST_F(DiffTest, SketchesOfDifferentWidthsAreNoted) {
  Write("a", {}, 1, 1, 0);
  Write("b", Scale("blocks.0.mlp", Kind::kOutput, 1.01), 1, 1, 16);
  const DiffReport r = Ask();
  EXPECT_EQ(r.first->distance_kind, DistanceKind::kStatistics);
  EXPECT_THAT(testing::Broken(r), ElementsAre(HasSubstr("sketches of different widths")));
  EXPECT_THAT(r.notes, ElementsAre(HasSubstr("rounding was not distinguished from bugs")));
}

TEST_F(DiffTest, ShapeDTypeAndNonfiniteAreReasonsOfTheirOwn) {
  struct Case {
    Reason reason;
    std::function<void(Tensor&)> change;
  };
  const std::vector<Case> cases = {
      {Reason::kShape, [](Tensor& t) { t.values.pop_back(); }},
      {Reason::kDType, [](Tensor& t) { t.dtype = DType::kBf16; }},
      {Reason::kNonfinite, [](Tensor& t) { t.values[3] = kNan; }},
      {Reason::kNonfinite,
       [](Tensor& t) { t.values[3] = -std::numeric_limits<double>::infinity(); }},
      {Reason::kNumeric, [](Tensor& t) { t.values[3] += 1; }},
  };
  Write("a");
  for (const Case& c : cases) {
    Write("b" + std::to_string(&c - cases.data()),
          [&](std::uint64_t step, const TensorKey& key, Tensor tensor) -> std::optional<Tensor> {
            if (step == 1 && key.name == "blocks.0" && key.kind == Kind::kOutput) c.change(tensor);
            return tensor;
          });
    auto r =
        QueryEngine(store_).Diff({.run_a = "a", .run_b = "b" + std::to_string(&c - cases.data())});
    ASSERT_TRUE(r.ok());
    ASSERT_TRUE(r->first) << Name(c.reason);
    EXPECT_EQ(r->first->reason, c.reason);
    EXPECT_EQ(r->first->activation, "blocks.0");
    EXPECT_EQ(r->first->step, 1u);
    EXPECT_EQ(r->first->distance.has_value(), c.reason != Reason::kShape);
    EXPECT_EQ(std::isinf(r->first->distance.value_or(0)), c.reason == Reason::kNonfinite);
  }
}

TEST_F(DiffTest, EachStageIsNamed) {
  struct Case {
    Stage stage;
    std::string name;
    Kind kind;
  };
  const std::vector<Case> cases = {{Stage::kBatch, "ids", Kind::kBatch},
                                   {Stage::kForward, "head", Kind::kOutput},
                                   {Stage::kBackward, "head", Kind::kGradOutput},
                                   {Stage::kGrad, "embed.weight", Kind::kWeightGrad},
                                   {Stage::kOptimizer, "embed.weight", Kind::kWeight},
                                   {Stage::kOptimizer, "embed.weight", Kind::kOptimizerState}};
  Write("a");
  for (const Case& c : cases) {
    const std::string run = "b" + std::to_string(&c - cases.data());
    Write(run, Scale(c.name, c.kind, 1.5));
    auto r = QueryEngine(store_).Diff({.run_a = "a", .run_b = run});
    EXPECT_EQ(r->first->stage, c.stage);
    EXPECT_EQ(r->first->kind, c.kind);
    EXPECT_TRUE(r->first->origin);
    EXPECT_EQ(r->origins.size(), 1u);
  }
}

TEST_F(DiffTest, WeightsAsLoadedComeBeforeTheBatchAndTheForwardPass) {
  const DiffReport r =
      DiffWith([](std::uint64_t, const TensorKey& key, Tensor tensor) -> std::optional<Tensor> {
        if (key.mode == Mode::kInit || key.kind == Kind::kBatch || key.kind == Kind::kOutput)
          tensor.values[0] += 1;
        return tensor;
      });
  EXPECT_EQ(r.first->stage, Stage::kWeights);
  EXPECT_EQ(r.first->mode, "init");
  EXPECT_EQ(r.inputs.weights, "differ");
  EXPECT_EQ(r.inputs.batches, "differ");
  for (const Divergence& row : r.diverged) {
    EXPECT_EQ(row.origin,
              row.step == 0 && (row.stage == Stage::kWeights || row.stage == Stage::kBatch))
        << row.activation;
  }
}

TEST_F(DiffTest, InputsAreUnknownIfNobodyRecordedThem) {
  const Change no_inputs = [](std::uint64_t, const TensorKey& key,
                              Tensor tensor) -> std::optional<Tensor> {
    if (key.mode == Mode::kInit || key.kind == Kind::kBatch) return std::nullopt;
    return tensor;
  };
  Write("a", no_inputs);
  Write("b", no_inputs);
  const DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kIdentical);
  EXPECT_EQ(r.inputs.weights, "unknown");
  EXPECT_EQ(r.inputs.batches, "unknown");
}

TEST_F(DiffTest, LossComesAfterForwardAndBeforeBackward) {
  RunWriter a(store_, "a"), b(store_, "b");
  for (RunWriter* run : {&a, &b}) {
    const bool is_b = run == &b;
    run->Observe(0, 0, Key("m"), Wave(1))
        .Observe(0, 0, Key("m", Kind::kGradOutput), Wave(is_b ? 2 : 1));
    run->Scalar(0, 0, "train/loss", is_b ? 1.5 : 1.0).Scalar(0, 0, "lr", is_b ? 1 : 2).Commit();
  }
  const DiffReport r = Ask();
  EXPECT_EQ(r.first->stage, Stage::kLoss);
  EXPECT_EQ(r.first->activation, "train/loss");
  EXPECT_EQ(r.first->kind, Kind::kUnspecified);
  EXPECT_EQ(*r.first->a->value, 1.0);
  EXPECT_EQ(*r.first->b->value, 1.5);
  EXPECT_NEAR(*r.first->distance, 0.5 / 1.5, 1e-12);
  EXPECT_TRUE(r.first->origin);
  ASSERT_EQ(r.diverged.size(), 2u);
  EXPECT_EQ(r.diverged[1].stage, Stage::kBackward);
  EXPECT_FALSE(r.diverged[1].origin);
}

TEST_F(DiffTest, LossesAreTheScalarsThatEndInLoss) {
  RunWriter a(store_, "a"), b(store_, "b");
  for (RunWriter* run : {&a, &b}) {
    const double x = run == &b ? 2 : 1;
    run->Scalar(0, 0, "eval_loss", 3)
        .Scalar(0, 0, "loss", 3)
        .Scalar(0, 0, "loss_scale", x)
        .Scalar(0, 0, "grad_norm", x);
    run->Commit();
  }
  const DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kIdentical);
  EXPECT_EQ(r.compared.records, 2u);
}

TEST_F(DiffTest, LossThatTurnsNanIsNonfiniteAndEqualNansAgree) {
  RunWriter a(store_, "a"), b(store_, "b");
  for (RunWriter* run : {&a, &b}) {
    run->Scalar(0, 0, "loss", kNan).Scalar(0, 1, "loss", run == &b ? kNan : 1).Commit();
  }
  const DiffReport r = Ask();
  EXPECT_EQ(r.compared.identical, 1u);
  EXPECT_EQ(r.first->step, 1u);
  EXPECT_EQ(r.first->reason, Reason::kNonfinite);
}

// Rounding cannot be judged without tensors, so the tolerance decides.
TEST_F(DiffTest, ARunOfLossesAloneDivergesWhereOneIsBeyondItsTolerance) {
  RunWriter a(store_, "a"), b(store_, "b");
  for (RunWriter* run : {&a, &b}) {
    for (std::uint64_t step = 0; step < 4; ++step)
      run->Scalar(0, step, "loss", run == &b && step == 2 ? 2 : 1);
    run->Commit();
  }
  const DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kDiverged);
  EXPECT_FALSE(r.explained_by_rounding);
  ASSERT_TRUE(r.root.has_value());
  EXPECT_EQ(r.root->at.step, 2u);
  EXPECT_EQ(r.root->at.activation, "loss");
}

TEST_F(DiffTest, LossWithinF32ToleranceAgreesUnlessExact) {
  RunWriter a(store_, "a"), b(store_, "b");
  a.Scalar(0, 0, "loss", 1.0).Commit();
  b.Scalar(0, 0, "loss", 1.00005).Commit();
  EXPECT_EQ(Ask().verdict, Verdict::kWithinTolerance);
  EXPECT_EQ(Ask({.exact = true}).first->reason, Reason::kBitwise);
  EXPECT_EQ(Ask({.tolerance = 1e-6}).first->reason, Reason::kNumeric);
}

TEST_F(DiffTest, LossLoggedTwiceInAStepIsComparedOneByOne) {
  RunWriter a(store_, "a"), b(store_, "b");
  for (RunWriter* run : {&a, &b}) run->Scalar(0, 0, "loss", 1).Scalar(0, 0, "loss", 2).Commit();
  const DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kIdentical);
  EXPECT_EQ(r.compared.records, 2u);
}

TEST_F(DiffTest, LossOnOneSideOnlyIsListedAsUnmatched) {
  RunWriter a(store_, "a"), b(store_, "b");
  a.Observe(0, 0, Key("m"), Wave(1)).Scalar(0, 0, "loss", 1).Commit();
  b.Observe(0, 0, Key("m"), Wave(1)).Scalar(0, 0, "val/loss", 1).Commit();
  const DiffReport r = Ask();
  EXPECT_THAT(r.unmatched.only_a, ElementsAre("scalar loss"));
  EXPECT_THAT(r.unmatched.only_b, ElementsAre("scalar val/loss"));
  EXPECT_EQ(r.verdict, Verdict::kWithinTolerance);
}

TEST_F(DiffTest, MicroBatchesAreComparedOneAfterTheOther) {
  RunWriter a(store_, "a"), b(store_, "b");
  for (RunWriter* run : {&a, &b}) {
    for (std::uint32_t mb = 0; mb < 2; ++mb) {
      const double factor = run == &b && mb == 1 ? 1.5 : 1;
      run->Observe(0, 0, Key("m", Kind::kOutput, "", mb), Wave(factor));
      run->Observe(0, 0, Key("m", Kind::kGradOutput, "", mb), Wave(run == &b ? 1.5 : 1));
    }
    run->Commit();
  }
  const DiffReport r = Ask();
  EXPECT_EQ(r.first->stage,
            Stage::kBackward);  // of micro-batch 0: before the forward pass of micro-batch 1
  EXPECT_EQ(r.first->micro_batch, 0u);
  ASSERT_EQ(r.diverged.size(), 3u);
  EXPECT_EQ(r.diverged[1].stage, Stage::kForward);
  EXPECT_EQ(r.diverged[1].micro_batch, 1u);
}

TEST_F(DiffTest, GradientsAndOptimizerComeAfterEveryMicroBatch) {
  RunWriter a(store_, "a"), b(store_, "b");
  for (RunWriter* run : {&a, &b}) {
    const double factor = run == &b ? 1.5 : 1;
    run->Observe(0, 0, Key("m", Kind::kOutput, "", 0), Wave(1));
    run->Observe(0, 0, Key("m", Kind::kOutput, "", 1), Wave(factor));
    run->Observe(0, 0, Key("m.weight", Kind::kWeightGrad, "", 0), Wave(factor));
    run->Observe(0, 0, Key("m.weight", Kind::kWeight, "", 0), Wave(factor));
    run->Commit();
  }
  const DiffReport r = Ask();
  EXPECT_EQ(r.first->stage, Stage::kForward);
  EXPECT_EQ(r.first->micro_batch, 1u);
  EXPECT_EQ(r.origins.size(), 1u);
}

TEST_F(DiffTest, EvaluationStandsBeforeOrBehindTrainingAsItRan) {
  const TensorKey eval = Key("x", Kind::kOutput, "", 0, 0, Mode::kEval);
  RunWriter a(store_, "a"), b(store_, "b");
  for (RunWriter* run : {&a, &b}) {
    const double factor = run == &b ? 1.5 : 1;
    run->Observe(0, 0, Key("y"), Wave(1))
        .Observe(0, 0, eval, Wave(factor))
        .Observe(0, 0, Key("z"), Wave(factor));
    run->Observe(0, 1, eval, Wave(factor)).Observe(0, 1, Key("y"), Wave(factor));
    run->Commit();
  }
  EXPECT_EQ(Ask({.steps = "0"}).first->activation, "z");
  EXPECT_EQ(Ask({.steps = "0"}).diverged[1].mode, "eval");
  EXPECT_EQ(Ask({.steps = "1"}).first->mode, "eval");
  EXPECT_TRUE(Ask({.steps = "1"}).diverged[0].origin);
}

TEST_F(DiffTest, WeightsOfALaunchInMidRunAreNotMissingInTheOther) {
  const TensorKey loaded = Key("m.weight", Kind::kWeight, "", 0, 0, Mode::kInit);
  RunWriter a(store_, "a");
  for (std::uint64_t step = 0; step < 4; ++step) {
    if (step == 0) a.Observe(0, step, loaded, Wave(1));
    a.Observe(0, step, Key("y"), Wave(1));
  }
  a.Commit();
  RunWriter before(store_, "b");
  before.Observe(0, 0, loaded, Wave(1))
      .Observe(0, 0, Key("y"), Wave(1))
      .Observe(0, 1, Key("y"), Wave(1));
  before.Commit();
  RunWriter resumed(store_, "b");
  resumed.Observe(0, 2, loaded, Wave(1))
      .Observe(0, 2, Key("y"), Wave(1))
      .Observe(0, 3, Key("y"), Wave(1));
  resumed.Commit();
  const DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kIdentical);
  EXPECT_THAT(r.notes, ::testing::Contains(::testing::HasSubstr("b was launched again at step 2")));
}

// Run `whole` trains four steps; `resumed` ends before step 2 and goes on from a checkpoint.
void WriteResumed(Store& store, const std::string& whole, const std::string& resumed,
                  double loaded) {
  const TensorKey initial = Key("m.weight", Kind::kWeight, "", 0, 0, Mode::kInit);
  const auto train = [](RunWriter& run, std::uint64_t first, std::uint64_t end, double apart) {
    for (std::uint64_t step = first; step < end; ++step) {
      const auto at = static_cast<double>(step);
      run.Observe(0, step, Key("m"), Wave(10 + at + apart));
      run.Observe(0, step, Key("m.weight", Kind::kWeight), Wave(1 + at + apart));
    }
  };
  RunWriter all(store, whole), before(store, resumed);
  for (RunWriter* run : {&all, &before}) run->Observe(0, 0, initial, Wave(0.5));
  train(all, 0, 4, 0);
  train(before, 0, 2, 0);
  all.Commit();
  before.Commit();
  RunWriter after(store, resumed);
  after.Observe(0, 2, initial, Wave(loaded));
  train(after, 2, 4, loaded - 2);
  after.Commit();
}

TEST_F(DiffTest, WeightsLoadedInMidRunAreThoseThatTheOtherRunHadAfterTheStepBefore) {
  WriteResumed(store_, "a", "b", 2);
  const DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kIdentical);
  EXPECT_EQ(r.compared.records, 1u + 4 * 2 + 1);
  EXPECT_THAT(r.notes,
              ElementsAre("b was launched again at step 2; its weights as loaded there were "
                          "compared "
                          "with those of a after step 1"));
}

TEST_F(DiffTest, AWrongCheckpointIsFoundInTheWeightsAndNotInWhatTheyCompute) {
  WriteResumed(store_, "a", "b", 2.5);
  DiffReport r = Ask();
  EXPECT_EQ(r.first->step, 2u);
  EXPECT_EQ(r.first->stage, Stage::kWeights);
  EXPECT_EQ(r.first->activation, "m.weight");
  EXPECT_EQ(r.first->mode, "init");
  EXPECT_NEAR(*r.first->distance, 0.2, 0.1);
  EXPECT_DOUBLE_EQ(*r.first->b->l2 / *r.first->a->l2, 1.25);
  EXPECT_TRUE(r.first->origin);
  EXPECT_EQ(r.origins.size(), 1u);
  EXPECT_EQ(r.inputs.weights, "differ");
  const auto swapped = QueryEngine(store_).Diff({.run_a = "b", .run_b = "a"});
  ASSERT_TRUE(swapped.ok());
  EXPECT_EQ(swapped->first->stage, Stage::kWeights);
  EXPECT_DOUBLE_EQ(*swapped->first->b->l2 / *swapped->first->a->l2, 0.8);
  EXPECT_EQ(swapped->compared.diverged, r.compared.diverged);
}

// watch() before set_step(): the launch put its weights into step 0, and nothing else.
TEST_F(DiffTest, WeightsLoadedBeforeTheStepWasSetTakeNoStepFromAnEarlierLaunch) {
  const TensorKey initial = Key("m.weight", Kind::kWeight, "", 0, 0, Mode::kInit);
  RunWriter a(store_, "a"), before(store_, "b");
  for (RunWriter* run : {&a, &before}) {
    run->Observe(0, 0, initial, Wave(0.5));
    for (std::uint64_t step = 0; step < (run == &a ? 6u : 3u); ++step)
      run->Observe(0, step, Key("m"), Wave(1));
    run->Commit();
  }
  RunWriter after(store_, "b");
  after.Observe(0, 0, initial, Wave(7));
  for (std::uint64_t step = 3; step < 6; ++step) after.Observe(0, step, Key("m"), Wave(1));
  after.Commit();
  const DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kIdentical);
  EXPECT_EQ(r.compared.records, 7u);
  const auto first = QueryEngine(store_).Diff({.run_a = "a", .run_b = "b", .steps = "0"});
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->verdict, Verdict::kIdentical) << "a window shows the same as the whole";
  EXPECT_EQ(first->compared.records, 2u);
}

// It died while it loaded the checkpoint; the launch after it goes on.
TEST_F(DiffTest, ALaunchThatOnlyFoundItsWeightsTakesNoStepFromAnEarlierOne) {
  const TensorKey initial = Key("m.weight", Kind::kWeight, "", 0, 0, Mode::kInit);
  RunWriter a(store_, "a"), before(store_, "b");
  for (RunWriter* run : {&a, &before})
    run->Observe(0, 0, initial, Wave(0.5)).Observe(0, 0, Key("m"), Wave(1)).Commit();
  RunWriter(store_, "b").Observe(0, 0, initial, Wave(7)).Commit();
  const DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kIdentical);
  EXPECT_EQ(r.compared.records, 2u);
}

TEST_F(DiffTest, AnOrderThatIsLeftIsNamedAtItsFirstPlaceInA) {
  RunWriter a(store_, "a"), b(store_, "b");
  a.Observe(0, 0, Key("ln"), Wave(1))
      .Observe(0, 0, Key("qkv"), Wave(1))
      .Observe(0, 0, Key("proj"), Wave(1));
  b.Observe(0, 0, Key("qkv"), Wave(1))
      .Observe(0, 0, Key("proj"), Wave(1))
      .Observe(0, 0, Key("ln"), Wave(2));
  a.Commit();
  b.Commit();
  const DiffReport r = Ask();
  EXPECT_EQ(r.first->activation, "ln");
  EXPECT_EQ(r.first->reason, Reason::kOrder);
  EXPECT_EQ(r.compared.diverged, 1u);
  EXPECT_EQ(r.compared.identical, 2u);
}

TEST_F(DiffTest, FirstOnlyEndsAtTheFirstStepThatDiverged) {
  RunWriter a(store_, "a"), b(store_, "b");
  for (std::uint64_t step = 0; step < 50; ++step) {
    a.Observe(0, step, Key("y"), Wave(1));
    b.Observe(0, step, Key("y"), Wave(step < 7 ? 1 : 2));
  }
  a.Commit();
  b.Commit();
  const DiffReport r = Ask({.first_only = true});
  EXPECT_EQ(r.first->step, 7u);
  EXPECT_EQ(r.compared.records, 8u);
  EXPECT_EQ(r.steps->last, 7u);
  EXPECT_EQ(Ask().compared.records, 50u);
}

TEST_F(DiffTest, GrowthIsMeasuredFromTheFirstDifferenceOn) {
  RunWriter a(store_, "a"), b(store_, "b");
  double factor = 1e-6;
  for (std::uint64_t step = 0; step < 12; ++step) {
    a.Observe(0, step, Key("y"), Wave(1));
    b.Observe(0, step, Key("y"), Wave(step < 2 ? 1 : 1 + factor));
    if (step >= 2) factor *= 2;
  }
  a.Commit();
  b.Commit();
  const Growth growth = Ask().growth;
  ASSERT_EQ(growth.points.size(), 10u);
  EXPECT_EQ(growth.points[0].step, 2u);
  EXPECT_NEAR(*growth.points[0].distance, 1e-6, 2e-7);
  EXPECT_EQ(growth.points[0].diverged, 0u);
  EXPECT_EQ(growth.points[9].diverged, 1u);
  EXPECT_NEAR(*growth.factor_per_step, 2, 0.05);
}

TEST_F(DiffTest, NamesStandForOthersByTheUsersMap) {
  RunWriter a(store_, "a"), b(store_, "b");
  a.Observe(0, 0, Key("h.0.fc"), Wave(1))
      .Observe(0, 0, Key("h.1.fc"), Wave(1))
      .Observe(0, 0, Key("same"), Wave(1));
  b.Observe(0, 0, Key("block.0.fc"), Wave(1))
      .Observe(0, 0, Key("block.1.fc"), Wave(2))
      .Observe(0, 0, Key("same"), Wave(1));
  a.Commit();
  b.Commit();
  const DiffReport r = Ask({.map = "# rename\nh\\.(\\d+)\\.(.*) -> block.\\1.\\2\n"});
  EXPECT_EQ(r.first->activation, "h.1.fc");
  EXPECT_EQ(r.first->activation_b, "block.1.fc");
  EXPECT_EQ(r.first->reason, Reason::kNumeric);
  EXPECT_EQ(r.compared.identical, 2u);
  EXPECT_TRUE(r.unmatched.only_a.empty());
  ASSERT_EQ(r.aligned.size(), 2u);
  EXPECT_EQ(r.aligned[0],
            (AlignedNames{.a = "h.0.fc", .b = "block.0.fc", .method = "map", .confidence = 1}));
  const auto wrong = QueryEngine(store_).Diff({.run_a = "a", .run_b = "b", .map = "\nh(.* -> x"});
  EXPECT_EQ(wrong.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(wrong.status().message(), ::testing::HasSubstr("map line 2 'h(.* -> x'"));
}

TEST_F(DiffTest, RenamedModulesAreMatchedByOrderClassAndShapeWithAllThatIsTheirs) {
  RunWriter a(store_, "a"), b(store_, "b");
  for (std::uint64_t step = 0; step < 2; ++step) {
    const auto write = [&](RunWriter& run, const std::string& fc, double weight) {
      run.Observe(0, step, Key("h.0.ln"), Wave(1)).Observe(0, step, Key("h.0." + fc), Wave(2));
      run.Observe(0, step, Key("h.1.ln"), Wave(3)).Observe(0, step, Key("h.1." + fc), Wave(4));
      run.Observe(0, step, Key("h.1." + fc, Kind::kGradOutput), Wave(5));
      run.Observe(0, step, Key("h.1." + fc + ".weight", Kind::kWeight),
                  Wave(step == 1 ? weight : 1));
    };
    write(a, "fc", 1);
    write(b, "up", 1.5);
  }
  a.Commit();
  b.Commit();
  const DiffReport r = Ask();
  EXPECT_TRUE(r.unmatched.only_a.empty() && r.unmatched.only_b.empty());
  EXPECT_EQ(r.compared.records, 12u);
  EXPECT_EQ(r.compared.diverged, 1u);
  EXPECT_EQ(r.first->activation, "h.1.fc.weight");
  EXPECT_EQ(r.first->activation_b, "h.1.up.weight");
  ASSERT_EQ(r.aligned.size(), 2u);
  EXPECT_EQ(r.aligned[0].a, "h.0.fc");
  EXPECT_EQ(r.aligned[0].b, "h.0.up");
  EXPECT_EQ(r.aligned[0].method, "order");
  EXPECT_DOUBLE_EQ(r.aligned[0].confidence, 1);
  EXPECT_EQ(Ask({.no_alignment = true}).first->reason, Reason::kMissingInA);
}

// A tuple in place of a dictionary.
TEST_F(DiffTest, OutputsOfAModuleAreMatchedInTheirOrderIfTheyHaveOtherPaths) {
  RunWriter a(store_, "a"), b(store_, "b");
  const auto write = [&](RunWriter& run, const std::string& loss, const std::string& logits) {
    run.Observe(0, 0, Key("fc"), Wave(1));
    run.Observe(0, 0, Key("model", Kind::kOutput, loss), {.values = {2}});
    run.Observe(0, 0, Key("model", Kind::kOutput, logits), Wave(2));
    run.Observe(0, 0, Key("model", Kind::kGradOutput, logits), Wave(3));
    run.Commit();
  };
  write(a, "loss", "logits");
  write(b, "0", "1");
  const DiffReport r = Ask();
  EXPECT_TRUE(r.unmatched.only_a.empty() && r.unmatched.only_b.empty());
  EXPECT_EQ(r.compared.records, 4u);
  EXPECT_EQ(r.verdict, Verdict::kIdentical);
  EXPECT_TRUE(r.aligned.empty()) << "no module has another name";
}

TEST_F(DiffTest, ANameThatBothRunsUseIsNotMatchedWithAnother) {
  RunWriter a(store_, "a"), b(store_, "b");
  a.Observe(0, 0, Key("fc", Kind::kOutput, "x"), Wave(1));
  a.Observe(0, 0, Key("up.weight", Kind::kWeight), Wave(2));
  a.Observe(0, 0, Key("up", Kind::kInput), Wave(2));
  b.Observe(0, 0, Key("fc", Kind::kInput), Wave(2));
  b.Observe(0, 0, Key("up", Kind::kOutput, "y"), Wave(1));
  b.Observe(0, 0, Key("up.weight", Kind::kWeight), Wave(2));
  a.Commit();
  b.Commit();
  const DiffReport r = Ask();
  EXPECT_TRUE(r.aligned.empty());
  EXPECT_THAT(r.unmatched.only_a, ::testing::Contains("output fc[x] call 0"));
}

TEST_F(DiffTest, ModulesOfAnotherClassShapeOrPlaceAreNotMatchedByOrder) {
  RunWriter a(store_, "a"), b(store_, "b");
  b.WithoutClasses();
  a.Observe(0, 0, Key("ln"), Wave(1)).Observe(0, 0, Key("fc"), Wave(2));
  b.Observe(0, 0, Key("ln"), Wave(1)).Observe(0, 0, Key("up"), Wave(2));
  a.Commit();
  b.Commit();
  EXPECT_EQ(Ask().first->reason, Reason::kMissingInA);

  RunWriter c(store_, "c"), d(store_, "d");
  c.Observe(0, 0, Key("ln"), Wave(1))
      .Observe(0, 0, Key("fc"), Wave(2))
      .Observe(0, 0, Key("out"), Wave(2));
  d.Observe(0, 0, Key("ln"), Wave(1))
      .Observe(0, 0, Key("up"), {.values = {1, 2, 3}})
      .Observe(0, 0, Key("out"), Wave(2));
  d.Observe(0, 0, Key("late"), Wave(2));  // like fc, but behind what fc ran before
  c.Commit();
  d.Commit();
  const auto r = QueryEngine(store_).Diff({.run_a = "c", .run_b = "d"});
  ASSERT_TRUE(r.ok());
  EXPECT_TRUE(r->aligned.empty());
  EXPECT_EQ(r->unmatched.only_a.size(), 1u);
  EXPECT_EQ(r->unmatched.only_b.size(), 2u);
}

TEST_F(DiffTest, PartsOfAFusedModuleThatAreMissingAreSaid) {
  RunWriter a(store_, "a"), b(store_, "b");
  for (std::uint64_t step = 0; step < 2; ++step) {
    a.Observe(0, step, Key("ln"), Wave(1)).Observe(0, step, Key("q"), Wave(1));
    if (step == 0) a.Observe(0, step, Key("k"), Wave(1));
    b.Observe(0, step, Key("ln"), Wave(1)).Observe(0, step, Key("qk"), Wave(1));
  }
  a.Commit();
  b.Commit();
  const DiffReport r = Ask({.steps = "1", .map = "q, k -> qk"});
  EXPECT_EQ(r.verdict, Verdict::kDiverged);
  EXPECT_EQ(r.compared.diverged, 2u);
  EXPECT_EQ(r.unmatched.only_a.size(), 1u);
  EXPECT_EQ(r.unmatched.only_b.size(), 1u);
}

TEST_F(DiffTest, AStepThatOneRunLacksOnARankIsSaid) {
  RunWriter a(store_, "a", 2), b(store_, "b", 2);
  for (std::uint64_t step = 0; step < 3; ++step) {
    for (const std::uint32_t rank : {0u, 1u}) {
      a.Observe(rank, step, Key("y"), Wave(1));
      if (rank == 0 || step != 1) b.Observe(rank, step, Key("y"), Wave(1));
    }
  }
  a.Commit();
  b.Commit();
  const DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kWithinTolerance);  // not identical: something was not compared
  EXPECT_THAT(
      testing::Broken(r),
      ElementsAre(HasSubstr("rank 1 of b has no statistics in 1 step in which a has some")));
}

TEST_F(DiffTest, FusedModulesAreComparedWithTheirPartsTogether) {
  const Tensor q{.values = {1, -2, 3, 0}}, k{.values = {5, 6, -7, 8}},
      whole{.values = {1, -2, 3, 0, 5, 6, -7, 8}};
  RunWriter a(store_, "a"), b(store_, "b");
  a.Observe(0, 0, Key("h.0.q"), q).Observe(0, 0, Key("h.0.k"), k);
  a.Observe(0, 1, Key("h.0.q"), q).Observe(0, 1, Key("h.0.k"), k);
  b.Observe(0, 0, Key("h.0.qk"), whole);
  Tensor off = whole;
  off.values[6] = -9;
  b.Observe(0, 1, Key("h.0.qk"), off);
  a.Commit();
  b.Commit();
  const DiffReport r = Ask({.map = "(.*)\\.q, \\1.k -> \\1.qk"});
  EXPECT_EQ(r.compared.records, 2u);
  EXPECT_EQ(r.compared.diverged, 1u);
  EXPECT_TRUE(r.unmatched.only_a.empty() && r.unmatched.only_b.empty());
  EXPECT_EQ(r.first->step, 1u);
  EXPECT_EQ(r.first->distance_kind, DistanceKind::kStatistics);
  EXPECT_GT(*r.first->distance, 0.1);
}

TEST_F(DiffTest, ActivationsAreMatchedByIdentityNotByIdOrOrderOfDefinition) {
  RunWriter a(store_, "a"), b(store_, "b");
  a.Observe(0, 0, Key("x"), Wave(1))
      .Observe(0, 0, Key("y"), Wave(2))
      .Observe(0, 1, Key("x"), Wave(3))
      .Commit();
  b.Observe(0, 1, Key("x"), Wave(3))
      .Observe(0, 0, Key("x"), Wave(1))
      .Observe(0, 0, Key("y"), Wave(2))
      .Commit();
  RunWriter c(store_, "c");
  c.Observe(0, 0, Key("z"), Wave(9))
      .Observe(0, 0, Key("y"), Wave(2))
      .Observe(0, 0, Key("x"), Wave(1))
      .Commit();
  EXPECT_EQ(Ask().verdict, Verdict::kIdentical);
  auto r = QueryEngine(store_).Diff({.run_a = "a", .run_b = "c"});
  EXPECT_EQ(r->compared.identical + r->compared.diverged, r->compared.records);
  for (const Divergence& row : r->diverged)
    EXPECT_NE(row.reason, Reason::kNumeric) << row.activation;
}

TEST_F(DiffTest, CallsPathsAndModesAreDifferentIdentities) {
  const auto write = [&](const std::string& name) {
    RunWriter run(store_, name);
    run.Observe(0, 0, Key("m", Kind::kOutput, "0"), Wave(1))
        .Observe(0, 0, Key("m", Kind::kOutput, "1"), Wave(2));
    run.Observe(0, 0, Key("m", Kind::kOutput, "0", 0, 1), Wave(3))
        .Observe(0, 0, Key("m", Kind::kInput, "0"), Wave(4));
    run.Observe(0, 0, Key("m", Kind::kOutput, "0", 0, 0, Mode::kEval), Wave(5)).Commit();
  };
  write("a");
  write("b");
  const DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kIdentical);
  EXPECT_EQ(r.compared.records, 5u);
}

TEST_F(DiffTest, MissingActivationIsListedOnceAndCountsAsDiverged) {
  const DiffReport r =
      DiffWith([](std::uint64_t, const TensorKey& key, Tensor tensor) -> std::optional<Tensor> {
        if (key.name == "blocks.0.ln" && key.kind == Kind::kOutput) return std::nullopt;
        return tensor;
      });
  EXPECT_EQ(r.verdict, Verdict::kDiverged);
  EXPECT_EQ(r.first->reason, Reason::kMissingInB);
  EXPECT_EQ(r.first->activation, "blocks.0.ln");
  EXPECT_FALSE(r.first->distance);
  EXPECT_TRUE(r.first->a);
  EXPECT_FALSE(r.first->b);
  EXPECT_THAT(r.unmatched.only_a, ElementsAre("output blocks.0.ln call 0"));
  EXPECT_THAT(r.unmatched.only_b, IsEmpty());
  EXPECT_EQ(r.compared.diverged, 2u);  // once a rank, not once a step
  EXPECT_EQ(r.diverged.size(), 2u);
  EXPECT_EQ(r.compared.records,
            r.compared.identical + r.compared.within_tolerance + r.compared.diverged);
}

// Of each model so many outputs, and as many of both; the batch agrees.
void WriteModel(RunWriter run, const std::string& own, int alone, int shared) {
  run.Observe(0, 0, Key("x", Kind::kBatch), Wave(1));
  for (int i = 0; i < alone + shared; ++i)
    run.Observe(0, 0, Key((i < shared ? "shared" : own) + std::to_string(i)), Wave(2 + i));
  run.Commit();
}

TEST_F(DiffTest, TwoModelsAreNotCompared) {
  WriteModel(RunWriter(store_, "a"), "a", 20, 5);
  WriteModel(RunWriter(store_, "b"), "b", 11, 5);
  const DiffReport r =
      *QueryEngine(store_).Diff({.run_a = "a", .run_b = "b", .no_alignment = true});
  EXPECT_EQ(r.verdict, Verdict::kIncomparable);
  EXPECT_FALSE(r.first || r.root || r.first_bitwise);
  EXPECT_THAT(r.diverged, IsEmpty());
  EXPECT_THAT(r.message,
              HasSubstr("they are different models: of 25 tensors of a and 16 of b, only 5 have a "
                        "counterpart in the other run"));
  EXPECT_THAT(r.unmatched.only_a, ::testing::SizeIs(20));
}

TEST_F(DiffTest, AModelWithAPartOfAnotherIsCompared) {
  WriteModel(RunWriter(store_, "a"), "a", 20, 6);
  WriteModel(RunWriter(store_, "b"), "b", 11, 6);
  const DiffReport r =
      *QueryEngine(store_).Diff({.run_a = "a", .run_b = "b", .no_alignment = true});
  EXPECT_EQ(r.verdict, Verdict::kDiverged);
  EXPECT_EQ(r.compared.diverged, 31u);
  WriteModel(RunWriter(store_, "larger"), "c", 100, 0);
  RunWriter inside(store_, "inside");
  inside.Observe(0, 0, Key("c0"), Wave(2)).Commit();
  EXPECT_EQ(QueryEngine(store_).Diff({.run_a = "inside", .run_b = "larger"})->verdict,
            Verdict::kDiverged)
      << "all of the smaller one has a counterpart";
}

TEST_F(DiffTest, MissingInAComesAfterWhatPrecedesItInB) {
  RunWriter a(store_, "a"), b(store_, "b");
  a.Observe(0, 0, Key("x"), Wave(1)).Observe(0, 0, Key("z"), Wave(1)).Commit();
  b.Observe(0, 0, Key("x"), Wave(1))
      .Observe(0, 0, Key("y", Kind::kOutput, "1"), Wave(1))
      .Observe(0, 0, Key("z"), Wave(2))
      .Commit();
  const DiffReport r = Ask();
  ASSERT_EQ(r.diverged.size(), 2u);
  EXPECT_EQ(r.diverged[0].reason, Reason::kMissingInA);
  EXPECT_EQ(r.diverged[0].activation, "y");
  EXPECT_EQ(r.diverged[1].activation, "z");
  EXPECT_THAT(r.unmatched.only_b, ElementsAre("output y[1] call 0"));
}

TEST_F(DiffTest, MissingActivationDoesNotHideTheOriginOfALaterNumericDivergence) {
  const Change scale = Scale("blocks.1.mlp", Kind::kOutput, 1.01, 2);
  const DiffReport r = DiffWith(
      [&](std::uint64_t step, const TensorKey& key, Tensor tensor) -> std::optional<Tensor> {
        if (key.name == "blocks.0.ln" && key.kind == Kind::kOutput) return std::nullopt;
        return scale(step, key, tensor);
      });
  EXPECT_EQ(r.first->reason, Reason::kMissingInB);
  ASSERT_EQ(r.origins.size(), 2u);
  EXPECT_EQ(r.origins[1].activation, "blocks.1.mlp");
  EXPECT_EQ(r.origins[1].step, 2u);
  EXPECT_EQ(r.origins[1].previous, "blocks.1.ln");
}

TEST_F(DiffTest, KindThatOnlyOneRunRecordedIsNotedNotBlamed) {
  const DiffReport r =
      DiffWith([](std::uint64_t, const TensorKey& key, Tensor tensor) -> std::optional<Tensor> {
        if (key.kind == Kind::kWeightGrad) return std::nullopt;
        return tensor;
      });
  EXPECT_EQ(r.verdict, Verdict::kWithinTolerance);  // not identical: something is unmatched
  EXPECT_THAT(testing::Broken(r),
              ElementsAre(HasSubstr("1 only in a (weight_grad embed.weight call 0)"),
                          "recording: only a recorded weight_grad; that kind was not compared"));
  EXPECT_THAT(r.unmatched.only_a, ElementsAre("weight_grad embed.weight call 0"));
}

// Branches that do not depend on each other: other experts first, another tower first.
TEST_F(DiffTest, AnotherOrderOfExecutionOfEqualValuesIsANote) {
  RunWriter a(store_, "a"), b(store_, "b");
  for (std::uint64_t step = 0; step < 3; ++step) {
    for (const char* name : {"x", "y", "z", "w"}) a.Observe(0, step, Key(name), Wave(1));
    for (const char* name : {"x", "z", "y", "w"})
      b.Observe(0, step, Key(name), Wave(step == 2 ? 2 : 1));
  }
  a.Commit();
  b.Commit();
  const DiffReport first = Ask({.steps = "0-1"});
  EXPECT_EQ(first.verdict, Verdict::kIdentical);
  EXPECT_EQ(first.compared.identical, 8u);
  EXPECT_THAT(
      first.notes,
      ElementsAre("b runs modules in a different order than a: at step 0, rank 0, y runs after z "
                  "instead of before it. Its values agree, so this is not counted as a "
                  "divergence (--exact counts it)"));
  const DiffReport all = Ask();
  EXPECT_EQ(all.first->activation, "x") << "the first whose values differ";
  EXPECT_EQ(all.first->reason, Reason::kNumeric);
}

// A compiled graph records them behind its outputs.
TEST_F(DiffTest, BuffersHaveNoOrderOfExecution) {
  RunWriter a(store_, "a"), b(store_, "b");
  const TensorKey buffer = Key("x.mean", Kind::kBuffer);
  a.Observe(0, 0, Key("x"), Wave(1))
      .Observe(0, 0, buffer, Wave(1))
      .Observe(0, 0, Key("y"), Wave(1));
  b.Observe(0, 0, Key("x"), Wave(1))
      .Observe(0, 0, Key("y"), Wave(1))
      .Observe(0, 0, buffer, Wave(1));
  a.Commit();
  b.Commit();
  EXPECT_EQ(Ask({.exact = true}).verdict, Verdict::kIdentical);
}

TEST_F(DiffTest, ExactCountsAnotherOrderOfExecutionOnce) {
  RunWriter a(store_, "a"), b(store_, "b");
  for (std::uint64_t step = 0; step < 3; ++step) {
    for (const char* name : {"x", "y", "z", "w"}) a.Observe(0, step, Key(name), Wave(1));
    for (const char* name : {"x", "z", "y", "w"}) b.Observe(0, step, Key(name), Wave(1));
  }
  a.Commit();
  b.Commit();
  const DiffReport r = Ask({.exact = true});
  EXPECT_EQ(r.verdict, Verdict::kDiverged);
  EXPECT_EQ(r.first->reason, Reason::kOrder);
  EXPECT_EQ(r.first->step, 0u);
  ASSERT_EQ(r.diverged.size(), 1u);
  EXPECT_EQ(r.compared.diverged, 1u);
  EXPECT_EQ(r.compared.identical, 11u);
}

TEST_F(DiffTest, OrderOfTheBackwardPassMayDiffer) {
  RunWriter a(store_, "a"), b(store_, "b");
  for (const char* name : {"x", "y"}) a.Observe(0, 0, Key(name, Kind::kGradOutput), Wave(1));
  for (const char* name : {"y", "x"}) b.Observe(0, 0, Key(name, Kind::kGradOutput), Wave(1));
  a.Commit();
  b.Commit();
  EXPECT_EQ(Ask().verdict, Verdict::kIdentical);
}

TEST_F(DiffTest, RowsAreInOrderOfStepStagePositionAndRank) {
  const DiffReport r = DiffWith(
      [](std::uint64_t step, const TensorKey& key, Tensor tensor) -> std::optional<Tensor> {
        if (step >= 1 && key.kind != Kind::kBatch) tensor.values[0] += 5;
        return tensor;
      },
      {.all = true});
  ASSERT_EQ(r.diverged.size(), r.compared.diverged);
  ASSERT_EQ(r.diverged.size(), 2u * 2 * (8 + 8 + 3));
  EXPECT_EQ(r.diverged[0].rank, 0u);
  EXPECT_EQ(r.diverged[1].rank, 1u);
  EXPECT_EQ(r.diverged[1].activation, "embed");
  for (std::size_t i = 1; i < r.diverged.size(); ++i) {
    const Divergence &x = r.diverged[i - 1], &y = r.diverged[i];
    EXPECT_LE(std::tie(x.step, x.stage), std::tie(y.step, y.stage));
  }
  EXPECT_EQ(r.diverged.back().step, 2u);
  EXPECT_EQ(r.diverged.back().stage, Stage::kOptimizer);
  EXPECT_EQ(r.spread.steps, 2u);
  EXPECT_EQ(r.spread.activations, 8u + 8 + 3);
  EXPECT_EQ(
      r.spread.activations_total,
      8u + 8 + 3 + 1 + 1);  // with the batch and the loss; weights as loaded are the same weight
}

TEST_F(DiffTest, TopLimitsTheRowsButNotTheCounts) {
  const Change change = [](std::uint64_t, const TensorKey&,
                           Tensor tensor) -> std::optional<Tensor> {
    tensor.values[0] += 5;
    return tensor;
  };
  const DiffReport r = DiffWith(change, {.top = 3});
  EXPECT_EQ(r.diverged.size(), 3u);
  EXPECT_EQ(r.compared.diverged, r.compared.records - 6);  // all but the losses
  EXPECT_EQ(Ask().diverged.size(), kTopDefault);
  EXPECT_EQ(Ask({.top = 3, .all = true}).diverged.size(), r.compared.diverged);
}

TEST_F(DiffTest, StepsRanksAndKindsCanBeChosen) {
  const Change change = Scale("blocks.0.mlp", Kind::kOutput, 1.01, 1);
  Write("a");
  Write("b", change);
  EXPECT_EQ(Ask({.steps = "0"}).verdict, Verdict::kIdentical);
  EXPECT_EQ(Ask({.steps = "2-"}).first->step, 2u);
  EXPECT_EQ(Ask({.ranks = {1}}).first->rank, 1u);
  EXPECT_THAT(Ask({.ranks = {1}}).ranks, ElementsAre(1));
  EXPECT_EQ(Ask({.kinds = {Kind::kGradOutput}}).verdict, Verdict::kIdentical);
  EXPECT_EQ(Ask({.kinds = {Kind::kGradOutput}}).compared.records, 2u * 3 * 8);
}

TEST_F(DiffTest, FirstIsTheLowestRankOfTheFirstActivation) {
  Write("a");
  {
    RunWriter run(store_, "b", 2);
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      WriteStep(run, rank, 0, Scale(rank == 1 ? "blocks.0.ln" : "blocks.1.ln", Kind::kOutput, 1.5));
    }
    run.Commit();
  }
  const DiffReport r = Ask();
  EXPECT_EQ(r.first->activation, "blocks.0.ln");
  EXPECT_EQ(r.first->rank, 1u);
}

}  // namespace
}  // namespace statcollect::query
