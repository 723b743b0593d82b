#include "server/query/compare/name_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace statcollect::query {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

NameMap Parsed(const std::string& text) {
  auto map = NameMap::Parse(text);
  EXPECT_TRUE(map.ok()) << map.status().message();
  return map.ok() ? *map : NameMap();
}

std::string Refusal(const std::string& text) { return NameMap::Parse(text).status().message(); }

TEST(NameMap, NamesStandForThemselvesDotsAndAll) {
  const NameMap map =
      Parsed("a.b -> x\r\n# nothing\n\n  Linear_7_0th_output->blocks.0.attn.qkv  \n");
  EXPECT_THAT(map.Find("a.b")->b, ElementsAre("x"));
  EXPECT_FALSE(map.Find("aXb"));
  EXPECT_THAT(Parsed("a -> b  # 0.90 distance 1e-5, maybe").Find("a")->b, ElementsAre("b"));
  EXPECT_THAT(map.Find("Linear_7_0th_output")->b, ElementsAre("blocks.0.attn.qkv"));
}

TEST(NameMap, PatternsMustMatchAWholeNameAndLendTheirGroups) {
  const NameMap map = Parsed("h\\.(\\d+)\\.(.*) -> blocks.\\1.\\2");
  EXPECT_THAT(map.Find("h.12.mlp.fc")->b, ElementsAre("blocks.12.mlp.fc"));
  EXPECT_FALSE(map.Find("xh.1.y"));
  EXPECT_FALSE(map.Find("h.x.y"));
}

TEST(NameMap, TheFirstRuleThatMatchesHolds) {
  const NameMap map = Parsed("a.b -> first\na\\..* -> pattern\na.c -> late");
  EXPECT_THAT(map.Find("a.b")->b, ElementsAre("first"));
  EXPECT_THAT(map.Find("a.c")->b, ElementsAre("pattern"));
}

TEST(NameMap, SeveralNamesOnASideAreTakenTogether) {
  const NameMap map = Parsed("(.*)\\.q{1,2}, \\1.k, \\1.v -> \\1.qkv\nfused -> one, two");
  EXPECT_THAT(map.Find("h.0.q")->a, ElementsAre("h.0.q", "h.0.k", "h.0.v"));
  EXPECT_THAT(map.Find("h.0.qq")->b, ElementsAre("h.0.qkv"));
  EXPECT_THAT(map.Find("fused")->b, ElementsAre("one", "two"));
}

TEST(NameMap, LinesWithoutEffectAreNamed) {
  const NameMap map = Parsed("a.b -> x\n# nothing\nh\\.(\\d+) -> block.\\1\ntypo -> y");
  map.MarkUsed(*map.Find("a.b"));
  (void)map.Find("h.1");  // B has no block.1
  EXPECT_THAT(
      map.Unused("base", "port"),
      ElementsAre(
          "map line 3 'h\\.(\\d+) -> block.\\1' has no effect: the names that it makes of those of "
          "base are missing, or already matched, in port",
          "map line 4 'typo -> y' has no effect: no name of base that port lacks matches it"));
  std::string many;
  for (int i = 0; i < 30; ++i) many += "a" + std::to_string(i) + " -> b\n";
  const auto unused = Parsed(many).Unused("a", "b");
  ASSERT_EQ(unused.size(), 11u);
  EXPECT_EQ(unused.back(), "20 more lines of the map have no effect");
}

TEST(NameMap, LaterRulesApplyWhereTheNamesOfEarlierOnesAreMissing) {
  const NameMap map = Parsed("h\\.(\\d+)\\.ln -> x.\\1\nh.0.ln -> y\nh\\.(.*) -> z.\\1");
  const auto first = map.Find("h.0.ln");
  EXPECT_THAT(first->b, ElementsAre("x.0"));
  const auto second = map.Find("h.0.ln", first->rule + 1);
  EXPECT_THAT(second->b, ElementsAre("y"));
  const auto third = map.Find("h.0.ln", second->rule + 1);
  EXPECT_THAT(third->b, ElementsAre("z.0.ln"));
  EXPECT_FALSE(map.Find("h.0.ln", third->rule + 1));
}

TEST(NameMap, ALineMayLeaveNamesOut) {
  const NameMap map = Parsed("rope -> -\n- -> h\\.\\d+\\.drop\n- -> -x");
  EXPECT_TRUE(map.Find("rope")->b.empty());
  EXPECT_TRUE(map.LeavesOut("h.3.drop"));
  EXPECT_TRUE(map.LeavesOut("-x"));
  EXPECT_FALSE(map.LeavesOut("h.3.dropout"));
  EXPECT_FALSE(map.Find("h.3.drop"));
}

TEST(NameMap, OptionsSayHowElementsLie) {
  const NameMap map = Parsed("a -> b [sequence first, padded]\nc -> d[0]\ne -> f [any order]");
  EXPECT_EQ(map.Find("a")->relation, (NameRelation{.sequence_first = true, .padded = true}));
  EXPECT_THAT(map.Find("a")->b, ElementsAre("b"));
  EXPECT_THAT(map.Find("c")->b, ElementsAre("d[0]"));
  EXPECT_EQ(map.Find("e")->relation, (NameRelation{.any_order = true}));
}

TEST(NameMap, ABuiltInMapIsGivenByItsName) {
  const NameMap map = Parsed(" hf:megatron\n");
  EXPECT_THAT(map.Find("model.layers.11.self_attn.q_proj.weight")->a,
              ElementsAre("model.layers.11.self_attn.q_proj.weight",
                          "model.layers.11.self_attn.k_proj.weight",
                          "model.layers.11.self_attn.v_proj.weight"));
  EXPECT_THAT(map.Find("model.layers.11.self_attn.q_proj.weight")->b,
              ElementsAre("decoder.layers.11.self_attention.linear_qkv.weight"));
  EXPECT_THAT(Refusal("hf:jax"),
              HasSubstr("no built-in map 'hf:jax'; known are hf:megatron, hf:torchtitan, "));
  EXPECT_THAT(map.Unused("a", "b"), ElementsAre(HasSubstr("map hf:megatron has no effect")));
  map.MarkUsed(*map.Find("lm_head"));
  EXPECT_TRUE(map.Unused("a", "b").empty());
}

TEST(NameMap, ANameThatTwoOthersClaimIsSaid) {
  const NameMap map = Parsed("a -> x\nb -> x");
  map.MarkUsed(*map.Find("a"));
  map.MarkTaken(*map.Find("b"), "x");
  EXPECT_THAT(map.Unused("base", "port"),
              ElementsAre("map line 2 'b -> x' has no effect: 'x' of port has been matched with "
                          "another name of base"));
}

TEST(NameMap, WrongLinesAreNamed) {
  EXPECT_THAT(Refusal("a -> b [any odor]"),
              HasSubstr("found the option 'any odor'; expected any order"));
  EXPECT_THAT(Refusal("a, b -> -"), HasSubstr("found '-' with several names"));
  EXPECT_THAT(Refusal("- -> -"), HasSubstr("found '-' with several names"));
  EXPECT_THAT(Refusal("- -> (b"), HasSubstr("is not a pattern"));
  EXPECT_THAT(Refusal("ok -> fine\nnothing here"),
              HasSubstr("map line 2 'nothing here': found no '->'"));
  EXPECT_THAT(Refusal("a -> "), HasSubstr("found an empty name"));
  EXPECT_THAT(Refusal("a,,b -> c"), HasSubstr("found an empty name"));
  EXPECT_THAT(Refusal("(a -> b"), HasSubstr("is not a pattern: missing )"));
  EXPECT_THAT(Refusal("a(.) -> \\2"), HasSubstr("requests 2 matches"));
  EXPECT_THAT(Refusal(std::string((2 << 20) + 1, 'a')), HasSubstr("expected at most 2097152"));
  std::string many;
  for (int i = 0; i < 1001; ++i) many += "a(.) -> b\n";
  EXPECT_THAT(Refusal(many), HasSubstr("more than 1000 regular expressions"));
}

TEST(NameMap, ManyNamesAndHostilePatternsTakeNoTime) {
  std::string text = "(a*)*(a*)*(a*)*b -> x\n";
  for (int i = 0; i < 30'000; ++i)
    text += "m." + std::to_string(i) + " -> n." + std::to_string(i) + "\n";
  const NameMap map = Parsed(text);
  EXPECT_THAT(map.Find("m.29999")->b, ElementsAre("n.29999"));
  EXPECT_FALSE(map.Find(std::string(4000, 'a')));
}

}  // namespace
}  // namespace statcollect::query
