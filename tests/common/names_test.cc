#include "common/names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace statcollect {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(RunName, AcceptsLettersDigitsDotUnderscoreDash) {
  for (const std::string& name : {std::string("a"), std::string("0"), std::string("base-2.1_x"),
                                  std::string(kRunNameBytesMax, 'z')}) {
    EXPECT_TRUE(ValidateRunName(name).ok()) << name;
  }
}

TEST(RunName, RefusesEverythingElse) {
  for (const std::string& name :
       {std::string(), std::string(".hidden"), std::string("-rf"), std::string("_x"),
        std::string("a/b"), std::string("../a"), std::string("a b"), std::string("a\n"),
        std::string("a\0b", 3), std::string("\xc3\xa9"), std::string("na\xc3\xafve"),
        std::string("a\xff"), std::string(kRunNameBytesMax + 1, 'z')}) {
    const Status status = ValidateRunName(name);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << Printable(name);
    EXPECT_THAT(status.message(), HasSubstr("choose another name"));
  }
}

TEST(RunName, MessageShowsTheOffendingPartPrintably) {
  EXPECT_THAT(ValidateRunName("a\x1b[31m").message(),
              AllOf(HasSubstr("found '\\x1b' at byte 1"), Not(HasSubstr("\x1b"))));
  EXPECT_THAT(ValidateRunName("na\xc3\xafve").message(), HasSubstr("found '\xc3\xaf' at byte 2"));
  EXPECT_THAT(ValidateRunName("a\xff").message(), HasSubstr("found '\\xff' at byte 1"));
  const std::string huge = ValidateRunName(std::string(1 << 20, 'z')).message();
  EXPECT_THAT(huge, HasSubstr("it has 1048576 bytes"));
  EXPECT_LT(huge.size(), 1000u);
}

TEST(TensorName, AcceptsUtf8IncludingTheEdgesOfEachLength) {
  for (const char* name :
       {"transformer.h.0.ln_1", "loss", "a b/c [0] {x}", "\x7e", "\xc2\xa0", "\xdf\xbf",
        "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80", "\xef\xbf\xbd", "\xf0\x90\x80\x80",
        "\xf4\x8f\xbf\xbf", "\xe5\xb1\x82.\xf0\x9f\x94\xa5"}) {
    EXPECT_TRUE(ValidateTensorName("activation", name).ok()) << name;
  }
  EXPECT_TRUE(ValidateTensorName("activation", std::string(kTensorNameBytesMax, 'x')).ok());
}

TEST(TensorName, RefusesInvalidUtf8) {
  for (const char* name : {
           "\x80",
           "\xbf",  // continuation without a lead
           "\xc0\x80",
           "\xc1\xbf",  // overlong, two bytes
           "\xe0\x80\x80",
           "\xe0\x9f\xbf",  // overlong, three bytes
           "\xf0\x80\x80\x80",
           "\xf0\x8f\xbf\xbf",  // overlong, four bytes
           "\xed\xa0\x80",
           "\xed\xbf\xbf",  // surrogates
           "\xf4\x90\x80\x80",
           "\xf5\x80\x80\x80",  // beyond U+10FFFF
           "\xf8\x88\x80\x80\x80",
           "\xfe",
           "\xff",  // never in UTF-8
           "\xc3",
           "\xe2\x82",
           "\xf0\x9f\x94",
           "a\xe2\x82",  // cut off
           "\xc3\x28",
           "\xe2\x28\xa1",
           "\xf0\x9f\x28\xa5",  // wrong continuation
       }) {
    const Status status = ValidateTensorName("activation", name);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << Printable(name);
    EXPECT_THAT(status.message(), HasSubstr("found invalid UTF-8 at byte"));
  }
}

TEST(TensorName, RefusesControlCharacters) {
  for (int c = 0; c < 0x20; ++c) {
    EXPECT_FALSE(ValidateTensorName("scalar", std::string("a") + static_cast<char>(c)).ok()) << c;
  }
  EXPECT_FALSE(ValidateTensorName("scalar", "a\x7f").ok());
  for (int c = 0x80; c <= 0x9f; ++c) {
    EXPECT_FALSE(ValidateTensorName("scalar", std::string("\xc2") + static_cast<char>(c)).ok())
        << c;
  }
  EXPECT_TRUE(ValidateTensorName("scalar", " ").ok());
}

TEST(TensorName, RefusesBidirectionalControlsButNotTheirNeighbours) {
  for (const char* name : {"\xe2\x80\xaa", "\xe2\x80\xab", "\xe2\x80\xac", "\xe2\x80\xad",
                           "\xe2\x80\xae", "\xe2\x81\xa6", "\xe2\x81\xa7", "\xe2\x81\xa8",
                           "\xe2\x81\xa9", "\xe2\x80\x8e", "\xe2\x80\x8f", "\xd8\x9c"}) {
    EXPECT_THAT(ValidateTensorName("activation", name).message(),
                HasSubstr("bidirectional control at byte 0"));
  }
  for (const char* name : {"\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\xa5", "\xe2\x81\xaa",
                           "\xe2\x80\x8d", "\xe2\x80\x90", "\xd8\x9b", "\xd8\x9d"}) {
    EXPECT_TRUE(ValidateTensorName("activation", name).ok()) << Printable(name);
  }
}

TEST(TensorName, RefusesEmptyAndTooLong) {
  EXPECT_THAT(ValidateTensorName("scalar", "").message(),
              HasSubstr("accept scalar name '': it is empty"));
  EXPECT_THAT(ValidateTensorName("scalar", std::string(kTensorNameBytesMax + 1, 'x')).message(),
              HasSubstr("it has 1025 bytes"));
}

TEST(Printable, EscapesWhatWouldHarmATerminalAndKeepsTheRest) {
  EXPECT_EQ(Printable("plain caf\xc3\xa9"), "plain caf\xc3\xa9");
  EXPECT_EQ(Printable("\x1b[0m\n\xff\xc2\x9b\xe2\x80\xae"),
            "\\x1b[0m\\x0a\\xff\\xc2\\x9b\\xe2\\x80\\xae");
  EXPECT_EQ(Printable(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(Printable(""), "");
}

TEST(Printable, CutsWithoutSplittingACharacter) {
  EXPECT_EQ(Printable("abcdef", 6), "abcdef");
  EXPECT_EQ(Printable("abcdef", 5), "abcde...");
  EXPECT_EQ(Printable("ab\xc3\xa9", 3), "ab...");
  EXPECT_EQ(Printable("ab\n", 4), "ab...");
  EXPECT_EQ(Printable("a", 0), "...");
}

template <typename Enum, typename Parse>
void ExpectDistinctNamesThatParseBack(int count, Parse parse) {
  std::set<std::string_view> seen;
  for (int i = 1; i < count; ++i) {
    const auto value = static_cast<Enum>(i);
    EXPECT_TRUE(seen.insert(Name(value)).second) << Name(value);
    EXPECT_EQ(parse(Name(value)), value);
  }
  EXPECT_EQ(Name(static_cast<Enum>(0)), "unspecified");
  EXPECT_EQ(Name(static_cast<Enum>(count)), "unspecified");
  EXPECT_EQ(Name(static_cast<Enum>(255)), "unspecified");
  for (const char* other : {"", "unspecified", "F32", "f32 ", "Output", "erro", "errors"}) {
    EXPECT_FALSE(parse(other).has_value()) << other;
  }
}

TEST(EnumNames, AreDistinctAndParseBack) {
  ExpectDistinctNamesThatParseBack<DType>(kDTypeCount, ParseDType);
  ExpectDistinctNamesThatParseBack<Kind>(kKindCount, ParseKind);
  ExpectDistinctNamesThatParseBack<IfExists>(kIfExistsCount, ParseIfExists);
  EXPECT_EQ(Name(Mode::kTrain), "train");
  EXPECT_EQ(Name(Mode::kEval), "eval");
  EXPECT_EQ(Name(Mode::kInit), "init");
  EXPECT_EQ(Name(static_cast<Mode>(9)), "unspecified");
}

TEST(EnumNames, AreThoseOfTheDataModel) {
  EXPECT_EQ(Name(DType::kF8E4M3), "f8e4m3");
  EXPECT_EQ(Name(DType::kBf16), "bf16");
  EXPECT_EQ(Name(DType::kC128), "c128");
  EXPECT_EQ(Name(DType::kBool), "bool");
  EXPECT_EQ(Name(DType::kU16), "u16");
  EXPECT_EQ(Name(Kind::kGradOutput), "grad_output");
  EXPECT_EQ(Name(Kind::kWeightGrad), "weight_grad");
  EXPECT_EQ(Name(Kind::kOptimizerState), "optimizer_state");
  EXPECT_EQ(Name(IfExists::kReplace), "replace");
}

TEST(DTypeBytes, CountsBothPartsOfComplexNumbers) {
  const std::size_t expected[kDTypeCount] = {0, 8, 4, 2, 2, 1, 1, 1, 2, 4, 8, 1, 2, 4, 8, 1, 8, 16};
  for (int i = 0; i < kDTypeCount; ++i)
    EXPECT_EQ(DTypeBytes(static_cast<DType>(i)), expected[i]) << i;
  EXPECT_EQ(DTypeBytes(static_cast<DType>(200)), 0u);
}

}  // namespace
}  // namespace statcollect
