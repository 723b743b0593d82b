#include "server/query/answers/weights.h"

#include <algorithm>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/query/query.h"
#include "tests/server/query/ask.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {
namespace {

using testing::Ask;
using ::testing::ElementsAre;
using testing::FakeStore;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Key;
using testing::RunWriter;
using testing::Tensor;

// Elements of one weight in one step: no two of them are alike.
Tensor Elements(std::uint64_t seed, std::uint64_t step = 0, std::size_t count = 64) {
  Tensor tensor;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bits = testing::MixBits(seed * 1'000'000 + step * 1000 + i + 1);
    tensor.values.push_back(static_cast<double>(bits >> 40) / (1 << 24) - 0.5);
  }
  return tensor;
}

TensorKey Weight(const std::string& name, Mode mode = Mode::kTrain) {
  return Key(name, Kind::kWeight, "", 0, 0, mode);
}
// As statagent.fingerprint records it.
TensorKey Print(const std::string& name) { return Weight(name, Mode::kEval); }

class WeightsTest : public ::testing::Test {
 protected:
  // Weights "p" and "q", new ones in each of the steps 5 to 7.
  void SetUp() override {
    RunWriter trainer(store_, "trainer");
    trainer.Observe(0, 5, Weight("p", Mode::kInit), Elements(9));
    for (std::uint64_t step = 5; step < 8; ++step) {
      trainer.Observe(0, step, Key("layer"), Elements(3, step));
      trainer.Observe(0, step, Weight("p"), Elements(1, step));
      trainer.Observe(0, step, Weight("q"), Elements(2, step));
    }
    trainer.Commit();
  }
  // The engine's answer to "did they arrive": counts, and a line for each row.
  std::vector<std::string> Rows(WeightsRequest request = {}) {
    request.run_a = "trainer";
    if (request.run_b.empty()) request.run_b = "engine";
    const auto found = Ask(store_, GetWeights, request);
    if (!found.ok()) return {std::string(found.status().message())};
    equal_ = found->equal();
    compared_ = found->compared();
    step_ = found->step();
    notes_.assign(found->notes().begin(), found->notes().end());
    std::vector<std::string> rows;
    for (const v1::WeightRow& row : found->records()) {
      std::string text = v1::WeightState_Name(row.state()).substr(13) + " " + row.name_a() + " " +
                         row.name_b() + " rank " + std::to_string(row.rank());
      if (row.equals_step() > 0) text += " step " + std::to_string(row.equals_step());
      if (!row.equals_name().empty()) text += " as " + row.equals_name();
      rows.push_back(text);
    }
    return rows;
  }
  void Engine(std::uint64_t step, const Tensor& p, const Tensor& q) {
    RunWriter(store_, "engine")
        .Observe(0, step, Print("p"), p)
        .Observe(0, step, Print("q"), q)
        .Commit();
  }

  FakeStore store_;
  std::uint64_t equal_ = 0, compared_ = 0, step_ = 0;
  std::vector<std::string> notes_;
};

TEST_F(WeightsTest, TheyArrivedIfTheirBitsAreEqual) {
  Engine(6, Elements(1, 6), Elements(2, 6));
  EXPECT_THAT(Rows(), IsEmpty());
  EXPECT_EQ(std::tuple(equal_, compared_, step_), std::tuple(2u, 2u, 6u));
}

TEST_F(WeightsTest, AWeightOfAnEarlierStepIsStale) {
  Engine(7, Elements(1, 7), Elements(2, 5));
  EXPECT_THAT(Rows(), ElementsAre("STALE q q rank 0 step 5"));
  EXPECT_EQ(std::tuple(equal_, compared_), std::tuple(1u, 2u));
}

TEST_F(WeightsTest, WeightsThatTookEachOthersPlaceAreExchanged) {
  Engine(7, Elements(2, 7), Elements(1, 7));
  EXPECT_THAT(Rows(), ElementsAre("EXCHANGED p p rank 0 as q", "EXCHANGED q q rank 0 as p"));
}

TEST_F(WeightsTest, TheSameElementsInAnotherOrderArePermuted) {
  Tensor turned = Elements(1, 7);
  std::rotate(turned.values.begin(), turned.values.begin() + 32, turned.values.end());
  Engine(7, turned, Elements(2, 7));
  EXPECT_THAT(Rows(), ElementsAre("PERMUTED p p rank 0"));
  turned.values[0] *= 1.001;
  RunWriter(store_, "other").Observe(0, 7, Print("p"), turned).Commit();
  EXPECT_THAT(Rows({.run_b = "other"}),
              ElementsAre("DIFFERS p p rank 0", "MISSING_IN_B q  rank 0"));
}

TEST_F(WeightsTest, ARoundedWeightIsACastAndALargerDifferenceIsNot) {
  Tensor cast = Elements(1, 7);
  cast.dtype = DType::kBf16;
  for (double& value : cast.values) value *= 1 + 1.0 / 1024;
  Tensor scaled = Elements(2, 7);
  scaled.dtype = DType::kBf16;
  for (double& value : scaled.values) value *= 1.02;
  Engine(7, cast, scaled);
  EXPECT_THAT(Rows(), ElementsAre("CAST p p rank 0", "DIFFERS q q rank 0"));
}

TEST_F(WeightsTest, OtherShapesDifferWithoutADistance) {
  Engine(7, Elements(1, 7, 32), Elements(2, 7));
  EXPECT_THAT(Rows(), ElementsAre("DIFFERS p p rank 0"));
}

TEST_F(WeightsTest, NamesAreMappedAndMissingOnesAreSaid) {
  RunWriter engine(store_, "engine");
  engine.Observe(0, 7, Print("model.p"), Elements(1, 7))
      .Observe(0, 7, Print("model.r"), Elements(1, 7));
  engine.Commit();
  EXPECT_THAT(Rows({.map = "(.*) -> model.\\1"}),
              ElementsAre("MISSING_IN_A  model.r rank 0", "MISSING_IN_B q  rank 0"));
  EXPECT_THAT(Rows({.map = "x -> y"}), ::testing::SizeIs(4));
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("line 1")));
}

TEST_F(WeightsTest, AFusedWeightIsComparedByStatistics) {
  Tensor fused = Elements(1, 7);
  const Tensor q = Elements(2, 7);
  fused.values.insert(fused.values.end(), q.values.begin(), q.values.end());
  RunWriter(store_, "engine").Observe(0, 7, Print("pq"), fused).Commit();
  EXPECT_THAT(Rows({.map = "p, q -> pq"}), ElementsAre("SAME_STATISTICS p pq rank 0"));
  fused.values[3] += 1;
  RunWriter(store_, "wrong").Observe(0, 7, Print("pq"), fused).Commit();
  EXPECT_THAT(Rows({.run_b = "wrong", .map = "p, q -> pq"}), ElementsAre("DIFFERS p pq rank 0"));
}

TEST_F(WeightsTest, TheBuiltInMapThatFitsTheNamesOfBothIsProposed) {
  const std::string layer = "model.layers.3.";
  RunWriter(store_, "trainer")
      .Observe(0, 8, Print(layer + "mlp.experts.down_proj"), Elements(1))
      .Observe(0, 8, Print(layer + "mlp.gate.weight"), Elements(2))
      .Observe(0, 8, Print("own"), Elements(3))
      .Commit();
  RunWriter(store_, "engine")
      .Observe(0, 8, Print(layer + "block_sparse_moe.experts.routed_experts.w2_weight"),
               Elements(1))
      .Observe(0, 8, Print(layer + "block_sparse_moe.gate.weight"), Elements(2))
      .Commit();
  EXPECT_THAT(Rows(), ::testing::SizeIs(5));
  EXPECT_THAT(notes_, ElementsAre("names differ as those of the built-in map hf:vllm: "
                                  "--map hf:vllm pairs 2 of 3 names that only one run has"));
  EXPECT_THAT(Rows({.map = "hf:vllm"}), ElementsAre("MISSING_IN_B own  rank 0"));
  EXPECT_THAT(notes_, IsEmpty());
  RunWriter(store_, "other").Observe(0, 8, Print("alone"), Elements(1)).Commit();
  EXPECT_THAT(Rows({.run_b = "other"}), ::testing::SizeIs(4));
  EXPECT_THAT(notes_, IsEmpty());
}

TEST_F(WeightsTest, EachRankOfTheReceiverIsCompared) {
  RunWriter engine(store_, "engine", 2);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    engine.Observe(rank, 7, Print("p"), Elements(1, rank == 0 ? 7 : 6));
    engine.Observe(rank, 7, Print("q"), Elements(2, 7));
  }
  engine.Commit();
  EXPECT_THAT(Rows(), ElementsAre("STALE p p rank 1 step 6"));
  EXPECT_EQ(std::tuple(equal_, compared_), std::tuple(3u, 4u));
}

TEST_F(WeightsTest, RanksThatHoldDifferentWeightsAreOneModel) {
  RunWriter(store_, "engine", 2)
      .Observe(0, 7, Print("p"), Elements(1, 7))
      .Observe(1, 7, Print("q"), Elements(2, 7))
      .Commit();
  EXPECT_THAT(Rows(), IsEmpty());
}

TEST_F(WeightsTest, AFingerprintCountsBeforeTheUpdateOfItsStep) {
  RunWriter(store_, "engine")
      .Observe(0, 7, Print("p"), Elements(1, 7))
      .Observe(0, 7, Weight("p"), Elements(1, 99))
      .Observe(0, 7, Weight("q"), Elements(2, 7))
      .Commit();
  EXPECT_THAT(Rows(), IsEmpty());
}

TEST_F(WeightsTest, WithoutACommonStepItSaysWhichThereAre) {
  Engine(20, Elements(1, 7), Elements(2, 7));
  EXPECT_THAT(Rows(), ElementsAre(HasSubstr("trainer has steps to 7, engine to 20")));
  EXPECT_THAT(Rows({.step = 7}), ElementsAre(HasSubstr("not both have weights in step 7")));
  EXPECT_THAT(Rows({.run_b = "nobody"}), ElementsAre(HasSubstr("nobody")));
  const auto bad = FromWire([] {
    v1::GetWeightsRequest request;
    request.set_run_a("a");
    request.set_run_b("b");
    request.set_map("no arrow");
    return request;
  }());
  EXPECT_EQ(bad.status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace statcollect::query
