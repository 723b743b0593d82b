#include "server/query/answers/propose_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "server/query/compare/name_map.h"
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
using ::testing::Not;
using testing::RunWriter;
using testing::Tensor;

Tensor Values(double seed, double noise = 0, std::size_t count = 64) {
  Tensor tensor;
  for (std::size_t i = 0; i < count; ++i)
    tensor.values.push_back(std::sin(seed * 7.1 + static_cast<double>(i * i)) +
                            noise * std::cos(static_cast<double>(i)));
  return tensor;
}

Tensor Ones() { return {.values = std::vector<double>(64, 1)}; }

class Propose : public ::testing::Test {
 protected:
  static TensorKey Weight(const std::string& name) { return Key(name, Kind::kWeight); }
  void A(const std::string& name, const Tensor& tensor, std::uint64_t step = 0) {
    a_.Observe(0, step, Weight(name), tensor);
  }
  void B(const std::string& name, const Tensor& tensor, std::uint64_t step = 0) {
    b_.Observe(0, step, Weight(name), tensor);
  }
  v1::ProposeMapResponse Report() {
    a_.Commit();
    b_.Commit();
    auto report = Ask(store_, ProposeMap, {.run_a = "a", .run_b = "b"});
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? *report : v1::ProposeMapResponse();
  }
  // "x>y hash", in order; with "?" if it is ambiguous.
  static std::vector<std::string> Pairs(const v1::ProposeMapResponse& report) {
    std::vector<std::string> pairs;
    for (const v1::ProposedName& one : report.records())
      pairs.push_back(one.a() + ">" + one.b() + (one.ambiguous() ? "?" : "") + " " + one.method());
    return pairs;
  }

  FakeStore store_;
  RunWriter a_{store_, "a"}, b_{store_, "b"};
};

TEST_F(Propose, EqualBitsArePairedWhateverTheOrder) {
  for (int i = 0; i < 3; ++i) A("a" + std::to_string(i), Values(i));
  for (int i = 2; i >= 0; --i) B("b" + std::to_string(i), Values(i));
  const v1::ProposeMapResponse report = Report();
  EXPECT_THAT(Pairs(report), ElementsAre("a0>b0 hash", "a1>b1 hash", "a2>b2 hash"));
  EXPECT_THAT(report.map(), HasSubstr("\na1 -> b1  # 1.00 equal bits in all records\n"));
}

TEST_F(Propose, TensorsThatDifferByRoundingArePairedByDistance) {
  for (int i = 0; i < 5; ++i) A("a" + std::to_string(i), Values(i));
  for (int i = 0; i < 5; ++i) B("b" + std::to_string(i), Values(i, 1e-6));
  const v1::ProposeMapResponse report = Report();
  EXPECT_THAT(Pairs(report), ElementsAre("a0>b0 distance", "a1>b1 distance", "a2>b2 distance",
                                         "a3>b3 distance", "a4>b4 distance"));
  EXPECT_DOUBLE_EQ(report.records(0).confidence(), 0.9);
}

TEST_F(Propose, OtherTensorsOfTheSameShapeAreNotPaired) {
  A("a", Values(1));
  B("b", Values(2));
  const v1::ProposeMapResponse report = Report();
  EXPECT_THAT(report.records(), IsEmpty());
  EXPECT_THAT(report.only_a(), ElementsAre("a"));
  EXPECT_THAT(report.only_b(), ElementsAre("b"));
  EXPECT_THAT(report.map(), HasSubstr("\n# only in a: a\n# only in b: b\n"));
}

TEST_F(Propose, LaterValuesTellEqualOnesApart) {
  for (const char* name : {"a0", "a1"}) A(name, Ones());
  for (const char* name : {"b1", "b0"}) B(name, Ones());
  A("a0", Values(1), 1);
  A("a1", Values(2), 1);
  B("b0", Values(1), 1);
  B("b1", Values(2), 1);
  EXPECT_THAT(Pairs(Report()), ElementsAre("a0>b0 hash", "a1>b1 hash"));
}

TEST_F(Propose, EqualLayersAreToldApartByTheOrderOfDefinitionBetweenPairs) {
  A("a0", Values(1));
  A("an0", Ones());
  A("a1", Values(2));
  A("an1", Ones());
  B("b0", Values(1));
  B("bn0", Ones());
  B("b1", Values(2));
  B("bn1", Ones());
  const v1::ProposeMapResponse report = Report();
  EXPECT_THAT(Pairs(report),
              ElementsAre("a0>b0 hash", "an0>bn0 order", "a1>b1 hash", "an1>bn1 order"));
  EXPECT_LT(report.records(1).confidence(), 0.9);
}

TEST_F(Propose, ConstantsSideBySideAreAmbiguousAndOnlyComments) {
  A("a0", Ones());
  A("a1", Ones());
  B("b0", Ones());
  B("b1", Ones());
  const v1::ProposeMapResponse report = Report();
  EXPECT_THAT(Pairs(report), ElementsAre("a0>b0? order", "a1>b1? order"));
  EXPECT_THAT(
      report.map(),
      HasSubstr("\n# a0 -> b0  # 0.30 ambiguous: constant, all 1: the same bits as 1 other\n"));
  EXPECT_FALSE(NameMap::Parse(report.map())->Find("a0"));
}

TEST_F(Propose, OneOfAThatIsNearTwoOfBIsAmbiguous) {
  A("a", Values(1));
  B("b0", Values(1, 1.0e-3));
  B("b1", Values(1, 1.1e-3));
  const v1::ProposeMapResponse report = Report();
  EXPECT_THAT(Pairs(report), ElementsAre("a>b0? distance"));
  EXPECT_THAT(report.map(), HasSubstr("and b1 is about as near"));
}

TEST_F(Propose, NamesOfBothRunsNeedNoLine) {
  A("same", Values(1));
  A("a", Values(2));
  B("same", Values(1));
  B("b", Values(2));
  const v1::ProposeMapResponse report = Report();
  EXPECT_THAT(Pairs(report), ElementsAre("a>b hash"));
  EXPECT_THAT(report.notes(), ElementsAre("1 name that both runs have need no line"));
}

TEST_F(Propose, TheMapIsReadBack) {
  A("x[0]+(1)", Values(1));
  A("a,b", Values(2));
  A("new\nline -> x", Values(3));
  B("y[0]", Values(1));
  B("z", Values(2));
  B("w", Values(3));
  const std::string text = Report().map();
  const auto map = NameMap::Parse(text);
  ASSERT_TRUE(map.ok()) << map.status().message();
  EXPECT_THAT(map->Find("x[0]+(1)")->b, ElementsAre("y[0]"));
  EXPECT_THAT(
      text,
      HasSubstr("# a,b -> z  # 1.00 equal bits in all records; a map cannot hold this name\n"));
  EXPECT_THAT(text, Not(HasSubstr("new\nline")));
}

TEST_F(Propose, RunsWithoutACommonStepAreRefused) {
  A("a", Values(1), 3);
  B("b", Values(1), 4);
  a_.Commit();
  b_.Commit();
  const auto report = Ask(store_, ProposeMap, {.run_a = "a", .run_b = "b"});
  EXPECT_EQ(report.status().code(), Code::kNotFound);
  EXPECT_THAT(report.status().message(), HasSubstr("found no step with tensors of the same rank"));
}

TEST_F(Propose, ManyTensorsOfOneShapeAndNormAreBoundedInTime) {
  // All norms are nearly equal, so that norms exclude nothing.
  constexpr int kMany = 3000;
  for (int i = 0; i < kMany; ++i) {
    const auto name = std::to_string(i);
    A("a" + name, Values(i));
    B("b" + name, Values(i, 1e-7));
  }
  const v1::ProposeMapResponse report = Report();
  std::size_t right = 0;
  for (const v1::ProposedName& one : report.records())
    right += !one.ambiguous() && one.a().substr(1) == one.b().substr(1);
  EXPECT_EQ(right, std::size_t{kMany});
  EXPECT_THAT(report.notes(), IsEmpty());  // no search was cut short
}

}  // namespace
}  // namespace statcollect::query
