#include "client/render/table.h"

#include <limits>

#include <gtest/gtest.h>

namespace statcollect::client {
namespace {

Table Example() {
  Table table({{"name", Align::kLeft, true}, {"count", Align::kRight}, {"note"}});
  table.AddRow({"blocks.1.ln2", "12", "first"});
  table.AddRow({"x", "1,234", ""});
  table.AddRow({"y"});
  return table;
}

TEST(Table, AlignsColumnsAndLeavesNoBlanksAtLineEnds) {
  EXPECT_EQ(Example().ToText(),
            "name          count  note\n"
            "blocks.1.ln2     12  first\n"
            "x             1,234\n"
            "y\n");
}

TEST(Table, IndentsAndPaintsOnlyTheHeader) {
  Table table({{"a"}});
  table.AddRow({"1"});
  EXPECT_EQ(table.ToText({.colour = true, .indent = 2}), "  \x1b[1ma\x1b[0m\n  1\n");
}

TEST(Table, ShortensTheMiddleOfLongNamesOnlyWhereThereIsAWidth) {
  Table table({{"name", Align::kLeft, true}, {"value", Align::kRight}});
  table.AddRow({"transformer.layers.10.attention.projection", "0.25"});
  EXPECT_EQ(table.ToText({.width = 32}),
            "name                       value\n"
            "transformer..n.projection   0.25\n");
  EXPECT_NE(table.ToText().find("transformer.layers.10.attention.projection"), std::string::npos);
}

TEST(Table, LeavesOutConstantColumnsAndSaysThem) {
  Table table({{"mb", Align::kRight, false, Use::kIfItVaries},
               {"rank", Align::kRight, false, Use::kIfItVaries},
               {"path", Align::kLeft, false, Use::kIfItVaries},
               {"name"}});
  table.AddRow({"0", "1", "", "a"});
  EXPECT_EQ(table.ToText(), "Every row: micro-batch 0, rank 1\nname\na\n")
      << "an empty one says nothing";
  table.AddRow({"0", "2", "", "b"});
  EXPECT_EQ(table.ToText({.indent = 2}),
            "  Every row: micro-batch 0\n  rank  name\n     1  a\n     2  b\n");
  EXPECT_EQ(table.ToCsv(), "mb,rank,path,name\r\n0,1,,a\r\n0,2,,b\r\n")
      << "programs get every column";
  EXPECT_NE(table.ToMarkdown().find("| mb | rank |"), std::string::npos);
  Table alone({{"rank", Align::kRight, false, Use::kIfItVaries}});
  alone.AddRow({"1"});
  EXPECT_EQ(alone.ToText(), "rank\n   1\n") << "a table keeps a column";
}

TEST(Table, LeavesOutWhatDoesNotFitBeforeItCutsNames) {
  const std::string name = "model.layers.10.self_attn.q_proj.weight";
  Table table({{"name", Align::kLeft, true},
               {"l2", Align::kRight},
               {"min", Align::kRight, false, Use::kIfItFits},
               {"max", Align::kRight, false, Use::kIfItFits}});
  table.AddRow({name, "12.5", "-1.25", "1.75"});
  EXPECT_EQ(table.ToText({.width = 80}).find("lack"), std::string::npos);
  const std::string narrower = table.ToText({.width = 55});
  EXPECT_EQ(narrower.find("For lack of width without: max\n"), 0u) << narrower;
  EXPECT_NE(narrower.find(name + "  12.5  -1.25\n"), std::string::npos) << narrower;
  const std::string cut = table.ToText({.width = 20});
  EXPECT_EQ(cut.find("For lack of width without: min, max\n"), 0u) << cut;
  EXPECT_NE(cut.find("model.layer..proj.weight  12.5\n"), std::string::npos)
      << "24 columns of a name, always\n"
      << cut;
}

TEST(Table, KeepsColumnsThatMayNotShrinkEvenInANarrowTerminal) {
  Table table({{"value", Align::kRight}});
  table.AddRow({std::string(50, '1')});
  EXPECT_EQ(table.ToText({.width = 40}).find(".."), std::string::npos);
}

TEST(Table, CountsCharactersNotBytes) {
  Table table({{"n"}, {"v"}});
  table.AddRow({"\u00e9\u00e9", "1"});
  table.AddRow({"\u5c42", "2"});
  EXPECT_EQ(table.ToText(), "n   v\n\u00e9\u00e9  1\n\u5c42  2\n");
}

TEST(Table, LetsNoEscapeSequenceThrough) {
  Table table({{"name"}});
  table.AddRow({"evil\x1b[31m\nname\u202e"});
  for (const std::string& text : {table.ToText(), table.ToMarkdown(), table.ToCsv(true)}) {
    EXPECT_EQ(text.find('\x1b'), std::string::npos) << text;
    EXPECT_EQ(text.find("\u202e"), std::string::npos) << text;
    EXPECT_NE(text.find("\\x1b"), std::string::npos) << text;
  }
  EXPECT_EQ(table.ToText().find('\n', 5), table.ToText().size() - 1) << "one line a row";
}

TEST(Table, WritesCsvAsRfc4180) {
  Table table({{"plain"}, {"tricky"}});
  table.AddRow({"a b", "a,b"});
  table.AddRow({"", "say \"x\""});
  table.AddRow({"two\nlines", "cr\rlf"});
  EXPECT_EQ(table.ToCsv(),
            "plain,tricky\r\n"
            "a b,\"a,b\"\r\n"
            ",\"say \"\"x\"\"\"\r\n"
            "\"two\nlines\",\"cr\rlf\"\r\n");
}

TEST(Table, WritesMarkdownWithEscapedCells) {
  Table table({{"na|me"}, {"n", Align::kRight}});
  table.AddRow({"a|b_c*`<", "1"});
  EXPECT_EQ(table.ToMarkdown(),
            "| na\\|me | n |\n"
            "| --- | ---: |\n"
            "| a\\|b\\_c\\*\\`\\< | 1 |\n");
}

TEST(ShortenMiddle, KeepsBothEnds) {
  EXPECT_EQ(ShortenMiddle("short", 10), "short");
  EXPECT_EQ(ShortenMiddle("abcdefghij", 6), "ab..ij");
  EXPECT_EQ(DisplayWidth(ShortenMiddle("\u5c42\u5c42\u5c42\u5c42\u5c42", 7)), 6u)
      << "a wide character is not cut in two";
}

TEST(FormatNumber, KeepsSixDigitsAndNamesWhatIsNoNumber) {
  EXPECT_EQ(FormatNumber(0.1234567), "0.123457");
  EXPECT_EQ(FormatNumber(-1e-12), "-1e-12");
  EXPECT_EQ(FormatNumber(std::numeric_limits<double>::quiet_NaN()), "nan");
  EXPECT_EQ(FormatNumber(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(FormatNumber(std::nullopt), "-");
}

TEST(FormatShort, WritesDistances) {
  EXPECT_EQ(FormatShort(0.0113), "1.1e-2");
  EXPECT_EQ(FormatShort(1e-4), "1e-4");
  EXPECT_EQ(FormatShort(-3.04e-8), "-3e-8");
  EXPECT_EQ(FormatShort(0.25), "0.25");
  EXPECT_EQ(FormatShort(0), "0");
  EXPECT_EQ(FormatShort(12345), "1.2e4");
  EXPECT_EQ(FormatShort(std::numeric_limits<double>::infinity()), "inf");
}

TEST(FormatChange, IsRelativeToTheFirstValue) {
  EXPECT_EQ(FormatChange(0.4648, 0.6197), "+33 %");
  EXPECT_EQ(FormatChange(0.6197, 0.4648), "-25 %");
  EXPECT_EQ(FormatChange(-2, -1), "+50 %") << "towards larger values";
  EXPECT_EQ(FormatChange(1, 1.0012), "+0.12 %");
  EXPECT_EQ(FormatChange(1, 1.997), "+100 %");
  EXPECT_EQ(FormatChange(363.278, 363.192), "-2.4e-4");
  EXPECT_EQ(FormatChange(1, 2000), "2e3 times");
  EXPECT_EQ(FormatChange(1, -20), "-20 times");
  EXPECT_EQ(FormatChange(3, 3), "");
  EXPECT_EQ(FormatChange(0, 3), "") << "there is no such ratio";
  EXPECT_EQ(FormatChange(1, std::numeric_limits<double>::quiet_NaN()), "");
}

TEST(FormatCount, GroupsThousands) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1000), "1,000");
  EXPECT_EQ(FormatCount(std::numeric_limits<std::uint64_t>::max()), "18,446,744,073,709,551,615");
}

TEST(FormatBytes, ChoosesTheUnit) {
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.0 KiB");
  EXPECT_EQ(FormatBytes(1024 * 1024 - 1), "1.0 MiB") << "never 1024.0 KiB";
  EXPECT_EQ(FormatBytes(std::numeric_limits<std::uint64_t>::max()), "16.0 EiB");
}

TEST(FormatAgo, SaysHowLong) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  constexpr std::int64_t kNow = 1'700'000'000 * kSecond;
  EXPECT_EQ(FormatAgo(0, kNow), "-");
  EXPECT_EQ(FormatAgo(kNow, kNow), "now");
  EXPECT_EQ(FormatAgo(kNow + 5 * kSecond, kNow), "now") << "clocks differ";
  EXPECT_EQ(FormatAgo(kNow - 59 * kSecond, kNow), "59 s ago");
  EXPECT_EQ(FormatAgo(kNow - 60 * kSecond, kNow), "1 min ago");
  EXPECT_EQ(FormatAgo(kNow - 7500 * kSecond, kNow), "2 h 5 min ago");
  EXPECT_EQ(FormatAgo(kNow - 90000 * kSecond, kNow), "1 d 1 h ago");
}

}  // namespace
}  // namespace statcollect::client
