#include "common/known_maps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace statcollect {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Rules(const char* name) {
  const auto rules = KnownMap(name);
  EXPECT_TRUE(rules.ok()) << name;
  return rules.ok() ? *rules : "";
}

TEST(KnownMaps, EveryOrderOfTwoImplementationsHasOne) {
  EXPECT_EQ(KnownMapNames().size(), 12u);
  for (const std::string& name : KnownMapNames()) EXPECT_TRUE(LooksLikeKnownMap(name)) << name;
}

TEST(KnownMaps, UnknownOnesListTheKnown) {
  EXPECT_THAT(
      KnownMap("hf:jax").status().message(),
      HasSubstr("found no built-in map 'hf:jax'; known are hf:megatron, hf:torchtitan, hf:vllm, "
                "megatron:hf"));
  EXPECT_FALSE(KnownMap("hf:hf").ok());
  EXPECT_FALSE(KnownMap("").ok());
}

TEST(KnownMaps, LinesAndPathsAreNotTakenForNames) {
  for (const char* text :
       {"a -> b", "names.txt", "", ":", "hf:", ":hf", "a:b:c", "hf:mega tron", "C:\\names"})
    EXPECT_FALSE(LooksLikeKnownMap(text)) << text;
}

TEST(KnownMaps, AFusedModuleStandsForItsPartsInBothDirections) {
  EXPECT_THAT(Rules("hf:megatron"), HasSubstr("\nmodel\\.layers\\.(\\d+)\\.mlp\\.gate_proj\\.("
                                              "weight|bias), model.layers.\\1.mlp.up_proj.\\2 -> "
                                              "decoder.layers.\\1.mlp.linear_fc1.\\2\n"));
  EXPECT_THAT(
      Rules("megatron:torchtitan"),
      HasSubstr("\ndecoder\\.layers\\.(\\d+)\\.self_attention\\.linear_qkv\\.(weight|bias) -> "
                "layers.\\1.attention.wq.\\2, layers.\\1.attention.wk.\\2, "
                "layers.\\1.attention.wv.\\2\n"));
}

TEST(KnownMaps, VllmHasTheNamesOfHuggingFaceExceptForWhatItMergesAndItsExperts) {
  const std::string rules = Rules("hf:vllm");
  EXPECT_THAT(rules, HasSubstr("\nmodel\\.layers\\.(\\d+)\\.self_attn\\.q_proj\\.(weight|bias), "
                               "model.layers.\\1.self_attn.k_proj.\\2, "
                               "model.layers.\\1.self_attn.v_proj.\\2 -> "
                               "model.layers.\\1.self_attn.qkv_proj.\\2\n"));
  EXPECT_THAT(rules,
              HasSubstr("\nmodel\\.layers\\.(\\d+)\\.mlp -> model.layers.\\1.block_sparse_moe\n"));
  EXPECT_THAT(rules, HasSubstr("\nmodel\\.layers\\.(\\d+)\\.mlp\\.experts\\.gate_up_proj -> "
                               "model.layers.\\1.mlp.experts.routed_experts.w13_weight\n"));
  EXPECT_THAT(rules, Not(HasSubstr("o_proj")));
  EXPECT_THAT(rules, Not(HasSubstr("padded")));
  EXPECT_THAT(Rules("megatron:vllm"),
              HasSubstr("\ndecoder\\.layers\\.(\\d+)\\.mlp\\.linear_fc1\\.(weight|bias) -> "
                        "model.layers.\\1.mlp.gate_up_proj.\\2\n"));
}

TEST(KnownMaps, OnlyTheRotaryRowsOfTorchtitanAreInAnotherOrder) {
  const std::string rules = Rules("torchtitan:hf");
  EXPECT_THAT(rules, HasSubstr("layers\\.(\\d+)\\.attention\\.wk\\.(weight|bias) -> "
                               "model.layers.\\1.self_attn.k_proj.\\2 [any order]\n"));
  EXPECT_THAT(rules, HasSubstr("layers\\.(\\d+)\\.attention\\.wv\\.(weight|bias) -> "
                               "model.layers.\\1.self_attn.v_proj.\\2\n"));
  EXPECT_THAT(rules, Not(HasSubstr("sequence first")));
  EXPECT_THAT(rules, Not(HasSubstr("padded")));
}

TEST(KnownMaps, MegatronHasTheSequenceFirstAndAPaddedVocabulary) {
  const std::string rules = Rules("megatron:hf");
  EXPECT_THAT(rules, HasSubstr("\noutput_layer -> lm_head [sequence first, padded]\n"));
  EXPECT_THAT(rules, HasSubstr("\noutput_layer\\.(weight|bias) -> lm_head.\\1 [padded]\n"));
  EXPECT_THAT(rules, HasSubstr("\ndecoder\\.final_layernorm\\.(weight|bias) -> model.norm.\\1\n"));
}

TEST(KnownMaps, OutputsThatMegatronCompletesLaterAreLeftOutButTheirParametersAreNot) {
  const std::string rules = Rules("hf:megatron");
  EXPECT_THAT(rules, HasSubstr("\ntransformer\\.h\\.(\\d+)\\.mlp\\.c_fc\\.(weight|bias) -> "
                               "decoder.layers.\\1.mlp.linear_fc1.\\2 [any order]\n"));
  EXPECT_THAT(rules, HasSubstr("\ntransformer\\.h\\.(\\d+)\\.mlp\\.c_fc -> -\n"));
  EXPECT_THAT(rules, Not(HasSubstr("c_fc -> decoder")));
}

TEST(KnownMaps, NoParameterIsLeftOut) {
  for (const std::string& name : KnownMapNames()) {
    const std::string rules = Rules(name.c_str());
    for (std::size_t at = 0; at < rules.size(); at = rules.find('\n', at) + 1) {
      const std::string line = rules.substr(at, rules.find('\n', at) - at);
      if (line.ends_with(" -> -") || line.starts_with("- -> ")) {
        EXPECT_THAT(line, Not(HasSubstr("weight"))) << name;
      }
    }
  }
}

}  // namespace
}  // namespace statcollect
