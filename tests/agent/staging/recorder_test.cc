#include "agent/staging/recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/fake_clock.h"

namespace statcollect {
namespace {

using ::testing::HasSubstr;

constexpr std::array<std::int64_t, 2> kShape = {4, 8};

class RecorderTest : public ::testing::Test {
 protected:
  Recorder& Make(std::size_t slots = 16, const std::string& steps = "") {
    recorder_ = std::make_unique<Recorder>(
        Recorder::Options{
            .steps = *StepSet::Parse(steps), .slots = slots, .sketch = 16, .samples = 0},
        &clock_, &ledger_, &waker_);
    return *recorder_;
  }

  // Observes and commits; false if it was not kept.
  bool Observe(const IdentityView& identity, bool next_call = false) {
    Slot* slot = nullptr;
    status_ = recorder_->Begin(identity, next_call, DType::kF32, kShape, &slot);
    if (slot != nullptr) recorder_->Commit(slot);
    return slot != nullptr;
  }

  std::vector<std::uint32_t> DrainActivations() {
    std::vector<std::uint32_t> ids;
    while (const Slot* slot = recorder_->ring().Front()) {
      ids.push_back(slot->activation);
      recorder_->ring().Release();
    }
    return ids;
  }

  std::vector<SideRecord> DrainSide() {
    std::vector<SideRecord> records;
    bool held_back = false;
    while (auto entry =
               recorder_->side().PopIf(recorder_->ring().head(), ~std::size_t{0}, {}, &held_back))
      records.push_back(std::move(entry->record));
    return records;
  }

  testing::FakeClock clock_;
  Ledger ledger_;
  Waker waker_;
  Status status_;
  std::unique_ptr<Recorder> recorder_;
};

const IdentityView kFc1 = {.name = "fc1", .kind = Kind::kOutput};
const IdentityView kFc2 = {.name = "fc2", .kind = Kind::kOutput};

TEST_F(RecorderTest, NumbersDefinitionsInTheOrderOfExecutionNotOfInterning) {
  Recorder& recorder = Make();
  const std::uint32_t fc2 = *recorder.Intern(kFc2);
  const std::uint32_t fc1 = *recorder.Intern(kFc1);
  for (const std::uint32_t handle : {fc1, fc2}) {
    Slot* slot = nullptr;
    ASSERT_TRUE(recorder.Begin(handle, DType::kF32, kShape, &slot).ok());
    recorder.Commit(slot);
  }
  EXPECT_EQ(DrainActivations(), (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(recorder.definitions().Activations(0, 1)[0].key.name, "fc1");
  EXPECT_EQ(recorder.definitions().Layouts(0, 0)[0].shape, (std::vector<std::int64_t>{4, 8}));
}

TEST_F(RecorderTest, SameIdentityHasTheSameHandle) {
  Recorder& recorder = Make();
  EXPECT_EQ(*recorder.Intern(kFc1), *recorder.Intern(kFc1));
  EXPECT_NE(*recorder.Intern(kFc1), *recorder.Intern(kFc2));
  IdentityView other = kFc1;
  other.micro_batch = 1;
  EXPECT_NE(*recorder.Intern(kFc1), *recorder.Intern(other));
}

TEST_F(RecorderTest, RefusesAnIdentityTwiceInAStepAndTakesItInTheNext) {
  Recorder& recorder = Make();
  EXPECT_TRUE(Observe(kFc1));
  EXPECT_FALSE(Observe(kFc1));
  EXPECT_EQ(status_.code(), Code::kInvalidArgument);
  EXPECT_THAT(status_.message(), HasSubstr("already observed in step 0"));
  recorder.EndStep();
  EXPECT_TRUE(Observe(kFc1));
  EXPECT_EQ(ledger_.Snapshot().produced, 3u)
      << "two tensors and a step end; a refused call is no record";
}

TEST_F(RecorderTest, CountsCallsWithinAStepAndMicroBatch) {
  Recorder& recorder = Make();
  IdentityView second_micro_batch = kFc1;
  second_micro_batch.micro_batch = 1;
  EXPECT_TRUE(Observe(kFc1, true));
  EXPECT_TRUE(Observe(kFc1, true));
  EXPECT_TRUE(Observe(second_micro_batch, true));
  recorder.EndStep();
  EXPECT_TRUE(Observe(kFc1, true));
  EXPECT_EQ(DrainActivations(), (std::vector<std::uint32_t>{0, 1, 2, 0}));
  const auto defs = recorder.definitions().Activations(0, 2);
  EXPECT_EQ(defs[0].key.call, 0u);
  EXPECT_EQ(defs[1].key.call, 1u);
  EXPECT_EQ(defs[2].key.call, 0u);
  EXPECT_EQ(defs[2].key.micro_batch, 1u);
}

TEST_F(RecorderTest, CountsExponentsOfWhatIsAskedForAndSendsThemAfterTheTensor) {
  recorder_ = std::make_unique<Recorder>(
      Recorder::Options{.slots = 16,
                        .exponents = *ParseExponentSpecs("fc1@1-:kind=output; fc?@2:kind=weight")},
      &clock_, &ledger_, &waker_);
  const IdentityView weight = {.name = "fc2", .kind = Kind::kWeight};
  for (std::uint64_t step = 0; step < 3; ++step) {
    for (const IdentityView& identity : {kFc1, kFc2, weight}) {
      Slot* slot = nullptr;
      ASSERT_TRUE(recorder_->Begin(identity, false, DType::kF32, kShape, &slot).ok());
      const bool wanted =
          (identity.name == "fc1" && step >= 1) || (identity.kind == Kind::kWeight && step == 2);
      EXPECT_EQ(slot->exponents != nullptr, wanted) << identity.name << " step " << step;
      if (slot->exponents != nullptr) {
        (*slot->exponents)[3] = 5;
        (*slot->exponents)[5] = step;
      }
      recorder_->Commit(slot);
    }
    recorder_->EndStep();
  }
  EXPECT_TRUE(DrainSide().empty()) << "their tensors have not left";
  EXPECT_EQ(DrainActivations().size(), 9u);
  const std::vector<SideRecord> records = DrainSide();
  ASSERT_EQ(records.size(), 6u);
  EXPECT_TRUE(std::holds_alternative<StepRecord>(records[0]));
  const ExponentRecord expected{
      .step = 1, .activation = 0, .layout = 0, .lowest = kExponentLowest + 3, .counts = {5, 0, 1}};
  EXPECT_EQ(std::get<ExponentRecord>(records[1]), expected);
  EXPECT_EQ(std::get<ExponentRecord>(records[4]).activation, 2u);
  EXPECT_EQ(ledger_.Snapshot().produced, 9u + 3u + 3u);
}

TEST_F(RecorderTest, ATensorThatIsGivenUpHasNoExponentsAndOneWithoutAnyHasEmptyOnes) {
  recorder_ = std::make_unique<Recorder>(
      Recorder::Options{.slots = 16, .exponents = *ParseExponentSpecs("*")}, &clock_, &ledger_,
      &waker_);
  Slot* slot = nullptr;
  ASSERT_TRUE(recorder_->Begin(kFc1, false, DType::kF32, kShape, &slot).ok());
  recorder_->GiveUp(slot, kDropDeviceError);
  EXPECT_EQ(ledger_.Snapshot().dropped_by_cause.at("device_error"), 2u);
  EXPECT_TRUE(Observe(kFc2));
  EXPECT_EQ(DrainActivations().size(), 1u);
  const std::vector<SideRecord> records = DrainSide();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(std::get<ExponentRecord>(records[0]), (ExponentRecord{.activation = 1}));
}

TEST_F(RecorderTest, ExponentsThatADeviceOwesAtTheEndAreTakenAndCountedWithTheirTensor) {
  for (const bool in_time : {true, false}) {
    Ledger ledger;
    recorder_ = std::make_unique<Recorder>(
        Recorder::Options{.slots = 16, .exponents = *ParseExponentSpecs("*")}, &clock_, &ledger,
        &waker_);
    Slot* slot = nullptr;
    ASSERT_TRUE(recorder_->Begin(kFc1, false, DType::kF32, kShape, &slot).ok());
    EXPECT_EQ(ledger.Snapshot().pending, 2u) << "a flush waits for both";
    recorder_->Refuse(kDropClosed);
    if (!in_time) recorder_->DropRest(kDropClosed);
    recorder_->Commit(slot);
    EXPECT_EQ(DrainActivations().size(), in_time ? 1u : 0u);
    EXPECT_EQ(DrainSide().size(), in_time ? 1u : 0u);
    EXPECT_EQ(ledger.Snapshot().pending, in_time ? 2u : 0u);
    EXPECT_EQ(ledger.Snapshot().dropped_by_cause.contains("closed"), !in_time);
  }
  recorder_.reset();
}

TEST_F(RecorderTest, ManyRowsOfTokensAreSeveralRecords) {
  Recorder& recorder = Make();
  TokenRecord record{.tap = "fc", .call = 3, .dtype = DType::kF32, .columns = 4};
  ASSERT_TRUE(recorder.log().LogTokens(record).ok()) << "no rows: nothing to record";
  for (std::uint64_t key = 0; key < 2 * kTokenRowsMax + 1; ++key)
    record.rows.push_back({.key = key});
  ASSERT_TRUE(recorder.log().LogTokens(record).ok());
  const auto records = DrainSide();
  ASSERT_EQ(records.size(), 3u);
  std::vector<TokenRow> rows;
  for (const SideRecord& one : records) {
    const auto& part = std::get<TokenRecord>(one);
    EXPECT_LE(part.rows.size(), kTokenRowsMax);
    EXPECT_EQ(part.tap, "fc");
    EXPECT_EQ(part.call, 3u);
    rows.insert(rows.end(), part.rows.begin(), part.rows.end());
  }
  EXPECT_EQ(rows, record.rows);
  EXPECT_EQ(ledger_.Snapshot().produced, 3u);
  record.tap = "";
  EXPECT_EQ(recorder.log().LogTokens(record).code(), Code::kInvalidArgument);
}

TEST_F(RecorderTest, TokensWithoutStatisticsWaitInTheirPlace) {
  Recorder& recorder = Make();
  TokenRecord record{.tap = "fc", .dtype = DType::kF32, .columns = 4};
  record.rows.resize(kTokenRowsMax + 2);
  std::vector<std::uint64_t> numbers;
  const auto compute = [&](std::size_t begin, std::size_t count, std::uint64_t number) {
    EXPECT_EQ(begin, numbers.size() * kTokenRowsMax);
    EXPECT_EQ(count, numbers.empty() ? kTokenRowsMax : 2u);
    numbers.push_back(number);
  };
  ASSERT_TRUE(recorder.log().LogScalar("loss", 1, 0).ok());
  ASSERT_TRUE(recorder.log().LogTokens(record, std::nullopt, compute).ok());
  recorder.EndStep();
  ASSERT_EQ(numbers.size(), 2u);
  EXPECT_EQ(DrainSide().size(), 1u) << "the scalar before them";
  const auto fill = [](std::size_t row, RowStats* stats) { stats->hash = 100 + row; };
  recorder.log().CompleteTokens(numbers[1], fill);
  EXPECT_TRUE(DrainSide().empty()) << "the second one waits for the first";
  recorder.log().CompleteTokens(numbers[0], fill);
  const auto records = DrainSide();
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(std::get<TokenRecord>(records[0]).rows.back().stats.hash, 100 + kTokenRowsMax - 1);
  EXPECT_EQ(std::get<TokenRecord>(records[1]).rows[1].stats.hash, 101u);
  EXPECT_TRUE(std::holds_alternative<StepRecord>(records[2]));
}

TEST_F(RecorderTest, TokensThatAreLostHoldUpNothingAndAreCountedOnce) {
  Recorder& recorder = Make();
  TokenRecord record{.tap = "fc", .dtype = DType::kF32, .columns = 4};
  record.rows.resize(3);
  std::vector<std::uint64_t> numbers;
  const auto compute = [&](std::size_t, std::size_t, std::uint64_t number) {
    numbers.push_back(number);
  };
  for (int i = 0; i < 2; ++i)
    ASSERT_TRUE(recorder.log().LogTokens(record, std::nullopt, compute).ok());
  ASSERT_TRUE(recorder.log().LogScalar("loss", 1, 0).ok());
  recorder.log().LoseTokens(numbers[0], kDropDeviceError);
  EXPECT_TRUE(DrainSide().empty());
  recorder.log().LoseTokens(numbers[1], kDropDeviceError);
  recorder.log().LoseTokens(numbers[1], kDropDeviceError);
  EXPECT_EQ(DrainSide().size(), 1u);
  EXPECT_EQ(ledger_.Snapshot().dropped_by_cause.at("device_error"), 2u);
  // What was cleared meanwhile is counted by who cleared it.
  ASSERT_TRUE(recorder.log().LogTokens(record, std::nullopt, compute).ok());
  recorder.Refuse(kDropClosed);
  recorder.DropRest(kDropClosed);
  recorder.log().CompleteTokens(numbers[2], [](std::size_t, RowStats*) { FAIL(); });
  recorder.log().LoseTokens(numbers[2], kDropDeviceError);
  EXPECT_EQ(ledger_.Snapshot().dropped_by_cause.at("closed"), 1u);
  EXPECT_EQ(ledger_.Snapshot().dropped_by_cause.at("device_error"), 2u);
  ASSERT_TRUE(recorder.log().LogTokens(record, std::nullopt, compute).ok());
  EXPECT_EQ(numbers.size(), 3u) << "refused: there is nothing to compute";
}

TEST(ExponentSpec, SaysWhichNamesKindsAndSteps) {
  const auto matches = [](const std::string& text, const std::string& name,
                          Kind kind = Kind::kOutput) {
    const auto spec = ExponentSpec::Parse(text);
    EXPECT_TRUE(spec.ok()) << spec.status().message();
    TensorKey key;
    key.name = name;
    key.kind = kind;
    return spec.ok() && spec->Matches(key);
  };
  EXPECT_TRUE(matches("*", "blocks.1.ln2", Kind::kOptimizerState));
  EXPECT_TRUE(matches("blocks.*.ln2", "blocks.10.ln2"));
  EXPECT_TRUE(matches("*ln*", "blocks.1.ln2"));
  EXPECT_TRUE(matches("a*b*c", "abbbcbc"));
  EXPECT_TRUE(matches("fc?", "fc1"));
  EXPECT_TRUE(matches("fc1**", "fc1"));
  EXPECT_FALSE(matches("fc?", "fc"));
  EXPECT_FALSE(matches("fc", "fc1"));
  EXPECT_FALSE(matches("a*b*c", "abbbcb"));
  EXPECT_TRUE(matches("fc1:kind=weight,kind=weight_grad", "fc1", Kind::kWeightGrad));
  EXPECT_FALSE(matches("fc1:kind=weight,kind=weight_grad", "fc1"));
  EXPECT_TRUE(matches("adam:exp_avg", "adam:exp_avg")) << "no option: part of the name";
  EXPECT_TRUE(matches("a@b@3", "a@b"));
  const auto specs = ParseExponentSpecs(" *@0-,every=100 ;; fc1@3-5:kind=output ");
  ASSERT_TRUE(specs.ok()) << specs.status().message();
  ASSERT_EQ(specs->size(), 2u);
  EXPECT_TRUE((*specs)[0].steps.Contains(300));
  EXPECT_FALSE((*specs)[0].steps.Contains(301));
  EXPECT_TRUE((*specs)[1].steps.Contains(5));
  EXPECT_FALSE((*specs)[1].steps.Contains(6));
  for (const char* bad : {"@3", "fc1@", "fc1@x", "fc1@3:kind=", "fc1@3:kind=outputs",
                          "fc1@3:path=0", "fc1:kind=output,", "a\nb"}) {
    const auto parsed = ParseExponentSpecs(bad);
    EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument) << bad;
    EXPECT_THAT(parsed.status().message(), ::testing::HasSubstr("exponents")) << bad;
  }
  EXPECT_THAT(ParseExponentSpecs("*:kind=weigth_grad").status().message(),
              ::testing::HasSubstr("did you mean 'weight_grad'?"));
}

TEST_F(RecorderTest, OtherStepsAreWantedFromTheNextStepOn) {
  Recorder& recorder = Make(16);
  EXPECT_TRUE(recorder.StepWanted());
  recorder.RecordSteps(*StepSet::Parse("2,7"));
  EXPECT_TRUE(recorder.StepWanted()) << "the step that has begun stays whole";
  recorder.EndStep();
  EXPECT_FALSE(recorder.StepWanted());
  recorder.EndStep();
  EXPECT_TRUE(recorder.StepWanted());
  recorder.RecordSteps(*StepSet::Parse("2"));
  recorder.RecordSteps(*StepSet::Parse(""));
  ASSERT_TRUE(recorder.SetStep(9).ok());
  EXPECT_TRUE(recorder.StepWanted()) << "the last wish counts";
}

TEST_F(RecorderTest, OnlyStepsThatTheCollectorAskedForAreAsked) {
  Recorder& recorder = Make(16);
  EXPECT_FALSE(recorder.StepAsked()) << "every step is wanted, none was asked for";
  recorder.RecordSteps(*StepSet::Parse("2"));
  recorder.EndStep();
  EXPECT_FALSE(recorder.StepAsked());
  recorder.EndStep();
  EXPECT_TRUE(recorder.StepAsked());
}

TEST_F(RecorderTest, RecordsWantedStepsOnlyAndInitialWeightsAlways) {
  Recorder& recorder = Make(16, "1");
  const IdentityView initial = {.name = "fc1.weight", .kind = Kind::kWeight, .mode = Mode::kInit};
  EXPECT_FALSE(recorder.StepWanted());
  EXPECT_FALSE(Observe(kFc1));
  EXPECT_TRUE(Observe(initial));
  recorder.EndStep();
  EXPECT_TRUE(recorder.StepWanted());
  EXPECT_TRUE(Observe(kFc1));
}

TEST_F(RecorderTest, CountsADropWhenNoSlotIsFreeAndKeepsTheOrder) {
  Recorder& recorder = Make(1);
  EXPECT_TRUE(Observe(kFc1));
  EXPECT_FALSE(Observe(kFc2));
  EXPECT_TRUE(status_.ok());
  EXPECT_EQ(ledger_.Snapshot().dropped_by_cause,
            (std::map<std::string, std::uint64_t>{{"buffer_full", 1}}));
  DrainActivations();
  EXPECT_TRUE(Observe({.name = "fc3", .kind = Kind::kOutput}));
  EXPECT_EQ(recorder.ring().Front()->order, 2u) << "the lost one keeps its place";
}

TEST_F(RecorderTest, GivesStepEndsAndScalarsTheirPlaceBehindTheTensors) {
  Recorder& recorder = Make();
  bool too_big = false;
  ASSERT_TRUE(recorder.log().LogScalar("lr", 0.5, 0).ok());
  EXPECT_TRUE(Observe(kFc1));
  recorder.EndStep();
  EXPECT_TRUE(recorder.side().PopIf(0, 1000, {}, &too_big).has_value());
  EXPECT_FALSE(recorder.side().PopIf(0, 1000, {}, &too_big).has_value())
      << "a tensor of the step is still in the ring";
  DrainActivations();
  const auto end = recorder.side().PopIf(recorder.ring().head(), 1000, {}, &too_big);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(std::get<StepRecord>(end->record).step, 0u);
  EXPECT_EQ(std::get<StepRecord>(end->record).micro_batches, 1u);
}

TEST_F(RecorderTest, WhatBecomesKnownLateGoesToAStepThatIsOver) {
  Recorder& recorder = Make();
  recorder.EndStep();
  recorder.EndStep();
  EXPECT_TRUE(recorder.log().LogScalar("loss", 1.5, 9, 0).ok());
  EXPECT_TRUE(recorder.log().LogEvent("note", "late", {}, 1).ok());
  EXPECT_TRUE(
      recorder.log()
          .LogDensity({.input = "ids", .type = DensityType::kEmbed, .valid = 1, .total = 2}, 1)
          .ok());
  EXPECT_EQ(recorder.log().LogScalar("loss", 1.5, 0, 3).code(), Code::kInvalidArgument);
  EXPECT_THAT(recorder.log().LogEvent("note", "", {}, 3).message(),
              HasSubstr("step 3 is still to come"));
  EXPECT_EQ(recorder.log().LogDensity({.input = "ids", .type = DensityType::kEmbed}, 3).code(),
            Code::kInvalidArgument);
  recorder.EndStep();
  const std::vector<SideRecord> records = DrainSide();
  ASSERT_EQ(records.size(), 6u);
  EXPECT_EQ(std::get<ScalarRecord>(records[2]).step, 0u);
  EXPECT_EQ(std::get<EventRecord>(records[3]).step, 1u);
  EXPECT_EQ(std::get<DensityRecord>(records[4]).step, 1u);
  EXPECT_EQ(std::get<StepRecord>(records[5]).micro_batches, 0u)
      << "a late micro-batch is none of this step";
}

TEST_F(RecorderTest, MemoryIsOfTheCurrentStepAndHoldsWhatIsKnown) {
  Recorder& recorder = Make();
  recorder.EndStep();
  MemoryRecord record{
      .step = 77, .micro_batch = 1, .phase = MemoryPhase::kPreBackward, .device = "cuda:0"};
  record.present = BitOf(MemoryQuantity::kAllocated);
  record.bytes = {100, 200};
  ASSERT_TRUE(recorder.log().LogMemory(record).ok());
  record.bytes[0] = -1;
  EXPECT_THAT(recorder.log().LogMemory(record).message(), HasSubstr("allocated is -1"));
  record.present = 1u << 30;
  EXPECT_EQ(recorder.log().LogMemory(record).code(), Code::kInvalidArgument);
  record = {.phase = MemoryPhase::kUnspecified};
  EXPECT_EQ(recorder.log().LogMemory(record).code(), Code::kInvalidArgument);
  EXPECT_EQ(recorder.log().LogMemory({.phase = MemoryPhase::kPreForward, .device = "\n"}).code(),
            Code::kInvalidArgument);
  const std::vector<SideRecord> records = DrainSide();
  ASSERT_EQ(records.size(), 2u);
  const auto& kept = std::get<MemoryRecord>(records[1]);
  EXPECT_EQ(kept.step, 1u);
  EXPECT_EQ(kept.Of(MemoryQuantity::kAllocated), 100);
  EXPECT_EQ(kept.Of(MemoryQuantity::kMaxAllocated), 0) << "not said to be there";
}

TEST_F(RecorderTest, DensityOfMoreSamplesThanFitKeepsTheWhole) {
  Recorder& recorder = Make();
  DensityRecord record{
      .input = "ids", .type = DensityType::kLabel, .pad_index = -100, .valid = 5000, .total = 5000};
  record.valid_per_sample.assign(5000, 1);
  ASSERT_TRUE(recorder.log().LogDensity(record).ok());
  record.valid = 5001;
  EXPECT_THAT(recorder.log().LogDensity(record).message(), HasSubstr("5001 of 5000"));
  const std::vector<SideRecord> records = DrainSide();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(std::get<DensityRecord>(records[0]).valid, 5000u);
  EXPECT_TRUE(std::get<DensityRecord>(records[0]).valid_per_sample.empty());
}

TEST_F(RecorderTest, AddedConfigurationIsBoundedByItsNames) {
  Recorder& recorder = Make();
  std::map<std::string, std::string> settings;
  for (std::size_t i = 0; i < SideRecorder::kAddedSettingsMax; ++i)
    settings["key" + std::to_string(i)] = "v";
  ASSERT_TRUE(recorder.log().AddConfig(settings).ok());
  EXPECT_EQ(recorder.log().AddConfig({{"zzz", "v"}}).code(), Code::kResourceExhausted);
  EXPECT_TRUE(recorder.log().AddConfig({{"key0", "w"}}).ok()) << "known already";
  EXPECT_EQ(recorder.log().AddConfig({{"", "v"}}).code(), Code::kInvalidArgument);
  EXPECT_EQ(DrainSide().size(), SideRecorder::kAddedSettingsMax + 1);
}

TEST_F(RecorderTest, StepsNeverGoBack) {
  Recorder& recorder = Make();
  EXPECT_TRUE(recorder.SetStep(100).ok());
  EXPECT_TRUE(recorder.SetStep(100).ok());
  EXPECT_EQ(recorder.SetStep(99).code(), Code::kInvalidArgument);
  recorder.EndStep();
  EXPECT_EQ(recorder.step(), 101u);
}

TEST_F(RecorderTest, AStepIsAlwaysFollowedByAnotherOne) {
  Recorder& recorder = Make();
  EXPECT_EQ(recorder.SetStep(~std::uint64_t{0}).code(), Code::kInvalidArgument);
  EXPECT_EQ(recorder.SetStep(kStepMax + 1).message(),
            "set step 9223372036854775808: expected at most 2^63-1; count steps from 0");
  EXPECT_EQ(recorder.step(), 0u);
  EXPECT_TRUE(recorder.SetStep(kStepMax).ok());
  recorder.EndStep();
  EXPECT_EQ(recorder.step(), kStepMax + 1);
}

TEST_F(RecorderTest, RefusesHostileNamesAndValues) {
  Recorder& recorder = Make();
  for (const std::string& name :
       {std::string(), std::string("a\nb"), std::string(5000, 'x'), std::string("\xff")}) {
    EXPECT_FALSE(Observe({.name = name, .kind = Kind::kOutput}));
    EXPECT_EQ(status_.code(), Code::kInvalidArgument) << name;
    EXPECT_EQ(recorder.log().LogScalar(name, 1, 0).code(), Code::kInvalidArgument);
    EXPECT_EQ(recorder.log().LogEvent(name, "text", {}).code(), Code::kInvalidArgument);
  }
  EXPECT_FALSE(Observe({.name = "fc1", .kind = static_cast<Kind>(99)}));
  EXPECT_THAT(status_.message(), HasSubstr("kind is 99"));
  EXPECT_FALSE(Observe({.name = "fc1", .kind = Kind::kOutput, .mode = Mode::kUnspecified}));
  EXPECT_EQ(ledger_.Snapshot().produced, 0u);
}

TEST_F(RecorderTest, MakesEventTextsPrintableAndBounded) {
  Recorder& recorder = Make();
  ASSERT_TRUE(recorder.log()
                  .LogEvent("note", std::string(100000, 'a') + "\x1b[31m", {{"key", "a\nb\xff"}})
                  .ok());
  bool too_big = false;
  const auto entry = recorder.side().PopIf(0, 1u << 20, {}, &too_big);
  const auto& event = std::get<EventRecord>(entry->record);
  EXPECT_LT(event.text.size(), 70000u);
  EXPECT_EQ(event.fields.at("key").find('\n'), std::string::npos);
}

TEST_F(RecorderTest, LeavesSecretsOutOfEventsAndSettings) {
  Recorder& recorder = Make();
  ASSERT_TRUE(
      recorder.log()
          .LogEvent(
              "exception", "OSError: postgres://u:s3cret@db and token=s3cret-1a",
              {{"message", "password='s3cret'"}, {"api_key", "s3cret"}, {"key", "module.a.eps"}})
          .ok());
  ASSERT_TRUE(
      recorder.log()
          .AddConfig({{"args.0", "--password"}, {"args.1", "s3cret"}, {"note", "--db-pass s3cret"}})
          .ok());
  const std::vector<SideRecord> records = DrainSide();
  ASSERT_EQ(records.size(), 4u);
  const auto& event = std::get<EventRecord>(records[0]);
  EXPECT_EQ(event.text, "OSError: postgres://(redacted)@db and token=(redacted)");
  EXPECT_EQ(event.fields.at("message"), "password='(redacted)'");
  EXPECT_EQ(event.fields.at("api_key"), "(redacted)");
  EXPECT_EQ(event.fields.at("key"), "module.a.eps");
  EXPECT_EQ(std::get<SettingRecord>(records[1]).value, "--password");
  EXPECT_EQ(std::get<SettingRecord>(records[2]).value, "(redacted)");
  EXPECT_EQ(std::get<SettingRecord>(records[3]).value, "--db-pass (redacted)");
}

TEST_F(RecorderTest, CountsEverythingHandedOverAfterClosingAsDropped) {
  Recorder& recorder = Make();
  EXPECT_TRUE(Observe(kFc1));
  Slot* in_progress = nullptr;
  ASSERT_TRUE(recorder.Begin(kFc2, false, DType::kF32, kShape, &in_progress).ok());
  recorder.Refuse(kDropClosed);
  EXPECT_FALSE(Observe({.name = "late", .kind = Kind::kOutput}));
  recorder.EndStep();
  recorder.DropRest(kDropClosed);
  recorder.Commit(in_progress);
  const AgentCounters c = ledger_.Snapshot();
  EXPECT_EQ(c.produced, 4u);
  EXPECT_EQ(c.pending, 0u);
  EXPECT_EQ(c.dropped_by_cause.at("closed"), 4u);
}

// Layout id of a tensor that is kept; empty if it is refused.
std::optional<std::uint32_t> LayoutOf(Recorder& recorder, const IdentityView& identity,
                                      std::vector<std::int64_t> shape, const PlacementView* place,
                                      Status* status) {
  Slot* slot = nullptr;
  *status = recorder.Begin(identity, true, DType::kF32, shape, &slot, nullptr, place);
  if (slot == nullptr) return std::nullopt;
  recorder.Commit(slot);
  return slot->layout;
}

TEST_F(RecorderTest, APlacementIsPartOfTheLayoutAndDefinedOnce) {
  Recorder& recorder = Make();
  const Placement left{.global_shape = {4, 16}, .boxes = {0, 0, 4, 8}};
  Placement right = left;
  right.boxes[1] = 8;
  Placement partial = left;
  partial.partial = true;
  Placement piece = left;
  piece.pieces = 2;
  const PlacementView places[] = {View(left), View(right), View(partial), View(piece)};
  std::uint32_t expected = 0;
  EXPECT_EQ(LayoutOf(recorder, kFc1, {4, 8}, nullptr, &status_), expected);
  for (const PlacementView& place : places)
    EXPECT_EQ(LayoutOf(recorder, kFc1, {4, 8}, &place, &status_), ++expected) << status_.message();
  // In another order, of another tensor: found by hash, not by the hint.
  for (std::size_t i = 4; i-- > 0;)
    EXPECT_EQ(LayoutOf(recorder, kFc2, {4, 8}, &places[i], &status_), i + 1);
  const auto layouts = recorder.definitions().Layouts(0, 4);
  EXPECT_EQ(layouts[0].placement, std::nullopt);
  EXPECT_EQ(layouts[2].placement, right);
  EXPECT_EQ(layouts[3].placement, partial);
  EXPECT_EQ(layouts[4].placement, piece);
}

TEST_F(RecorderTest, RefusesAPlacementThatDoesNotFitAndRecordsNothingOfIt) {
  Recorder& recorder = Make();
  const Placement place{.global_shape = {4, 16}, .boxes = {0, 9, 4, 8}};
  const PlacementView view = View(place);
  EXPECT_EQ(LayoutOf(recorder, kFc1, {4, 8}, &view, &status_), std::nullopt);
  EXPECT_EQ(status_.code(), Code::kInvalidArgument);
  EXPECT_THAT(
      status_.message(),
      HasSubstr("observe 'fc1': place a shard in the tensor of global shape (4, 16): the box "
                "at (0, 9) of size (4, 8) extends beyond dimension 1"));
  EXPECT_EQ(ledger_.Snapshot().produced, 0u);
  // Its identity may still be observed in the step.
  Slot* slot = nullptr;
  ASSERT_TRUE(recorder.Begin(kFc1, false, DType::kF32, kShape, &slot).ok());
  ASSERT_NE(slot, nullptr);
  recorder.Commit(slot);
  EXPECT_EQ(ledger_.Snapshot().produced, 1u);
}

TEST_F(RecorderTest, RefusesAHandleThatWasNeverGivenOut) {
  Recorder& recorder = Make();
  Slot* slot = nullptr;
  EXPECT_EQ(recorder.Begin(7, DType::kF32, kShape, &slot).code(), Code::kInvalidArgument);
  EXPECT_EQ(slot, nullptr);
}

class CaptureTest : public RecorderTest {
 protected:
  // What Begin asks to be captured.
  std::optional<CaptureTarget> Wanted(const IdentityView& identity) {
    Slot* slot = nullptr;
    std::optional<CaptureTarget> target;
    status_ = recorder_->Begin(identity, false, DType::kF32, kShape, &slot, &target);
    kept_ = slot != nullptr;
    if (slot != nullptr) recorder_->Commit(slot);
    return target;
  }
  void Ask(const std::string& text, const std::string& request) {
    recorder_->pending_captures().Add(*CaptureSpec::Parse(text), request);
  }
  // Texts of the events so far, without the other records.
  std::vector<EventRecord> Events() {
    DrainActivations();
    std::vector<EventRecord> events;
    for (SideRecord& record : DrainSide()) {
      if (auto* event = std::get_if<EventRecord>(&record)) events.push_back(std::move(*event));
    }
    return events;
  }
  bool kept_ = false;
};

TEST_F(CaptureTest, IsAskedForInItsStepOnlyAndOfWhatMatchesOnly) {
  Recorder& recorder = Make();
  Ask("fc1@1", "7");
  EXPECT_FALSE(Wanted(kFc1)) << "step 0";
  recorder.EndStep();
  IdentityView gradient = kFc1;
  gradient.kind = Kind::kGradOutput;
  EXPECT_FALSE(Wanted(gradient));
  const auto target = Wanted(kFc1);
  ASSERT_TRUE(target);
  EXPECT_EQ(target->step, 1u);
  EXPECT_EQ(target->requests, "7");
  EXPECT_EQ(target->activation, 0u) << "the definition that its statistics have, too";
  EXPECT_EQ(target->bytes_max, kCaptureBytesDefault);
  recorder.EndStep();
  EXPECT_FALSE(Wanted(kFc1));
  EXPECT_TRUE(Events().empty()) << "nothing was missed";
}

TEST_F(CaptureTest, TwoWishesForOneTensorAreServedByOneCopyOfTheLargerSize) {
  Make();
  Ask("fc1@0:bytes_max=100", "1");
  Ask("fc1@0:bytes_max=200,kind=output", "2");
  const auto target = Wanted(kFc1);
  ASSERT_TRUE(target);
  EXPECT_EQ(target->requests, "1,2");
  EXPECT_EQ(target->bytes_max, 200u);
}

TEST_F(CaptureTest, AStepThatIsNotRecordedIsObservedForItAlone) {
  Recorder& recorder = Make(16, "every=10");
  Ask("fc1@1", "3");
  recorder.EndStep();
  EXPECT_TRUE(recorder.StepWanted());
  EXPECT_FALSE(Wanted(kFc2));
  EXPECT_FALSE(kept_);
  EXPECT_TRUE(Wanted(kFc1));
  EXPECT_FALSE(kept_) << "its statistics are not recorded";
  recorder.EndStep();
  EXPECT_FALSE(recorder.StepWanted());
}

TEST_F(CaptureTest, SaysWhyNothingWasCaptured) {
  Recorder& recorder = Make();
  for (int i = 0; i < 5; ++i) recorder.EndStep();
  Ask("fc1@3", "1");
  auto events = Events();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, "capture_missed");
  EXPECT_EQ(events[0].fields.at("request"), "1");
  EXPECT_THAT(events[0].text,
              HasSubstr("not captured: fc1 in step 3: it has passed, this rank is at step 5"));
  EXPECT_EQ(events[0].step, 3u);

  Ask("nowhere@6", "2");
  recorder.EndStep();
  EXPECT_TRUE(Events().empty()) << "still to come";
  recorder.EndStep();
  events = Events();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_THAT(events[0].text, HasSubstr("nowhere was not observed in step 6"));

  Ask("fc1@100", "3");
  recorder.pending_captures().End();
  events = Events();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_THAT(events[0].text, HasSubstr("the run ended at step 7"));
}

TEST_F(CaptureTest, ANameThatIsNearlyAnObservedOneIsSaid) {
  Recorder& recorder = Make();
  (void)Wanted(kFc1);
  Ask("fc@0", "1");
  recorder.EndStep();
  const auto events = Events();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_THAT(events[0].text, HasSubstr("fc was not observed in step 0 (did you mean 'fc1'?)"));
}

TEST_F(CaptureTest, APatternTakesEveryTensorOfItsKindInItsStep) {
  Recorder& recorder = Make();
  recorder.pending_captures().Add(*CaptureSpec::Parse("f*@0"), "");
  EXPECT_TRUE(Wanted(kFc1));
  EXPECT_TRUE(Wanted(kFc2));
  EXPECT_FALSE(Wanted({.name = "fc2", .kind = Kind::kWeightGrad}));
  EXPECT_FALSE(Wanted({.name = "ln", .kind = Kind::kOutput}));
  recorder.EndStep();
  EXPECT_FALSE(Wanted(kFc1));
}

TEST_F(CaptureTest, WhatWasToldBeforeIsLetBe) {
  Recorder& recorder = Make();
  Ask("fc1@0", "5");
  ASSERT_TRUE(Wanted(kFc1));
  recorder.EndStep();
  Ask("fc1@0", "5");
  EXPECT_TRUE(Events().empty())
      << "the collector says it again after a reconnect; it has been served";
}

TEST_F(CaptureTest, AStepIsNeverAnIdentityTwiceAlthoughItIsCaptured) {
  Make();
  Ask("fc1@0", "1");
  ASSERT_TRUE(Wanted(kFc1));
  EXPECT_FALSE(Wanted(kFc1));
  EXPECT_EQ(status_.code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace statcollect
