#include "server/query/answers/exponents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "common/step_set.h"
#include "server/query/query.h"
#include "tests/server/query/ask.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {
namespace {

using testing::Ask;
using testing::FakeStore;
using ::testing::HasSubstr;
using testing::Key;
using testing::RunWriter;
using testing::Tensor;

// Components with exponents `lowest`, one each of `count`.
ExponentRecord Ones(int lowest, std::size_t count) {
  return {.lowest = lowest, .counts = std::vector<std::uint64_t>(count, 1)};
}

FormatLoss LossAt(DType format, int exponent) { return LossIn(format, Ones(exponent, 1)); }

TEST(LossIn, FollowsTheFormatsOwnLimits) {
  struct Case {
    DType format;
    int zero, subnormal, normal,
        top;  // highest exponent that vanishes, lowest and highest that lose bits, ...
  };
  for (const Case& c :
       {Case{DType::kF16, -26, -25, -14, 15}, Case{DType::kBf16, -135, -134, -126, 127},
        Case{DType::kF8E4M3, -11, -10, -6, 8}, Case{DType::kF8E5M2, -18, -17, -14, 15}}) {
    SCOPED_TRACE(static_cast<int>(c.format));
    EXPECT_EQ(LossAt(c.format, c.zero).to_zero, 1u);
    EXPECT_EQ(LossAt(c.format, c.subnormal).to_zero, 0u);
    EXPECT_EQ(LossAt(c.format, c.subnormal).subnormal, 1u);
    EXPECT_EQ(LossAt(c.format, c.normal - 1).subnormal, 1u);
    EXPECT_EQ(LossAt(c.format, c.normal).subnormal, 0u);
    EXPECT_EQ(LossAt(c.format, c.top).overflow, 0u);
    EXPECT_EQ(LossAt(c.format, c.top + 1).overflow, 1u);
    const FormatLoss all = LossIn(c.format, Ones(kExponentLowest, kExponentsMax));
    EXPECT_EQ(all.to_zero, static_cast<std::uint64_t>(c.zero - kExponentLowest + 1));
    EXPECT_EQ(all.subnormal, static_cast<std::uint64_t>(c.normal - c.subnormal));
    EXPECT_EQ(all.overflow, static_cast<std::uint64_t>(kExponentHighest - c.top));
  }
}

class ExponentsTest : public ::testing::Test {
 protected:
  // Gradients of `fc` shrink from step to step: in step s, 4 s of 16 components are below what f16
  // can hold.
  RunWriter& Shrinking(RunWriter& writer, std::uint32_t rank, std::uint64_t first,
                       std::uint64_t last) {
    const Tensor tensor{.values = std::vector<double>(16, 1.0)};
    for (std::uint64_t step = first; step <= last; ++step) {
      writer.Observe(rank, step, Key("fc"), tensor);
      writer.Exponents(rank, step, Key("fc"), tensor, 0, {16});
      writer.Observe(rank, step, Key("fc", Kind::kWeightGrad), tensor);
      const std::uint64_t lost = 4 * step;
      std::vector<std::uint64_t> counts = {lost, 0, 16 - lost};
      if (lost == 0) counts = {16};
      writer.Exponents(rank, step, Key("fc", Kind::kWeightGrad), tensor, lost == 0 ? -25 : -27,
                       counts);
    }
    return writer;
  }
  using Rows = google::protobuf::RepeatedPtrField<v1::ExponentRow>;
  Rows List(ExponentsRequest request) {
    request.of.run = "base";
    auto rows = Ask(store_, ListExponents, request);
    EXPECT_TRUE(rows.ok()) << rows.status().message();
    return rows.ok() ? rows->records() : Rows();
  }
  FakeStore store_;
};

TEST_F(ExponentsTest, AreListedByTensorRankAndStepWithWhatEachFormatLoses) {
  RunWriter writer(store_, "base", 2);
  Shrinking(writer, 0, 0, 2);
  Shrinking(writer, 1, 0, 2).Commit();
  const auto rows = List({.of = {.kinds = {Kind::kWeightGrad}, .steps = "1-2"}});
  ASSERT_EQ(rows.size(), 4);
  EXPECT_EQ(rows[0].rank(), 0u);
  EXPECT_EQ(rows[1].step(), 2u);
  EXPECT_EQ(rows[1].components(), 16u);
  ASSERT_EQ(rows[1].formats_size(), 4);
  EXPECT_EQ(rows[1].formats(0).dtype(), "f16");
  EXPECT_EQ(rows[1].formats(0).to_zero(), 8u);
  EXPECT_EQ(rows[1].formats(0).subnormal(), 8u);
  EXPECT_EQ(rows[1].formats(1).lost(), 0) << "bf16";
  EXPECT_EQ(rows[1].formats(2).to_zero(), 16u) << "f8e4m3";
  EXPECT_EQ(rows[2].rank(), 1u);
  EXPECT_EQ(rows[2].steps(), 1u);
  const auto one = List({.of = {.ranks = {1}}, .format = DType::kBf16});
  ASSERT_EQ(one.size(), 6);
  ASSERT_EQ(one[0].formats_size(), 1);
  EXPECT_EQ(one[0].formats(0).dtype(), "bf16");
}

TEST_F(ExponentsTest, ASummaryNamesTheWorstStepAndSinceWhen) {
  RunWriter writer(store_, "base", 1);
  Shrinking(writer, 0, 0, 3).Commit();
  auto rows = List({.summary = true});
  ASSERT_EQ(rows.size(), 2);
  EXPECT_EQ(rows[0].kind(), v1::KIND_WEIGHT_GRAD) << "most lost first";
  EXPECT_EQ(rows[0].step(), 3u);
  EXPECT_EQ(rows[0].formats(0).to_zero(), 12u);
  EXPECT_EQ(rows[0].since_step(), 1u);
  EXPECT_EQ(rows[0].steps(), 4u);
  EXPECT_EQ(rows[0].last_step(), 3u);
  EXPECT_FALSE(rows[1].has_since_step());
  EXPECT_EQ(rows[1].step(), 0u) << "the first of equals";
  EXPECT_EQ(rows[1].last_step(), 3u);
  rows = List({.summary = true, .lost_min = 0.5});
  EXPECT_EQ(rows[0].since_step(), 2u);
  rows = List({.format = DType::kF8E4M3, .summary = true});
  EXPECT_EQ(rows[0].since_step(), 0u) << "all of it is below 2^-11";
}

// One tensor of which f16 loses `lost` of 16 components in the step.
void WriteLost(RunWriter& writer, std::uint32_t rank, std::uint64_t step, std::uint64_t lost) {
  const Tensor tensor{.values = std::vector<double>(16, 1.0)};
  writer.Observe(rank, step, Key("fc"), tensor);
  if (lost == 0) {
    writer.Exponents(rank, step, Key("fc"), tensor, 0, {16});
  } else {
    writer.Exponents(rank, step, Key("fc"), tensor, -27, {lost, 0, 16 - lost});
  }
}

TEST_F(ExponentsTest, ASummaryOfMoreStepsThanAreReadAtATimeIsOfAllOfThem) {
  RunWriter writer(store_, "base", 2);
  for (std::uint64_t step = 3; step < 400; ++step) {
    WriteLost(writer, 0, step,
              step == 200 || step == 300 ? 9
              : step == 70               ? 2
              : step == 40               ? 1
                                         : 0);
    if (step % 5 == 0) WriteLost(writer, 1, step, step == 395 ? 12 : 0);
  }
  writer.Commit();
  auto rows = List({.format = DType::kF16, .summary = true, .lost_min = 0.1});
  ASSERT_EQ(rows.size(), 2);
  EXPECT_EQ(rows[0].rank(), 1u) << "most lost first";
  EXPECT_EQ(rows[0].step(), 395u);
  EXPECT_EQ(rows[0].since_step(), 395u);
  EXPECT_EQ(rows[0].steps(), 79u);
  EXPECT_EQ(rows[1].step(), 200u) << "the first of equals";
  EXPECT_EQ(rows[1].formats(0).to_zero(), 9u);
  EXPECT_EQ(rows[1].since_step(), 70u) << "1 of 16 is too few";
  EXPECT_EQ(rows[1].steps(), 397u);
  EXPECT_EQ(rows[1].last_step(), 399u);
  rows = List({.of = {.ranks = {0}, .steps = "0-31,128-250,every=2"}, .summary = true});
  ASSERT_EQ(rows.size(), 1);
  EXPECT_EQ(rows[0].steps(), 14u + 62u) << "4 to 30 and 128 to 250";
  EXPECT_EQ(rows[0].since_step(), 200u);
  EXPECT_EQ(rows[0].last_step(), 250u);
}

TEST_F(ExponentsTest, AListingOfMoreStepsThanAreReadAtATimeHasEachOnce) {
  RunWriter writer(store_, "base", 1);
  for (std::uint64_t step = 3; step < 200; ++step) WriteLost(writer, 0, step, 1);
  WriteLost(writer, 0, StepSet::kLastStep, 1);
  writer.Commit();
  const auto rows = List({});
  ASSERT_EQ(rows.size(), 198);
  for (int i = 0; i < 197; ++i) EXPECT_EQ(rows[i].step(), 3u + static_cast<unsigned>(i));
  EXPECT_EQ(rows[197].step(), StepSet::kLastStep);
  EXPECT_EQ(List({.of = {.steps = "10-150"}}).size(), 141);
  EXPECT_TRUE(List({.of = {.steps = "0-2,200-300"}}).empty());
}

TEST_F(ExponentsTest, ASummaryOrdersTheStepsOfLaunchesThatAlternate) {
  RunWriter first(store_, "base", 1);
  for (std::uint64_t step = 0; step < 100; ++step) WriteLost(first, 0, step, step == 80 ? 4 : 0);
  first.Commit();
  RunWriter second(store_, "base", 1);  // again from 20 to 49
  for (std::uint64_t step = 20; step < 50; ++step) WriteLost(second, 0, step, step == 30 ? 4 : 0);
  second.Commit();
  const auto rows = List({.summary = true});
  ASSERT_EQ(rows.size(), 1);
  EXPECT_EQ(rows[0].steps(), 100u);
  EXPECT_EQ(rows[0].step(), 30u) << "the first of equals, although it is read last";
  EXPECT_EQ(rows[0].attempt(), 2u);
  EXPECT_EQ(rows[0].since_step(), 30u);
  EXPECT_EQ(rows[0].last_step(), 99u);
}

TEST_F(ExponentsTest, AStepsHistogramsComeFromItsNewestLaunch) {
  RunWriter first(store_, "base", 1);
  Shrinking(first, 0, 0, 3).Commit();
  const Tensor tensor{.values = std::vector<double>(16, 1.0)};
  RunWriter second(store_, "base", 1);  // resumed at step 2, without histograms in step 3
  second.Observe(0, 2, Key("fc"), tensor).Exponents(0, 2, Key("fc"), tensor, 5, {16});
  second.Observe(0, 3, Key("fc"), tensor).Commit();
  const auto rows = List({.of = {.activation = "fc", .kinds = {Kind::kOutput}}});
  ASSERT_EQ(rows.size(), 3);
  EXPECT_EQ(rows[1].attempt(), 1u);
  EXPECT_EQ(rows[2].step(), 2u);
  EXPECT_EQ(rows[2].lowest(), 5);
  EXPECT_EQ(rows[2].attempt(), 2u);
  EXPECT_EQ(List({.of = {.activation = "fc", .kinds = {Kind::kWeightGrad}}}).size(), 2);
}

TEST_F(ExponentsTest, AnActivationWithoutAnySuggestsThoseThatHaveSome) {
  RunWriter writer(store_, "base", 1);
  const Tensor tensor{.values = {1, 2}};
  writer.Observe(0, 0, Key("fd"), tensor);
  Shrinking(writer, 0, 0, 0).Commit();
  const auto elsewhere = [&](const ExponentsRequest& request) {
    return Ask(store_, ListExponents, request).status().message();
  };
  for (const ExponentsRequest& request :
       {ExponentsRequest{.of = {.run = "base", .activation = "fc", .kinds = {Kind::kBatch}}},
        ExponentsRequest{.of = {.run = "base", .activation = "fc", .ranks = {7}}},
        ExponentsRequest{.of = {.run = "base", .activation = "fc", .steps = "300"}}}) {
    EXPECT_THAT(
        elsewhere(request),
        HasSubstr(
            "none of these steps, ranks and kinds; there are some at step 0, of rank 0, kind "));
  }
  const auto none = Ask(store_, ListExponents, {.of = {.run = "base", .activation = "fd"}});
  EXPECT_EQ(none.status().code(), Code::kNotFound);
  EXPECT_THAT(none.status().message(), HasSubstr("the run has those of: fc"));
  EXPECT_EQ(Ask(store_, ListExponents, {.of = {.run = "basf"}}).status().code(), Code::kNotFound);
  EXPECT_EQ(Ask(store_, ListExponents, {.of = {.run = "base", .steps = "x"}}).status().code(),
            Code::kInvalidArgument);
  std::stop_source stopped;
  stopped.request_stop();
  EXPECT_EQ(
      Ask(store_, ListExponents, {.of = {.run = "base"}}, stopped.get_token()).status().code(),
      Code::kCancelled);
}

}  // namespace
}  // namespace statcollect::query
