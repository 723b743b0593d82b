// Maps of names through Diff.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "server/query/query.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {
namespace {

using ::testing::Contains;
using testing::FakeStore;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Key;
using testing::RunWriter;
using testing::Tensor;

Tensor Values(double scale, std::size_t count = 32) {
  Tensor tensor;
  for (std::size_t i = 0; i < count; ++i)
    tensor.values.push_back(scale * std::sin(static_cast<double>(i) + 1));
  return tensor;
}

Tensor Joined(std::initializer_list<double> scales) {
  Tensor joined;
  for (const double scale : scales) {
    const Tensor part = Values(scale);
    joined.values.insert(joined.values.end(), part.values.begin(), part.values.end());
  }
  return joined;
}

class MappedDiff : public ::testing::Test {
 protected:
  DiffReport Diff(const std::string& map) {
    a_.Commit();
    b_.Commit();
    auto report =
        QueryEngine(store_).Diff({.run_a = "a", .run_b = "b", .map = map, .no_alignment = true});
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? *report : DiffReport();
  }
  // A model of one layer; `wrong`: its attention's projection differs.
  void Record(double wrong = 1) {
    const auto a = [&](const char* name, const Tensor& tensor) {
      a_.Observe(0, 0, Key(name), tensor);
    };
    a("model.embed_tokens", Values(1));
    a("model.rotary_emb", Values(9));
    a("model.layers.0.input_layernorm", Values(2));
    a("model.layers.0.self_attn.q_proj", Values(3));
    a("model.layers.0.self_attn.k_proj", Values(4));
    a("model.layers.0.self_attn.v_proj", Values(5));
    a("model.layers.0.self_attn.o_proj", Values(6));
    a("model.norm", Values(7));
    const auto b = [&](const char* name, const Tensor& tensor) {
      b_.Observe(0, 0, Key(name), tensor);
    };
    b("module.embedding.word_embeddings", Values(1));
    b("module.decoder.layers.0.input_layernorm", Values(2));
    b("module.decoder.layers.0.self_attention.linear_qkv", Joined({4, 5, 3}));
    b("module.decoder.layers.0.self_attention.core_attention", Values(8));
    b("module.decoder.layers.0.self_attention.linear_proj", Values(6 * wrong));
    b("module.decoder.final_layernorm", Values(7 * wrong));
  }

  FakeStore store_;
  RunWriter a_{store_, "a"}, b_{store_, "b"};
};

TEST_F(MappedDiff, ABuiltInMapComparesTwoImplementations) {
  Record();
  const DiffReport report = Diff("hf:megatron");
  EXPECT_NE(report.verdict, Verdict::kDiverged);
  EXPECT_EQ(report.compared.records, 5u);
  EXPECT_THAT(report.unmatched.only_a, IsEmpty());
  EXPECT_THAT(report.unmatched.only_b, IsEmpty());
  EXPECT_THAT(report.notes, Contains("the map leaves out 1 name of a, such as model.rotary_emb"));
  EXPECT_THAT(report.notes,
              Contains(HasSubstr(
                  "such as model.layers.0.self_attn.q_proj, are in a different order in b")));
}

TEST_F(MappedDiff, TorchtitansRotaryRowsAreComparedByStatisticsAndItsValuesBitForBit) {
  Tensor reversed = Values(3);
  std::reverse(reversed.values.begin(), reversed.values.end());
  const auto weight = [](const char* name) { return Key(name, Kind::kWeight); };
  a_.Observe(0, 0, weight("model.layers.0.self_attn.q_proj.weight"), Values(3));
  a_.Observe(0, 0, weight("model.layers.0.self_attn.v_proj.weight"), Values(4));
  b_.Observe(0, 0, weight("layers.0.attention.wq.weight"), reversed);
  b_.Observe(0, 0, weight("layers.0.attention.wv.weight"), Values(4));
  EXPECT_NE(Diff("hf:torchtitan").verdict, Verdict::kDiverged);
  EXPECT_EQ(Diff("hf:torchtitan").compared.records, 2u);
  const DiffReport by_name =
      Diff("model.layers.0.self_attn.q_proj.weight -> layers.0.attention.wq.weight");
  EXPECT_EQ(by_name.verdict, Verdict::kDiverged);  // what the map knows matters
}

TEST_F(MappedDiff, TheRanksOfACutRunAreMergedBeforeTheirNamesAreMapped) {
  const Tensor whole = Joined({1, 2});
  a_.Observe(0, 0, Key("model.norm.weight", Kind::kWeight), whole);
  b_.Observe(0, 0, Key("decoder.final_layernorm.weight", Kind::kWeight), whole);
  b_.Observe(1, 0, Key("decoder.final_layernorm.weight", Kind::kWeight), whole);
  a_.Commit();
  b_.Commit();
  auto report =
      QueryEngine(store_).Diff({.run_a = "a", .run_b = "b", .map = "hf:megatron", .logical = true});
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->verdict, Verdict::kIdentical);
  EXPECT_EQ(report->compared.records, 1u);
}

TEST_F(MappedDiff, TheFirstDifferenceIsFoundInTheOrderOfExecution) {
  Record(/*wrong=*/1.1);
  const DiffReport report = Diff("hf:megatron");
  ASSERT_TRUE(report.first);
  EXPECT_EQ(report.first->activation, "model.layers.0.self_attn.o_proj");
  EXPECT_EQ(report.first->reason,
            Reason::kNumeric);  // a fused module before it is not out of order
  ASSERT_TRUE(report.root);
  EXPECT_EQ(report.root->at.activation, "model.layers.0.self_attn.o_proj");
}

TEST_F(MappedDiff, AFusedModuleIsInItsPlaceInTheOrderOfExecution) {
  for (const auto& [name, scale] :
       {std::pair("ln", 1.0), {"q", 2.0}, {"k", 3.0}, {"v", 4.0}, {"o", 5.0}})
    a_.Observe(0, 0, Key(name), Values(scale));
  b_.Observe(0, 0, Key("norm"), Values(1));
  b_.Observe(0, 0, Key("qkv"), Joined({2, 3, 4}));
  b_.Observe(0, 0, Key("proj"), Values(5.5));
  const DiffReport report = Diff("ln -> norm\nq, k, v -> qkv\no -> proj");
  ASSERT_TRUE(report.first);
  EXPECT_EQ(report.first->activation, "o");
  EXPECT_EQ(report.first->reason, Reason::kNumeric);  // not kOrder
  EXPECT_EQ(report.first->previous, "q");
}

TEST_F(MappedDiff, WhatTheMapDoesNotKnowStaysMissing) {
  Record();
  a_.Observe(0, 0, Key("model.layers.0.adapter"), Values(3));
  b_.Observe(0, 0, Key("lm_head_extra.weight", Kind::kOutput), Values(3));
  const DiffReport report = Diff("hf:megatron");
  EXPECT_THAT(report.unmatched.only_a, Contains(HasSubstr("model.layers.0.adapter")));
  EXPECT_THAT(report.unmatched.only_b, Contains(HasSubstr("lm_head_extra.weight")));
  EXPECT_EQ(report.verdict, Verdict::kDiverged);
}

TEST_F(MappedDiff, AMapThatMatchesNothingSaysSo) {
  Record();
  const DiffReport report = Diff("torchtitan:hf");
  EXPECT_EQ(report.verdict, Verdict::kIncomparable);
  EXPECT_THAT(report.notes, Contains(HasSubstr("map torchtitan:hf has no effect")));
}

TEST_F(MappedDiff, OfTwoNamesForOneTheFirstIsComparedAndTheOtherNamed) {
  a_.Observe(0, 0, Key("x"), Values(1)).Observe(0, 0, Key("y"), Values(2));
  b_.Observe(0, 0, Key("z"), Values(1));
  const DiffReport report = Diff("x -> z\ny -> z");
  EXPECT_THAT(
      report.notes,
      Contains(
          "map line 2 'y -> z' has no effect: 'z' of b has been matched with another name of a"));
  EXPECT_THAT(report.unmatched.only_a, Contains(HasSubstr("y")));
}

TEST_F(MappedDiff, ACycleOfNamesThatBothRunsHaveIsComparedByIdentity) {
  a_.Observe(0, 0, Key("x"), Values(1)).Observe(0, 0, Key("y"), Values(2));
  b_.Observe(0, 0, Key("x"), Values(1)).Observe(0, 0, Key("y"), Values(2));
  const DiffReport report = Diff("x -> y\ny -> x");
  EXPECT_EQ(report.verdict, Verdict::kIdentical);
  EXPECT_THAT(report.notes,
              Contains(HasSubstr("map line 1 'x -> y' has no effect: no name of a that b lacks")));
}

TEST_F(MappedDiff, AModuleThatOnlyPassesItsInputOnIsNoCounterpart) {
  Record();
  a_.Observe(0, 0, Key("model.layers.0.post_attention_layernorm"), Values(3));
  b_.OfClass("IdentityOp")
      .Observe(0, 0, Key("module.decoder.layers.0.pre_mlp_layernorm"), Values(8));
  const DiffReport report = Diff("hf:megatron");
  EXPECT_NE(report.verdict, Verdict::kDiverged);
  EXPECT_EQ(report.compared.records, 5u);
}

}  // namespace
}  // namespace statcollect::query
