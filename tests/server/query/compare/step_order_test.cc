// Segments and passes of a step, the order of a report and its origins, where a step has several
// updates.
#include "server/query/compare/step_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <utility>

#include "server/query/query.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {
namespace {

using ::testing::ElementsAre;
using testing::FakeStore;
using ::testing::IsEmpty;
using testing::Key;
using testing::RunWriter;
using testing::Tensor;

using Keys = std::vector<TensorKey>;

TensorKey Out(const std::string& name, std::uint32_t micro_batch = 0, std::uint32_t call = 0) {
  return Key(name, Kind::kOutput, "", micro_batch, call);
}
TensorKey Back(const std::string& name, std::uint32_t micro_batch = 0) {
  return Key(name, Kind::kGradOutput, "", micro_batch);
}
TensorKey Eval(const std::string& name) { return Key(name, Kind::kOutput, "", 0, 0, Mode::kEval); }
TensorKey Grad(const std::string& weight, std::uint32_t call = 0) {
  return Key(weight, Kind::kWeightGrad, "", 0, call);
}
TensorKey Updated(const std::string& weight, std::uint32_t call = 0) {
  return Key(weight, Kind::kWeight, "", 0, call);
}

// Segment and pass of each.
std::vector<std::pair<std::uint32_t, std::uint32_t>> SpotsOf(const Keys& keys) {
  std::deque<TensorDef> defs;
  std::vector<Observation> step;
  for (const TensorKey& key : keys) {
    defs.push_back({.key = key});
    step.push_back({.def = &defs.back(), .order = static_cast<std::uint32_t>(step.size())});
  }
  const StepOrder order(step);
  std::vector<std::pair<std::uint32_t, std::uint32_t>> spots;
  for (const Observation& seen : step) {
    const Spot spot = order.At(seen.order);
    spots.emplace_back(spot.segment, spot.pass);
  }
  return spots;
}

std::vector<std::uint32_t> SegmentsOf(const Keys& keys) {
  std::vector<std::uint32_t> segments;
  for (const auto& [segment, pass] : SpotsOf(keys)) segments.push_back(segment);
  return segments;
}

TEST(StepOrder, AStepWithOneUpdateIsOneSegment) {
  EXPECT_THAT(
      SegmentsOf({Key("ids", Kind::kBatch), Out("x"), Back("x"), Out("x", 1), Back("x", 1),
                  Grad("x.w"), Updated("x.w"), Key("x.w", Kind::kOptimizerState, "exp_avg")}),
      ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
}

TEST(StepOrder, TrainingThatGoesOnAfterAnUpdateBeginsASegment) {
  EXPECT_THAT(SegmentsOf({Out("dis"), Back("dis"), Grad("dis.w"), Updated("dis.w"), Out("gen"),
                          Grad("gen.w"), Updated("gen.w")}),
              ElementsAre(0, 0, 0, 0, 1, 1, 1));
  EXPECT_THAT(SegmentsOf({Out("x"), Grad("v"), Updated("v"), Grad("w"), Updated("w")}),
              ElementsAre(0, 0, 0, 1, 1))
      << "one optimizer after the other";
  EXPECT_THAT(
      SegmentsOf({Out("x"), Updated("w"), Key("ids", Kind::kBatch), Out("x", 1), Updated("w", 1)}),
      ElementsAre(0, 0, 1, 1, 1))
      << "an optimizer that updates twice";
}

TEST(StepOrder, EvaluationBuffersAndLoadedWeightsBeginNoSegment) {
  const auto loaded = Key("late.w", Kind::kWeight, "", 0, 0, Mode::kInit);
  EXPECT_THAT(
      SegmentsOf({Out("x"), Updated("w"), Eval("x"), Key("bn.mean", Kind::kBuffer), loaded}),
      ElementsAre(0, 0, 0, 0, 0));
  EXPECT_THAT(SegmentsOf({Out("x"), Updated("w"), Eval("x"), Updated("v"), Eval("y"), Out("z")}),
              ElementsAre(0, 0, 0, 0, 1, 1))
      << "but what they evaluate after an update is what the next segment begins with";
}

TEST(StepOrder, PassesAreCountedByTheirOrderAndNotByMicroBatchesOfEachModel) {
  EXPECT_THAT(SpotsOf({Out("dis"), Back("dis"), Out("gen"), Out("dis", 1), Back("dis", 1),
                       Updated("dis.w"), Out("dis", 2), Back("dis", 2), Back("gen")}),
              ElementsAre(std::pair(0, 0), std::pair(0, 0), std::pair(0, 1), std::pair(0, 1),
                          std::pair(0, 1), std::pair(0, 1), std::pair(1, 0), std::pair(1, 0),
                          std::pair(1, 0)));
}

// --- a step of a GAN, through Diff: both models run, the discriminator is updated, then the
// generator through it

const Keys kGan = {Key("dis.w", Kind::kWeight, "", 0, 0, Mode::kInit),
                   Key("gen.w", Kind::kWeight, "", 0, 0, Mode::kInit),
                   Key("real", Kind::kBatch),
                   Out("gen.0"),
                   Out("dis.0"),
                   Back("dis.0"),
                   Grad("dis.w"),
                   Updated("dis.w"),
                   Key("dis.w", Kind::kOptimizerState, "exp_avg"),
                   Out("dis.0", 1),
                   Back("dis.0", 1),
                   Back("gen.0"),
                   Grad("gen.w"),
                   Updated("gen.w")};

Tensor Values(double scale) {
  Tensor tensor;
  for (int i = 0; i < 32; ++i) tensor.values.push_back(scale * std::sin(i + 1.0));
  return tensor;
}

std::string Text(const Divergence& row) {
  std::string text = row.stage == Stage::kLoss ? "loss" : std::string(Name(row.kind));
  text += " " + row.activation;
  if (row.micro_batch > 0) text += " " + std::to_string(row.micro_batch);
  if (row.mode == "eval") text += " (eval)";
  return text;
}

struct Loss {
  std::string name;
  std::uint32_t micro_batch = 0;
  bool differs = false;
};

class SeveralUpdates : public ::testing::Test {
 protected:
  // B's tensors that are named differ, those of `only_b` A does not have.
  DiffReport Diff(const Keys& keys, const Keys& different, const std::vector<Loss>& losses = {},
                  const Keys& only_b = {}, const Keys& only_a = {}) {
    FakeStore store;
    RunWriter a(store, "a"), b(store, "b");
    const auto has = [](const Keys& some, const TensorKey& key) {
      return std::find(some.begin(), some.end(), key) != some.end();
    };
    for (const TensorKey& key : keys) {
      if (!has(only_b, key)) a.Observe(0, 0, key, Values(1));
      if (!has(only_a, key)) b.Observe(0, 0, key, Values(has(different, key) ? 1.5 : 1));
    }
    // Kinds that a run never recorded are not missing in it.
    for (const Kind kind : {Kind::kOutput, Kind::kGradOutput, Kind::kWeight}) {
      a.Observe(0, 1, Key("z", kind), Values(1));
      b.Observe(0, 1, Key("z", kind), Values(1));
    }
    for (const Loss& loss : losses) {
      a.Scalar(0, 0, loss.name, 1, loss.micro_batch);
      b.Scalar(0, 0, loss.name, loss.differs ? 2 : 1, loss.micro_batch);
    }
    a.Commit();
    b.Commit();
    auto report =
        QueryEngine(store).Diff({.run_a = "a", .run_b = "b", .all = true, .no_alignment = true});
    EXPECT_TRUE(report.ok());
    return *report;
  }
  static std::vector<std::string> Texts(const std::vector<Divergence>& rows) {
    std::vector<std::string> texts;
    for (const Divergence& row : rows) texts.push_back(Text(row));
    return texts;
  }
};

TEST_F(SeveralUpdates, AnUpdateStandsBeforeWhatIsComputedWithIt) {
  const DiffReport report = Diff(kGan, {Updated("dis.w"), Out("dis.0", 1), Back("dis.0", 1),
                                        Back("gen.0"), Grad("gen.w"), Updated("gen.w")});
  EXPECT_THAT(Texts(report.diverged),
              ElementsAre("weight dis.w", "output dis.0 1", "grad_output dis.0 1",
                          "grad_output gen.0", "weight_grad gen.w", "weight gen.w"));
  EXPECT_EQ(report.first->stage, Stage::kOptimizer);
  // Its gradient, weight and state before are equal.
  EXPECT_THAT(Texts(report.origins), ElementsAre("weight dis.w"));
  EXPECT_EQ(report.diverged.front().segment, 0u);
  EXPECT_EQ(report.diverged.back().segment, 1u);
}

TEST_F(SeveralUpdates, AStageIsAnOriginIfItsOwnAndEarlierSegmentsAgree) {
  EXPECT_THAT(Texts(Diff(kGan, {Out("dis.0", 1), Back("gen.0"), Grad("gen.w")}).origins),
              ElementsAre("output dis.0 1"));
  EXPECT_THAT(Texts(Diff(kGan, {Back("gen.0"), Grad("gen.w"), Updated("gen.w")}).origins),
              ElementsAre("grad_output gen.0"));
  EXPECT_THAT(Texts(Diff(kGan, {Grad("gen.w"), Updated("gen.w")}).origins),
              ElementsAre("weight_grad gen.w"));
  EXPECT_THAT(Texts(Diff(kGan, {Updated("gen.w")}).origins), ElementsAre("weight gen.w"));
}

TEST_F(SeveralUpdates, EverythingAfterAnEarlierSegmentThatDivergedIsPropagated) {
  for (const TensorKey& first : {Out("gen.0"), Back("dis.0"), Grad("dis.w"), Updated("dis.w")}) {
    const DiffReport report =
        Diff(kGan, {first, Out("dis.0", 1), Back("gen.0"), Grad("gen.w"), Updated("gen.w")});
    EXPECT_EQ(report.origins.size(), 1u) << first.name;
    EXPECT_EQ(report.diverged.front().activation, first.name);
  }
}

TEST_F(SeveralUpdates, ABatchOfALaterSegmentStandsThereAndIsAnOriginIfAllBeforeAgrees) {
  const Keys keys = {Out("x"), Updated("v"), Key("ids", Kind::kBatch), Out("x", 1), Updated("w")};
  EXPECT_THAT(Texts(Diff(keys, {Key("ids", Kind::kBatch), Out("x", 1)}).origins),
              ElementsAre("batch ids"));
  const DiffReport report = Diff(keys, {Updated("v"), Key("ids", Kind::kBatch), Out("x", 1)});
  EXPECT_THAT(Texts(report.diverged), ElementsAre("weight v", "batch ids", "output x 1"));
  EXPECT_THAT(Texts(report.origins), ElementsAre("weight v"));
}

TEST_F(SeveralUpdates, WhatOneModelFeedsToAnotherStandsBehindTheModelItComesFrom) {
  const auto fed = [](std::uint32_t call) { return Key("input", Kind::kBatch, "", 0, call); };
  const Keys keys = {fed(0),          Out("gen.0"),  fed(1),
                     Out("dis.0"),    Back("dis.0"), Updated("dis.w"),
                     Out("dis.0", 1), Back("gen.0"), Updated("gen.w")};
  const DiffReport report = Diff(keys, {Out("gen.0"), fed(1), Out("dis.0")});
  EXPECT_THAT(Texts(report.diverged), ElementsAre("output gen.0", "batch input", "output dis.0"));
  EXPECT_THAT(Texts(report.origins), ElementsAre("output gen.0"));
  EXPECT_THAT(Texts(Diff(keys, {fed(1), Out("dis.0")}).origins), ElementsAre("batch input"));
  EXPECT_THAT(Texts(Diff(keys, {fed(0), Out("gen.0"), fed(1)}).diverged),
              ElementsAre("batch input", "output gen.0", "batch input"));
}

TEST_F(SeveralUpdates, EvaluationBetweenUpdatesStandsBehindTheOneItRanAfter) {
  const Keys keys = {Out("x"), Grad("v"), Updated("v"), Eval("x"), Out("x", 1), Updated("w")};
  EXPECT_THAT(Texts(Diff(keys, {Updated("v"), Eval("x"), Out("x", 1)}).diverged),
              ElementsAre("weight v", "output x (eval)", "output x 1"));
}

TEST_F(SeveralUpdates, AfterTheLastUpdateEvaluationStandsWhereItAlwaysDid) {
  const Keys keys = {Out("x"), Grad("w"), Updated("w"), Eval("x")};
  EXPECT_THAT(Texts(Diff(keys, {Grad("w"), Updated("w"), Eval("x")}).diverged),
              ElementsAre("output x (eval)", "weight_grad w", "weight w"));
}

TEST_F(SeveralUpdates, WhatOnlyBHasStandsInTheSegmentInWhichBRanIt) {
  Keys keys = kGan;
  keys.insert(keys.begin() + 9, {Out("late.0")});   // the first of the second segment
  keys.insert(keys.begin() + 5, {Out("early.0")});  // behind the forward pass of the first
  keys.push_back(Updated("late.w"));
  keys.push_back(Out("later.0"));  // a third segment, of which A has nothing
  const DiffReport report =
      Diff(keys, {Grad("dis.w"), Updated("dis.w"), Updated("gen.w")}, {},
           {Out("late.0"), Out("early.0"), Updated("late.w"), Out("later.0")});
  EXPECT_THAT(Texts(report.diverged),
              ElementsAre("output early.0", "weight_grad dis.w", "weight dis.w", "output late.0",
                          "weight gen.w", "weight late.w", "output later.0"));
}

TEST_F(SeveralUpdates, WhatOnlyBHasStandsInItsSegmentIfAHasNoOther) {
  const Keys keys = {Out("x"), Grad("v"), Updated("v"), Out("y"), Updated("w")};
  const DiffReport report = Diff(keys, {Grad("v")}, {}, {Out("y"), Updated("w")});
  EXPECT_THAT(Texts(report.diverged), ElementsAre("weight_grad v", "output y", "weight w"));
}

TEST_F(SeveralUpdates, ALossStandsInTheSegmentThatUpdatesTheModelItIsNamedAfter) {
  const Keys both = {Updated("dis.w"), Grad("gen.w")};
  EXPECT_THAT(Texts(Diff(kGan, both, {{"dis/loss", 1, true}}).diverged),
              ElementsAre("loss dis/loss 1", "weight dis.w", "weight_grad gen.w"));
  EXPECT_THAT(Texts(Diff(kGan, both, {{"Gen_loss", 0, true}}).diverged),
              ElementsAre("weight dis.w", "loss Gen_loss", "weight_grad gen.w"));
}

TEST_F(SeveralUpdates, ALossOfNoModelStandsInTheLastSegmentThatRanItsMicroBatch) {
  const Keys both = {Updated("dis.w"), Grad("gen.w")};
  EXPECT_THAT(Texts(Diff(kGan, both, {{"general_loss", 0, true}}).diverged),
              ElementsAre("loss general_loss", "weight dis.w", "weight_grad gen.w"));
  EXPECT_THAT(Texts(Diff(kGan, both, {{"loss", 1, true}}).diverged),
              ElementsAre("weight dis.w", "loss loss 1", "weight_grad gen.w"));
  EXPECT_THAT(Texts(Diff(kGan, both, {{"loss", 7, true}}).diverged),
              ElementsAre("weight dis.w", "loss loss 7", "weight_grad gen.w"));
}

TEST_F(SeveralUpdates, ALossStandsInItsSegmentAlsoIfAllTensorsAgree) {
  const DiffReport report = Diff(kGan, {}, {{"dis_loss", 0, true}, {"gen_loss", 1, true}});
  EXPECT_THAT(Texts(report.diverged), ElementsAre("loss dis_loss", "loss gen_loss 1"));
  EXPECT_EQ(report.diverged[0].segment, 0u);
  EXPECT_EQ(report.diverged[1].segment, 1u);
  EXPECT_THAT(Texts(report.origins), ElementsAre("loss dis_loss"));
  EXPECT_EQ(report.first_bitwise->activation, "dis_loss");
}

TEST_F(SeveralUpdates, AMissingGradientExplainsTheUpdatesOfItsWeightFromThereOn) {
  const Keys keys = {Out("x"), Grad("w"), Updated("w"), Out("x", 1), Grad("w", 1), Updated("w", 1)};
  EXPECT_THAT(Texts(Diff(keys, {Updated("w", 1)}, {}, {}, {Grad("w", 1)}).origins),
              ElementsAre("weight_grad w"));
}

TEST_F(SeveralUpdates, ABatchOfALaterCallStandsWhereItWasGiven) {
  const TensorKey first = Key("h", Kind::kBatch), later = Key("h", Kind::kBatch, "", 0, 1);
  const Keys keys = {first, Out("x"), later, Out("x", 0, 1), Back("x"), Updated("w")};
  EXPECT_THAT(
      Texts(Diff(keys, keys).diverged),
      ElementsAre("batch h", "output x", "batch h", "output x", "grad_output x", "weight w"));
  EXPECT_THAT(Texts(Diff(keys, {Out("x"), later, Out("x", 0, 1)}).origins),
              ElementsAre("output x"));
  EXPECT_THAT(Texts(Diff(keys, {later, Out("x", 0, 1)}).origins), ElementsAre("batch h"));
}

TEST_F(SeveralUpdates, OfOneUpdateTheOrderIsThatOfTheStages) {
  const Keys keys = {Key("ids", Kind::kBatch),
                     Out("x"),
                     Back("x"),
                     Out("x", 1),
                     Back("x", 1),
                     Grad("w"),
                     Updated("w")};
  const DiffReport report = Diff(keys, keys, {{"w_loss", 0, true}, {"loss", 1, true}});
  EXPECT_THAT(Texts(report.diverged),
              ElementsAre("batch ids", "output x", "loss w_loss", "grad_output x", "output x 1",
                          "loss loss 1", "grad_output x 1", "weight_grad w", "weight w"));
  for (const Divergence& row : report.diverged) EXPECT_EQ(row.segment, 0u);
}

}  // namespace
}  // namespace statcollect::query
