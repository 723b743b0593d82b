#include "common/csv.h"

#include <regex>
#include <string>

#include <gtest/gtest.h>

namespace statcollect {
namespace {

std::string CsvOf(const std::string& text) {
  std::string field;
  AppendCsvField(text, field);
  return field;
}

TEST(CsvField, TextThatASpreadsheetTakesForAFormulaIsSetOff) {
  EXPECT_EQ(CsvOf("=cmd|' /C calc'!A0"), "'=cmd|' /C calc'!A0");
  EXPECT_EQ(CsvOf("=HYPERLINK(\"http://x\",\"y\")"), "\"'=HYPERLINK(\"\"http://x\"\",\"\"y\"\")\"");
  EXPECT_EQ(CsvOf("+1+1"), "'+1+1");
  EXPECT_EQ(CsvOf("-1+1"), "'-1+1");
  EXPECT_EQ(CsvOf("@SUM(A1)"), "'@SUM(A1)");
  EXPECT_EQ(CsvOf("\t=1"), "'\t=1");
  EXPECT_EQ(CsvOf("\r=1"), "\"'\r=1\"");
  EXPECT_EQ(CsvOf("-inf+nan"), "'-inf+nan");
}

TEST(CsvField, NumbersSignsAndOtherTextStayAsTheyAre) {
  for (const char* text : {"", "plain", "-1.5", "+1e-05", "-inf", "-nan", "0", "-", "a=b",
                           "blocks.1-2", "[1]", "'", "it's"})
    EXPECT_EQ(CsvOf(text), text);
  EXPECT_EQ(CsvOf("a,b"), "\"a,b\"");
}

TEST(CsvField, AReaderWhoRemovesOneApostropheHasTheTextBack) {
  const std::regex set_off("'+[=+\\-@\t\r][^]*");
  for (const std::string text : {"=1", "'=1", "''=1", "'-1", "-1", "'a", "@x", "-x"}) {
    std::string field = CsvOf(text);
    if (std::regex_match(field, set_off)) field.erase(0, 1);
    EXPECT_EQ(field, text);
  }
}

}  // namespace
}  // namespace statcollect
