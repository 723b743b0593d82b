#include "server/query/compare/paired_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "tests/server/query/run_writer.h"

namespace statcollect::query {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::Key;

// One run's step: tensors in the order in which they ran, each of two elements of one value.
struct PairedRun {
  std::deque<Layout> layouts;
  std::deque<TensorStats> stats;
  RankCatalogue catalogue;
  std::vector<Observation> step;

  // `recorded`: otherwise it is only defined, as in another step.
  void Add(const TensorKey& key, double value = 1, bool recorded = true) {
    catalogue.activations.push_back(
        {.id = static_cast<std::uint32_t>(catalogue.activations.size()), .key = key});
    layouts.push_back({.dtype = DType::kF32, .shape = {2}});
    stats.push_back(testing::StatsOf({.values = {value, value}}));
    recorded_.push_back(recorded);
  }
  void Finish() {
    for (std::size_t i = 0; i < recorded_.size(); ++i) {
      if (!recorded_[i]) continue;
      step.push_back({.def = &catalogue.activations[i],
                      .layout = &layouts[i],
                      .stats = &stats[i],
                      .sketch = {},
                      .order = static_cast<std::uint32_t>(i)});
    }
  }

 private:
  std::vector<bool> recorded_;
};

class PairedSteps : public ::testing::Test {
 protected:
  PairedStep Pair(const std::string& map = "") {
    names_ = *NameMap::Parse(map);
    options_.names = &names_;
    a_.Finish();
    b_.Finish();
    alignment_.emplace(a_.catalogue, b_.catalogue, options_);
    return PairedStep(*alignment_, a_.step, b_.step, kinds_);
  }
  static std::vector<std::string> NamesOf(const std::vector<RecordPair>& pairs) {
    std::vector<std::string> names;
    for (const RecordPair& pair : pairs)
      names.push_back(pair.a.def->key.name + " = " + pair.b.def->key.name);
    return names;
  }
  // And the orders, in A and B, of what they are behind.
  static std::vector<std::string> NamesOf(const std::vector<LoneRecord>& lone) {
    std::vector<std::string> names;
    for (const auto& [record, behind] : lone) {
      names.push_back(record.def->key.name);
      if (behind) names.back() += " " + std::to_string(behind->a) + "," + std::to_string(behind->b);
    }
    return names;
  }

  PairedRun a_, b_;
  Alignment::Options options_ = Alignment::Options::OfEveryKind();
  PairedStep::Kinds kinds_ = PairedStep::Kinds::kAll;

 private:
  NameMap names_;
  std::optional<Alignment> alignment_;
};

TEST_F(PairedSteps, PairsComeInTheOrderOfAAndTheRestIsAlone) {
  for (const char* name : {"embed", "only_a", "mlp", "lost_in_b"}) a_.Add(Key(name));
  for (const char* name : {"first_of_b", "mlp", "only_b", "embed", "last_of_b"}) b_.Add(Key(name));
  b_.Add(Key("lost_in_b"), 1, /*recorded=*/false);
  const PairedStep step = Pair();
  EXPECT_THAT(NamesOf(step.pairs()), ElementsAre("embed = embed", "mlp = mlp"));
  EXPECT_EQ(step.pairs()[1].id_a(), 2u);
  EXPECT_THAT(NamesOf(step.only_a()), ElementsAre("only_a", "lost_in_b"));
  EXPECT_THAT(NamesOf(step.only_b()), ElementsAre("first_of_b", "only_b 2,1", "last_of_b 0,3"));
}

TEST_F(PairedSteps, AWholeGroupIsOnePairAtItsFirstPart) {
  for (const char* name : {"q", "k", "o"}) a_.Add(Key(name), 3);
  b_.Add(Key("o"));
  b_.Add(Key("qk"), 4);
  b_.Add(Key("after"));
  const PairedStep step = Pair("q, k -> qk");
  EXPECT_THAT(NamesOf(step.pairs()), ElementsAre("q = qk", "o = o"));
  const RecordPair& pair = step.pairs().front();
  ASSERT_NE(pair.group, nullptr);
  EXPECT_EQ(pair.id_a(), 0u);
  EXPECT_EQ(pair.a.stats->numel, 4u) << "both parts";
  EXPECT_EQ(pair.b.order, 1u);
  EXPECT_THAT(step.only_a(), IsEmpty());
  EXPECT_THAT(NamesOf(step.only_b()), ElementsAre("after 0,1"));
}

TEST_F(PairedSteps, PartsOfAGroupThatIsNotWholeAreAlone) {
  a_.Add(Key("q"), 1, /*recorded=*/false);
  for (const char* name : {"k", "gate"}) a_.Add(Key(name));
  a_.Add(Key("up"), 1, /*recorded=*/false);
  for (const char* name : {"after", "gate_up", "qk"}) b_.Add(Key(name));
  const PairedStep step = Pair("q, k -> qk\ngate, up -> gate_up");
  EXPECT_THAT(step.pairs(), IsEmpty());
  EXPECT_THAT(NamesOf(step.only_a()), ElementsAre("gate", "k"));
  EXPECT_THAT(NamesOf(step.only_b()), ElementsAre("gate_up 2,1", "qk 1,2", "after"));
}

TEST_F(PairedSteps, WhatTheMapOrTheRequestLeavesOutIsNeitherPairedNorAlone) {
  options_.wanted = {};
  options_.wanted[static_cast<std::size_t>(Kind::kOutput)] = true;
  for (PairedRun* const run : {&a_, &b_}) {
    run->Add(Key("fc"));
    run->Add(Key("fc", Kind::kWeight));
  }
  a_.Add(Key("rotary"));
  b_.Add(Key("other", Kind::kWeight));
  kinds_ = PairedStep::Kinds::kRequested;
  const PairedStep step = Pair("rotary -> -");
  EXPECT_THAT(NamesOf(step.pairs()), ElementsAre("fc = fc"));
  EXPECT_THAT(step.only_a(), IsEmpty());
  EXPECT_THAT(step.only_b(), IsEmpty());
}

TEST_F(PairedSteps, OperatorsOfAZoomAreLeftOut) {
  for (PairedRun* const run : {&a_, &b_}) {
    run->Add(Key("layer"));
    run->Add(Key("layer/#1 aten.mul.Tensor", Kind::kOperator));
  }
  b_.Add(Key("layer/#2 aten.detach.default", Kind::kOperator));
  const PairedStep step = Pair();
  EXPECT_THAT(NamesOf(step.pairs()), ElementsAre("layer = layer"));
  EXPECT_THAT(NamesOf(step.only_b()), IsEmpty());
}

TEST_F(PairedSteps, AnotherRunsRecordsAreMadeComparableAsThoseOfAWere) {
  for (const char* name : {"q", "k", "o"}) a_.Add(Key(name));
  for (const char* name : {"qk", "o"}) b_.Add(Key(name));
  PairedStep step = Pair("q, k -> qk");
  ById twin(a_.step, a_.catalogue.activations.size());
  EXPECT_EQ(step.InPlaceOfA(0, twin).stats->numel, 4u);
  EXPECT_EQ(step.InPlaceOfA(2, twin).stats, &a_.stats[2]);
  twin = ById(std::span(a_.step).first(1), a_.catalogue.activations.size());
  EXPECT_EQ(step.InPlaceOfA(0, twin).def, nullptr) << "it lacks a part";
  EXPECT_EQ(step.InPlaceOfA(2, twin).def, nullptr);
}

}  // namespace
}  // namespace statcollect::query
