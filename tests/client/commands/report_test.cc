// The report of a diff for people, from reports made by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/commands/commands.h"

namespace statcollect::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

v1::DiffReport Report(v1::Verdict verdict) {
  v1::DiffReport report;
  report.set_run_a("base");
  report.set_run_b("dump");
  report.set_verdict(verdict);
  report.mutable_compared()->set_records(1200);
  report.mutable_compared()->set_identical(1200);
  return report;
}

TEST(Report, ClaimsEqualBitsOnlyWhereHashesTell) {
  for (const v1::Verdict verdict : {v1::VERDICT_IDENTICAL, v1::VERDICT_WITHIN_TOLERANCE}) {
    v1::DiffReport report = Report(verdict);
    EXPECT_THAT(RenderVerdict(report).ToText({}),
                HasSubstr("base and dump: all 1,200 records compared are equal bit for bit"));
    report.set_without_hash(1200);
    EXPECT_THAT(
        RenderVerdict(report).ToText({}),
        AllOf(HasSubstr(
                  "all 1,200 records compared are equal in every statistic that both runs "
                  "recorded; without content hashes it is unknown whether their bits are equal"),
              Not(HasSubstr("bit for bit"))));
    report.set_without_hash(200);
    EXPECT_THAT(RenderVerdict(report).ToText({}),
                HasSubstr("recorded, 1,000 of them bit for bit; the others have no content hash"));
    EXPECT_THAT(RenderVerdict(report).ToText({}), Not(HasSubstr("IDENTICAL")));
  }
}

TEST(Report, BeginsWithWhatMakesTheComparisonValid) {
  v1::DiffReport report = Report(v1::VERDICT_IDENTICAL);
  const auto add = [&](const char* check, bool ok, const char* detail) {
    v1::PremiseCheck& added = *report.add_comparable();
    added.set_check(check);
    added.set_ok(ok);
    added.set_detail(detail);
  };
  add("steps", true, "0..9 in both (10)");
  add("dtypes", true, "the same");
  add("recording", true, "the same");
  EXPECT_THAT(RenderDiff(report).ToText({}),
              HasSubstr("bit.\n\n  comparable in: steps 0..9 in both (10); dtypes, recording the "
                        "same\n"));
  add("settings", false, "1 that may change numbers differs: lr");
  EXPECT_THAT(
      RenderDiff(report).ToText({}),
      HasSubstr("recording the same\n  ! settings: 1 that may change numbers differs: lr\n"));
  EXPECT_THAT(RenderVerdict(report).ToText({}), Not(HasSubstr("comparable")));
}

TEST(Report, SaysFromWhatRoundingIsKnown) {
  v1::DiffReport report = Report(v1::VERDICT_WITHIN_TOLERANCE);
  report.set_explained("rounding");
  const auto text = [&] { return RenderDiff(report).ToText({}); };
  EXPECT_THAT(text(), HasSubstr("judged by rules; to measure it: statctl twins base -- COMMAND"));
  v1::NoiseSource& noise = *report.mutable_noise();
  for (const char* twin : {"base.twin-1-1", "base.twin-32-1"}) noise.add_runs(twin);
  EXPECT_THAT(text(), HasSubstr("judged by rules, because no twin could be used"));
  noise.set_twins(2);
  for (const double ulps : {1, 32}) noise.add_scale(ulps);
  EXPECT_THAT(text(), HasSubstr("measured from 2 twins of base, with noise of 1 and 32 units"));
}

}  // namespace
}  // namespace statcollect::client
