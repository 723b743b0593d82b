// What a report says besides divergences: attempts, unfinished steps, losses of records, what could
// not be compared, errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "server/query/query.h"
#include "tests/server/query/premises.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"
#include "tests/support/forwarding_store.h"

namespace statcollect::query {
namespace {

using testing::Broken;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::FakeStore;
using ::testing::HasSubstr;
using testing::Holding;
using ::testing::IsEmpty;
using testing::Key;
using testing::RunWriter;
using testing::Tensor;

Tensor Wave(double scale) {
  Tensor tensor;
  for (int i = 0; i < 40; ++i) tensor.values.push_back(scale * std::cos(i + 1.0));
  return tensor;
}

class DiffNotesTest : public ::testing::Test {
 protected:
  DiffReport Ask(DiffRequest request = {}) {
    request.run_a = "a";
    request.run_b = "b";
    auto report = QueryEngine(store_, is_stream_open_).Diff(request);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? *report : DiffReport();
  }
  // Steps first..last of x and y on ranks 0..ranks-1.
  static void Fill(RunWriter& run, std::uint64_t first, std::uint64_t last, double scale = 1,
                   std::uint32_t ranks = 1) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      for (std::uint64_t step = first; step <= last; ++step) {
        run.Observe(rank, step, Key("x"), Wave(scale))
            .Observe(rank, step, Key("y"), Wave(scale * 2));
      }
    }
  }
  FakeStore store_;
  IsStreamOpen is_stream_open_;
};

TEST_F(DiffNotesTest, UnknownRunsAreNotFoundWithTheClosestNames) {
  RunWriter(store_, "base").Commit();
  RunWriter(store_, "ort").Commit();
  auto report = QueryEngine(store_).Diff({.run_a = "bsae", .run_b = "ort"});
  EXPECT_EQ(report.status().code(), Code::kNotFound);
  EXPECT_THAT(report.status().message(), HasSubstr("'bsae'"));
  EXPECT_THAT(report.status().message(), HasSubstr("base, ort"));
  report = QueryEngine(store_).Diff({.run_a = "ort", .run_b = "x\ny"});
  EXPECT_EQ(report.status().code(), Code::kNotFound);
  EXPECT_THAT(report.status().message(), ::testing::Not(HasSubstr("\n")));
}

TEST_F(DiffNotesTest, BadStepsAndTolerancesAreInvalid) {
  RunWriter a(store_, "a"), b(store_, "b");
  for (RunWriter* run : {&a, &b}) {
    Fill(*run, 0, 1);
    run->Commit();
  }
  QueryEngine engine(store_);
  EXPECT_EQ(engine.Diff({.run_a = "a", .run_b = "b", .steps = "5-1,x"}).status().code(),
            Code::kInvalidArgument);
  for (const double bad : {-1.0, std::nan(""), HUGE_VAL}) {
    EXPECT_EQ(engine.Diff({.run_a = "a", .run_b = "b", .tolerance = bad}).status().code(),
              Code::kInvalidArgument)
        << bad;
  }
}

TEST_F(DiffNotesTest, RunsWithNothingInCommonAreIncomparable) {
  RunWriter a(store_, "a"), b(store_, "b");
  a.WithoutClasses().Observe(0, 0, Key("x"), Wave(1)).Commit();
  b.Observe(0, 0, Key("q"), Wave(1)).Commit();
  DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kIncomparable);
  EXPECT_THAT(r.message, HasSubstr("none has a counterpart in the other run"));
  EXPECT_FALSE(r.first);
  EXPECT_THAT(r.diverged, IsEmpty());
  EXPECT_THAT(r.origins, IsEmpty());
  EXPECT_EQ(r.compared.records, 0u);
  EXPECT_EQ(r.spread.steps, 0u);
  EXPECT_THAT(r.unmatched.only_a, ElementsAre("output x call 0"));
  EXPECT_THAT(r.unmatched.only_b, ElementsAre("output q call 0"));
}

TEST_F(DiffNotesTest, RunsWithoutACommonStepOrRankAreIncomparable) {
  RunWriter a(store_, "a", 8), b(store_, "b", 8), c(store_, "c", 8), d(store_, "d", 8);
  Fill(a, 0, 2);
  Fill(b, 5, 7);
  c.Observe(3, 0, Key("x"), Wave(1));
  for (RunWriter* run : {&a, &b, &c, &d}) run->Commit();
  const DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kIncomparable);
  EXPECT_THAT(r.message, HasSubstr("no step in common: a has 0..2, b has 5..7; record the same"));
  EXPECT_THAT(Broken(r), Contains("steps: none in both"));
  const auto asked = QueryEngine(store_).Diff({.run_a = "a", .run_b = "a", .steps = "9-12"});
  EXPECT_EQ(asked->message,
            "no step in common among the requested ones, 9-12: a has 0..2, a has 0..2; ask for "
            "steps that both have");
  auto ranks = QueryEngine(store_).Diff({.run_a = "a", .run_b = "c"});
  EXPECT_EQ(ranks->verdict, Verdict::kIncomparable);
  EXPECT_THAT(ranks->message, HasSubstr("no rank in common: a has 0, c has 3; --merge-ranks"));
  auto empty = QueryEngine(store_).Diff({.run_a = "a", .run_b = "d"});
  EXPECT_EQ(empty->verdict, Verdict::kIncomparable);
}

TEST_F(DiffNotesTest, StepsThatOnlyOneRunHasAreNotedNotBlamed) {
  RunWriter a(store_, "a"), b(store_, "b");
  Fill(a, 0, 99);
  Fill(b, 0, 49);
  a.Commit();
  b.Commit();
  const DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kIdentical);
  EXPECT_EQ(r.steps->last, 49u);
  EXPECT_THAT(Broken(r), ElementsAre("steps: 0..49 in both (50); a has 0..99, b has 0..49"));
  EXPECT_THAT(r.notes, IsEmpty());
}

TEST_F(DiffNotesTest, DifferentWorldSizesCompareTheRanksThatBothHave) {
  RunWriter a(store_, "a", 4), b(store_, "b", 2);
  Fill(a, 0, 1, 1, 4);
  Fill(b, 0, 1, 1, 2);
  a.Commit();
  b.Commit();
  DiffReport r = Ask();
  EXPECT_THAT(r.ranks, ElementsAre(0, 1));
  EXPECT_THAT(Broken(r),
              ElementsAre("ranks: 0, 1 in both (2); a has 0-3, b has 0, 1 (--merge-ranks compares "
                          "replicas whatever their number)"));
  r = Ask({.ranks = {1, 3}});
  EXPECT_THAT(r.ranks, ElementsAre(1));
  EXPECT_THAT(Broken(r), ElementsAre(HasSubstr("; not both have 3, which was asked for; ")));
}

TEST_F(DiffNotesTest, WhatMakesAComparisonValidIsListedWithCounts) {
  for (const char* name : {"a", "b", "c"}) {
    const bool other = name == std::string("c");
    RunWriter run(store_, name);
    run.Config(0, {{"optimizer.group0.eps", other ? "1e-6" : "1e-8"},
                   {"env.HOSTNAME", name},
                   {"recording.kinds", other ? "output" : "output, weight"}});
    run.Observe(0, 0, Key("x.weight", Kind::kWeight, "", 0, 0, Mode::kInit), Wave(other ? 2 : 1))
        .Observe(0, 0, Key("y.weight", Kind::kWeight, "", 0, 0, Mode::kInit), Wave(1))
        .Observe(0, 0, Key("ids", Kind::kBatch), Wave(1));
    Fill(run, 0, 4);
    Tensor half = Wave(1);
    half.dtype = other ? DType::kBf16 : DType::kF32;
    run.Observe(0, 1, Key("z"), half);
    if (other) run.Observe(0, 4, Key("extra"), Wave(1));
    run.Commit();
  }
  const DiffReport same = Ask();
  EXPECT_THAT(Holding(same),
              ElementsAre("steps: 0..4 in both (5)", "ranks: 0 in both (1)", "tensors: 6 in both",
                          "weights: equal in step 0 (2)", "batches: equal in step 0 (1)",
                          "dtypes: the same", "recording: the same", "settings: the same"));
  EXPECT_THAT(Broken(same), IsEmpty());
  const auto other = QueryEngine(store_).Diff({.run_a = "a", .run_b = "c"});
  ASSERT_TRUE(other.ok());
  EXPECT_THAT(Broken(*other),
              ElementsAre("tensors: 6 in both, 1 only in c (output extra call 0)",
                          "weights: 1 of 2 differ in step 0",
                          "dtypes: others at 1 of 6 tensors (f32 and bf16)",
                          "recording: 1 setting of it differs: recording.kinds",
                          "settings: 1 that may change numbers differs: optimizer.group0.eps"));
  const auto later = QueryEngine(store_).Diff({.run_a = "a", .run_b = "b", .steps = "2-"});
  EXPECT_THAT(Broken(*later),
              Contains("weights: none compared in step 2, so they may differ there"));
}

TEST_F(DiffNotesTest, AResumedRunIsComparedByTheNewestAttemptThatHasTheStep) {
  RunWriter a(store_, "a"), first(store_, "b"), second(store_, "b");
  Fill(a, 0, 9);
  Fill(first, 0, 6, 1);
  for (std::uint64_t step = 5; step <= 6; ++step) first.Observe(0, step, Key("gone"), Wave(9));
  // The second launch defines its activations in another order and resumes at 5.
  second.Observe(0, 5, Key("y"), Wave(2))
      .Observe(0, 6, Key("x"), Wave(1))
      .Observe(0, 6, Key("y"), Wave(2));
  second.Observe(0, 5, Key("x"), Wave(1));
  Fill(second, 7, 9);
  for (RunWriter* run : {&a, &first, &second}) run->Commit();
  const DiffReport r = Ask({.kinds = {Kind::kOutput}});
  EXPECT_EQ(r.compared.identical, 20u);
  EXPECT_EQ(r.compared.records, 20u);
  EXPECT_THAT(r.unmatched.only_b, IsEmpty());
}

// An evaluation behind the last update before a checkpoint belongs to the next step, which the
// launch after it repeats without it.
TEST_F(DiffNotesTest, WhatWasEvaluatedBeforeTheFirstStepOfALaterLaunchIsNotMissing) {
  const TensorKey evaluated = Key("x", Kind::kOutput, "", 0, 0, Mode::kEval);
  RunWriter a(store_, "a"), first(store_, "b"), second(store_, "b");
  Fill(a, 0, 4);
  a.Observe(0, 5, evaluated, Wave(3));
  Fill(a, 5, 9);
  a.Observe(0, 9, Key("late", Kind::kOutput, "", 0, 0, Mode::kEval), Wave(3));
  Fill(first, 0, 4);
  Fill(second, 5, 9);
  for (RunWriter* run : {&a, &first, &second}) run->Commit();
  EXPECT_EQ(Ask({.steps = "0-8"}).compared.diverged, 0u);
  EXPECT_THAT(
      Ask({.steps = "0-8"}).notes,
      Contains(
          "b was launched again at step 5; what a evaluated before that step was not compared"));
  EXPECT_EQ(Ask().first->activation, "late");
}

// Only that launch can have made an evaluation between two updates of its first step.
TEST_F(DiffNotesTest, WhatALaterLaunchDidNotEvaluateBetweenTheUpdatesOfItsFirstStepIsMissing) {
  const auto two_updates = [](RunWriter& run, std::uint64_t step, bool evaluates) {
    run.Observe(0, step, Key("dis"), Wave(1))
        .Observe(0, step, Key("dis.weight", Kind::kWeight), Wave(2));
    if (evaluates) run.Observe(0, step, Key("gen", Kind::kOutput, "", 0, 0, Mode::kEval), Wave(3));
    run.Observe(0, step, Key("gen"), Wave(4))
        .Observe(0, step, Key("gen.weight", Kind::kWeight), Wave(5));
  };
  RunWriter a(store_, "a"), first(store_, "b"), second(store_, "b");
  for (std::uint64_t step = 0; step < 4; ++step) {
    two_updates(a, step, true);
    two_updates(step < 2 ? first : second, step, step != 2);
  }
  for (RunWriter* run : {&a, &first, &second}) run->Commit();
  const DiffReport r = Ask();
  ASSERT_TRUE(r.first);
  EXPECT_EQ(r.first->step, 2u);
  EXPECT_EQ(r.first->activation, "gen");
  EXPECT_EQ(r.first->mode, "eval");
  EXPECT_EQ(r.first->reason, Reason::kMissingInB);
}

TEST_F(DiffNotesTest, AFirstLaunchThatBeginsLaterMissesWhatWasEvaluated) {
  RunWriter a(store_, "a"), b(store_, "b");
  Fill(a, 0, 4);
  a.Observe(0, 5, Key("x", Kind::kOutput, "", 0, 0, Mode::kEval), Wave(3));
  Fill(a, 5, 9);
  Fill(b, 5, 9);
  for (RunWriter* run : {&a, &b}) run->Commit();
  EXPECT_EQ(Ask({.steps = "5-9"}).first->reason, Reason::kMissingInB);
}

TEST_F(DiffNotesTest, TheOldAttemptsValuesOfAStepThatWasRepeatedDoNotCount) {
  RunWriter a(store_, "a"), first(store_, "b"), second(store_, "b");
  Fill(a, 0, 3);
  Fill(first, 0, 2, 7);
  Fill(second, 0, 3, 1);
  for (RunWriter* run : {&a, &first, &second}) run->Commit();
  EXPECT_EQ(Ask().verdict, Verdict::kIdentical);
}

TEST_F(DiffNotesTest, WhatAnUnfinishedStepDoesNotHaveYetIsNotMissing) {
  RunWriter a(store_, "a"), b(store_, "b");
  Fill(a, 0, 2);
  Fill(b, 0, 1);
  b.Observe(0, 2, Key("x"), Wave(1)).NoStepEnd(0, 2).Unfinished(0);
  a.Commit();
  b.Commit();
  const DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kIdentical);
  EXPECT_THAT(r.unmatched.only_a, IsEmpty());
  EXPECT_THAT(r.notes, ElementsAre(HasSubstr("step 2 of b was not finished on rank 0")));
}

TEST_F(DiffNotesTest, AScriptThatRaisedInTheMiddleAndSaidGoodbyeIsUnfinishedToo) {
  RunWriter a(store_, "a"), b(store_, "b");
  Fill(a, 0, 2);
  Fill(b, 0, 1);
  b.Observe(0, 2, Key("x"), Wave(1)).NoStepEnd(0, 2);
  a.Commit();
  b.Commit();
  EXPECT_EQ(Ask().verdict, Verdict::kIdentical);
}

TEST_F(DiffNotesTest, WhatAFinishedStepDoesNotHaveIsMissing) {
  RunWriter a(store_, "a"), b(store_, "b");
  Fill(a, 0, 2);
  Fill(b, 0, 1);
  b.Observe(0, 2, Key("x"), Wave(1)).Unfinished(0);
  a.Commit();
  b.Commit();
  const DiffReport r = Ask();
  EXPECT_EQ(r.first->reason, Reason::kMissingInB);
  EXPECT_EQ(r.first->step, 2u);
}

TEST_F(DiffNotesTest, AnUpdateWithoutAForwardPassIsToldAsSuch) {
  RunWriter a(store_, "a"), b(store_, "b"), lossy(store_, "lossy");
  for (RunWriter* run : {&a, &b, &lossy}) {
    for (std::uint64_t step = 0; step < 4; ++step) {
      if (run == &a || step != 2) run->Observe(0, step, Key("x"), Wave(1));
      run->Observe(0, step, Key("x.weight", Kind::kWeight), Wave(2));
    }
  }
  lossy.Dropped(0, 5);
  for (RunWriter* run : {&a, &b, &lossy}) run->Commit();
  EXPECT_THAT(Ask().notes,
              ElementsAre(HasSubstr(
                  "b made an update without a forward pass in step 2 on rank 0, where a")));
  auto swapped = QueryEngine(store_).Diff({.run_a = "b", .run_b = "a"});
  EXPECT_THAT(swapped->notes,
              ElementsAre(HasSubstr("b made an update without a forward pass in step 2")));
  auto with_losses = QueryEngine(store_).Diff({.run_a = "a", .run_b = "lossy"});
  EXPECT_THAT(with_losses->notes, ::testing::Not(Contains(HasSubstr("without a forward pass"))));
  // Runs in which forward passes were not recorded.
  auto updates = QueryEngine(store_).Diff({.run_a = "a", .run_b = "b", .kinds = {Kind::kWeight}});
  EXPECT_EQ(updates->verdict, Verdict::kIdentical);
}

TEST_F(DiffNotesTest, RecordsThatAnAgentLostAreNotBlamed) {
  RunWriter a(store_, "a"), b(store_, "b");
  Fill(a, 0, 2);
  Fill(b, 0, 1);
  b.Observe(0, 2, Key("x"), Wave(1)).Dropped(0, 1);
  a.Commit();
  b.Commit();
  const DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kWithinTolerance);
  EXPECT_THAT(r.unmatched.only_a, ElementsAre("output y call 0"));
  EXPECT_THAT(r.notes, Contains(HasSubstr("agents of b lost 1 records")));
  EXPECT_THAT(r.notes, Contains(HasSubstr("not counted as diverged")));
}

TEST_F(DiffNotesTest, WhatAnAgentNeverRecordedIsMissingEvenIfItLostRecords) {
  RunWriter a(store_, "a"), b(store_, "b");
  Fill(a, 0, 2);
  for (std::uint64_t step = 0; step <= 2; ++step) b.Observe(0, step, Key("x"), Wave(1));
  b.Dropped(0, 1);
  a.Commit();
  b.Commit();
  EXPECT_EQ(Ask().first->reason, Reason::kMissingInB);
}

TEST_F(DiffNotesTest, ARunningRunIsNoted) {
  RunWriter a(store_, "a"), b(store_, "b");
  Fill(a, 0, 1);
  Fill(b, 0, 1);
  a.Commit();
  const AttemptId live = b.Commit();
  is_stream_open_ = [live](AttemptId attempt, std::uint32_t rank) {
    return attempt == live && rank == 0;
  };
  EXPECT_THAT(Ask().notes, ElementsAre(HasSubstr("b is still running")));
}

TEST_F(DiffNotesTest, ConfigurationIsEvidenceAndWhatAlwaysDiffersIsLeftOut) {
  RunWriter a(store_, "a"), b(store_, "b");
  Fill(a, 0, 1);
  Fill(b, 0, 1);
  a.Config(0, {{"lr", "0.1"},
               {"command_line", "train.py"},
               {"pid", "7"},
               {"env.MASTER_PORT", "1"},
               {"only.a", "1"}})
      .Commit();
  b.Config(0, {{"lr", "0.1"},
               {"command_line", "train.py --ort"},
               {"pid", "8"},
               {"env.MASTER_PORT", "2"},
               {"x.lr", "3"}})
      .Commit();
  const DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kIdentical);
  ASSERT_EQ(r.inputs.config.size(), 3u);
  EXPECT_EQ(r.inputs.config[0].key, "command_line");
  EXPECT_EQ(*r.inputs.config[0].b, "train.py --ort");
  EXPECT_EQ(r.inputs.config[1].key, "only.a");
  EXPECT_FALSE(r.inputs.config[1].b);
  EXPECT_EQ(r.inputs.config[2].key, "x.lr");
  EXPECT_FALSE(r.inputs.config[2].a);
}

TEST_F(DiffNotesTest, LinesOfTheMapWithoutEffectAreNoted) {
  RunWriter a(store_, "a"), b(store_, "b");
  a.Observe(0, 0, Key("h.0"), Wave(1)).Observe(0, 0, Key("x"), Wave(1)).Commit();
  b.Observe(0, 0, Key("block.0"), Wave(1)).Observe(0, 0, Key("x"), Wave(1)).Commit();
  EXPECT_THAT(
      Ask({.map = "h\\.(.*) -> block.\\1\nhh.0 -> block.0"}).notes,
      ElementsAre(
          "map line 2 'hh.0 -> block.0' has no effect: no name of a that b lacks matches it"));
}

TEST_F(DiffNotesTest, ProgressCountsStepsTimesRanks) {
  RunWriter a(store_, "a", 2), b(store_, "b", 2);
  Fill(a, 0, 4, 1, 2);
  Fill(b, 0, 4, 1, 2);
  a.Commit();
  b.Commit();
  std::vector<std::uint64_t> done;
  auto report = QueryEngine(store_).Diff({.run_a = "a", .run_b = "b"}, [&](const Progress& p) {
    EXPECT_EQ(p.total, 10u);
    done.push_back(p.done);
  });
  ASSERT_TRUE(report.ok());
  ASSERT_FALSE(done.empty());
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), 10u);
}

TEST_F(DiffNotesTest, AStopRequestEndsTheScanWithinAStep) {
  RunWriter a(store_, "a"), b(store_, "b");
  Fill(a, 0, 9);
  Fill(b, 0, 9);
  a.Commit();
  b.Commit();
  std::stop_source stop;
  std::uint64_t last = 0;
  auto report = QueryEngine(store_).Diff(
      {.run_a = "a", .run_b = "b"},
      [&](const Progress& p) {
        last = p.done;
        if (p.done == 3) stop.request_stop();
      },
      stop.get_token());
  EXPECT_EQ(report.status().code(), Code::kCancelled);
  EXPECT_EQ(last, 3u);
}

// An eager attention returns its weights, others do not; what they do shows in what is computed
// from them.
TEST_F(DiffNotesTest, AnOutputThatOnlyOneRunReturnsBesideOthersIsNoDivergence) {
  RunWriter a(store_, "a"), b(store_, "b");
  a.Observe(0, 0, Key("attn", Kind::kOutput, "0"), Wave(1))
      .Observe(0, 0, Key("attn", Kind::kGradOutput, "0"), Wave(1));
  b.Observe(0, 0, Key("attn", Kind::kOutput, "0"), Wave(1))
      .Observe(0, 0, Key("attn", Kind::kOutput, "1"), Wave(2));
  b.Observe(0, 0, Key("attn", Kind::kGradOutput, "1"), Wave(2))
      .Observe(0, 0, Key("attn", Kind::kGradOutput, "0"), Wave(1));
  a.Commit();
  b.Commit();
  const DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kWithinTolerance);
  EXPECT_THAT(r.diverged, IsEmpty());
  EXPECT_THAT(r.unmatched.only_b,
              ElementsAre("output attn[1] call 0", "grad_output attn[1] call 0"));
  EXPECT_THAT(
      r.notes,
      Contains(HasSubstr("some modules return an output in b that they do not return in a")));
}

// Such as that of a tensor that one run detaches.
TEST_F(DiffNotesTest, TheGradientOfAnOutputThatBothRunsReturnIsMissing) {
  RunWriter a(store_, "a"), b(store_, "b");
  for (RunWriter* run : {&a, &b}) {
    run->Observe(0, 0, Key("x"), Wave(1)).Observe(0, 0, Key("attn"), Wave(1));
    run->Observe(0, 0, Key("x", Kind::kGradOutput), Wave(1));
  }
  a.Observe(0, 0, Key("attn", Kind::kGradOutput), Wave(1));
  a.Commit();
  b.Commit();
  const DiffReport r = Ask();
  ASSERT_EQ(r.diverged.size(), 1u);
  EXPECT_EQ(r.diverged[0].reason, Reason::kMissingInB);
}

TEST_F(DiffNotesTest, AnOutputIsMissingIfTheOtherRunReturnsNoneInThatCall) {
  RunWriter a(store_, "a"), b(store_, "b");
  const auto output = [](const char* path, std::uint32_t call) {
    return Key("attn", Kind::kOutput, path, 0, call);
  };
  for (std::uint64_t step = 0; step < 2; ++step) {
    a.Observe(0, step, output("0", 0), Wave(1)).Observe(0, step, output("1", 0), Wave(2));
    b.Observe(0, step, output("0", 0), Wave(1));
  }
  b.Observe(0, 0, output("1", 0), Wave(2))
      .Observe(0, 0, output("0", 1), Wave(1))
      .Observe(0, 0, output("1", 1), Wave(1));
  a.Commit();
  b.Commit();
  const DiffReport r = Ask();
  std::vector<std::string> missing;
  for (const Divergence& row : r.diverged)
    missing.push_back(row.output_path + (row.reason == Reason::kMissingInB ? " in b" : " in a"));
  EXPECT_THAT(missing, ElementsAre("0 in a", "1 in a"));
}

// Lets a live run write more at a chosen moment.
class GrowingStore final : public testing::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  std::function<void()> before_first_scan;

  std::unique_ptr<StatScan> ScanStats(AttemptId attempt, std::uint32_t rank,
                                      StepBounds steps) override {
    if (before_first_scan) std::exchange(before_first_scan, nullptr)();
    return ForwardingStore::ScanStats(attempt, rank, steps);
  }
};

TEST_F(DiffNotesTest, WhatALiveRunDefinesDuringTheScanIsComparedToo) {
  RunWriter a(store_, "a"), b(store_, "b");
  a.Observe(0, 0, Key("x"), Wave(1)).Observe(0, 0, Key("late"), Tensor{.values = {1, 2}}).Commit();
  b.Observe(0, 0, Key("x"), Wave(1)).NoStepEnd(0, 0).Unfinished(0).Commit();
  GrowingStore growing(store_);
  growing.before_first_scan = [&] {
    b.Observe(0, 0, Key("late"), Tensor{.values = {1, 2}}).Commit();
  };
  auto report = QueryEngine(growing).Diff({.run_a = "a", .run_b = "b"});
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->verdict, Verdict::kIdentical);
  EXPECT_EQ(report->compared.records, 2u);
}

}  // namespace
}  // namespace statcollect::query
