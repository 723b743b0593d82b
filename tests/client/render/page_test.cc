#include "client/render/page.h"

#include <cmath>

#include <gtest/gtest.h>

#include "client/render/plot.h"

namespace statcollect::client {
namespace {

Page Example() {
  Page page;
  page.AddSentence("at step 3.", "DIVERGED", Tone::kBad);
  page.AddHeading("Compared");
  page.AddItems({"one", "two"});
  Table table({{"a"}});
  table.AddRow({"1"});
  page.AddTable(std::move(table));
  return page;
}

TEST(Page, SeparatesPartsByBlankLinesAndKeepsHeadingsWithWhatFollows) {
  EXPECT_EQ(Example().ToText({}), "DIVERGED at step 3.\n\nCompared\n  one\n  two\n\n  a\n  1\n");
}

TEST(Page, PaintsOnlyWhereColourIsWanted) {
  const std::string painted = Example().ToText({.out = true, .colour = true, .width = 80});
  EXPECT_EQ(painted.substr(0, painted.find('\n')), "\x1b[1;31mDIVERGED\x1b[0m at step 3.");
}

TEST(Page, WritesMarkdown) {
  EXPECT_EQ(Example().ToMarkdown(),
            "**DIVERGED** at step 3.\n\n### Compared\n\n- one\n- two\n\n| a |\n| --- |\n| 1 |\n");
}

TEST(Wrap, BreaksAtBlanksOnly) {
  EXPECT_EQ(Wrap("aaa bbb ccc", 7), "aaa bbb\nccc");
  EXPECT_EQ(Wrap("aaa bbb ccc", 0), "aaa bbb ccc");
  EXPECT_EQ(Wrap("aaa longerword b", 6, 2), "aaa\n  longerword\n  b");
}

TEST(Plot, DrawsOneLineInHalfCells) {
  EXPECT_EQ(Plot({{"l2", {{0, 0}, {1, 1}, {2, 2}, {3, 3}}}}, Axis::kLinear, 10, 2),
            "          3 |      \u2584  \u2580\n"
            "          0 |\u2584  \u2580\n"
            "            +----------\n"
            "             step 0   3\n");
}

TEST(Plot, MarksSeveralLinesApart) {
  const std::string plot =
      Plot({{"rank 0", {{0, 0}, {1, 1}}}, {"rank 1", {{0, 1}, {1, 0}}}}, Axis::kLinear, 10, 4);
  EXPECT_NE(plot.find("* rank 0"), std::string::npos) << plot;
  EXPECT_NE(plot.find("+ rank 1"), std::string::npos) << plot;
}

TEST(Plot, LeavesOutWhatIsNotFiniteAndNeedsTwoPoints) {
  EXPECT_EQ(Plot({{"x", {{0, 1}, {1, NAN}}}}), "");
  EXPECT_NE(Plot({{"x", {{0, 1}, {1, INFINITY}, {2, 1}}}}), "");
}

}  // namespace
}  // namespace statcollect::client
