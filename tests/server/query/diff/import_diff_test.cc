// A run that an agent recorded against the import of another tool's dump of the same training.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/query/query.h"
#include "tests/server/query/premises.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {
namespace {

using ::testing::Contains;
using testing::FakeStore;
using ::testing::HasSubstr;
using testing::Key;
using testing::RunWriter;

const TensorKey kLoaded = Key("fc.weight", Kind::kWeight, "", 0, 0, Mode::kInit);
const TensorKey kUpdated = Key("fc.weight", Kind::kWeight);

class ImportDiffTest : public ::testing::Test {
 protected:
  // Two steps: the weight as loaded and after each update, the outputs of the model "Net" and of
  // its layer.
  void WriteOurs(const std::string& run = "ours") {
    RunWriter writer(store_, run);
    writer.Config(0, {{"lr", "0.1"}});
    writer.Observe(0, 0, kLoaded, {.values = {1, 2, 3}});
    for (std::uint64_t step = 0; step < 2; ++step) {
      writer.Observe(0, step, Key("fc"), {.values = {4, 5}});
      writer.Root().Observe(0, step, Key("Net"), {.values = {4, 5}});
      writer.Observe(0, step, kUpdated, {.values = {1 + 0.1 * (1. + step), 2, 3}});
    }
    writer.Commit();
  }
  // What a dump has of it: no hashes and sketches, digits cut off, the weight as each step begins.
  void WriteDump(double rounding = 1e-7, bool with_layer = true) {
    RunWriter writer(store_, "dump", 1, /*sketch=*/0);
    writer.Without({Statistic::kHash, Statistic::kStd, Statistic::kL1})
        .Config(0, {{"import.format", "msprobe"}});
    for (std::uint64_t step = 0; step < 2; ++step) {
      writer.Observe(0, step, kLoaded, {.values = {1 + 0.1 * step + rounding, 2, 3}});
      if (with_layer) writer.Observe(0, step, Key("fc"), {.values = {4, 5 + rounding}});
      writer.Observe(0, step, Key("other"), {.values = {4}});
    }
    writer.Commit();
  }
  DiffReport Ask(const std::string& a, const std::string& b) {
    auto report = QueryEngine(store_).Diff({.run_a = a, .run_b = b});
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? *report : DiffReport();
  }
  static std::vector<std::string> Diverged(const DiffReport& report) {
    std::vector<std::string> names;
    for (const Divergence& row : report.diverged)
      names.push_back(std::string(Name(row.reason)) + " " + row.activation);
    return names;
  }
  FakeStore store_;
};

TEST_F(ImportDiffTest, WhatTheToolDoesNotRecordIsNotMissing) {
  WriteOurs();
  WriteDump();
  for (const bool swapped : {false, true}) {
    const DiffReport report = swapped ? Ask("dump", "ours") : Ask("ours", "dump");
    const std::string in_ours = swapped ? "missing_in_b other" : "missing_in_a other";
    EXPECT_THAT(Diverged(report), ::testing::ElementsAre(in_ours))
        << "a module that ours does not have";
    EXPECT_THAT(
        report.notes,
        Contains("dump is a dump of msprobe, which does not record weights after an update; "
                 "not compared"));
    EXPECT_THAT(
        report.notes,
        Contains("dump is a dump of msprobe, which does not record the model as a whole; Net "
                 "was not compared"));
    EXPECT_THAT(report.notes, Contains(HasSubstr("those of later steps were not compared")));
  }
}

TEST_F(ImportDiffTest, ALayerThatADumpLacksIsMissing) {
  WriteOurs();
  WriteDump(0, /*with_layer=*/false);
  EXPECT_THAT(Diverged(Ask("ours", "dump")), Contains("missing_in_b fc"));
}

TEST_F(ImportDiffTest, WhatAnAgentsRunLacksIsMissingAllTheSame) {
  WriteOurs();
  RunWriter writer(store_, "other");
  writer.Observe(0, 0, kLoaded, {.values = {1, 2, 3}});
  for (std::uint64_t step = 0; step < 2; ++step)
    writer.Observe(0, step, Key("fc"), {.values = {4, 5}});
  writer.Commit();
  EXPECT_THAT(Diverged(Ask("ours", "other")), Contains("missing_in_b fc.weight"));
}

TEST_F(ImportDiffTest, WeightsThatOnlyRoundingTellsApartAreNotCalledDifferent) {
  WriteOurs();
  WriteDump();
  DiffReport report = Ask("ours", "dump");
  EXPECT_EQ(report.inputs.weights, "unknown");
  EXPECT_THAT(
      testing::Broken(report),
      Contains(HasSubstr("weights: 1 of 1 agree within their tolerance in step 0; without")));
  RunWriter(store_, "far")
      .Observe(0, 0, kLoaded, {.values = {1.5, 2, 3}})
      .Observe(0, 0, Key("fc"), {.values = {4, 5}})
      .Commit();
  EXPECT_EQ(Ask("ours", "far").inputs.weights, "differ");
  WriteOurs("again");
  EXPECT_EQ(Ask("ours", "again").inputs.weights, "identical");
}

TEST_F(ImportDiffTest, CountsWhatNoHashProvesEqual) {
  WriteOurs();
  WriteDump(/*rounding=*/0);
  const DiffReport report = Ask("ours", "dump");
  EXPECT_EQ(report.compared.identical, 3u);
  EXPECT_EQ(report.without_hash, 3u);
  WriteOurs("again");
  EXPECT_EQ(Ask("ours", "again").without_hash, 0u);
}

}  // namespace
}  // namespace statcollect::query
