#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "server/query/answers/noise.h"
#include "server/query/noise/noise_profile.h"
#include "server/query/query.h"
#include "tests/server/query/ask.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {
namespace {

using testing::FakeStore;
using ::testing::HasSubstr;
using testing::Key;
using testing::RunWriter;
using testing::Tensor;

// 64 values, each off by a relative `error`.
Tensor Wave(double error) {
  Tensor tensor;
  for (int i = 0; i < 64; ++i) tensor.values.push_back(std::sin(i + 1.0) * (1 + error));
  return tensor;
}

// "base" and two repeats whose distance to it doubles each step from 1e-5 on; `b` is as a third
// repeat, but at step 6 "fc" is off by a percent.
class NoiseTest : public ::testing::Test {
 protected:
  NoiseTest() {
    Write(
        "base", [](std::uint64_t) { return 0.0; }, 0);
    Write(
        "base2", [](std::uint64_t step) { return 1e-5 * std::exp2(step); }, 0);
    Write(
        "base3", [](std::uint64_t step) { return 0.5e-5 * std::exp2(step); }, 0);
    Write(
        "same", [](std::uint64_t step) { return -1e-5 * std::exp2(step); }, 0);
    Write(
        "fault", [](std::uint64_t step) { return -1e-5 * std::exp2(step); }, 0.05);
  }
  template <typename Noise>
  void Write(const std::string& run, const Noise& noise, double fault) {
    RunWriter writer(store_, run);
    for (std::uint64_t step = 0; step < 8; ++step) {
      writer.Observe(0, step, Key("ln"), Wave(noise(step)));
      writer.Observe(0, step, Key("fc"), Wave(noise(step) + (step == 6 ? fault : 0)));
      writer.Observe(0, step, Key("head"), Wave(noise(step)));
      writer.Observe(0, step, Key("fc.weight", Kind::kWeight), Wave(noise(step)));
      writer.Scalar(0, step, "loss", 2 * (1 + noise(step)));
    }
    writer.Commit();
  }
  DiffReport Ask(DiffRequest request) {
    auto report = QueryEngine(store_).Diff(request);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? *report : DiffReport();
  }

  FakeStore store_;
};

TEST_F(NoiseTest, WhatRepeatsDifferByIsNoDivergence) {
  EXPECT_EQ(Ask({.run_a = "base", .run_b = "same"}).verdict, Verdict::kDiverged);
  const DiffReport r = Ask({.run_a = "base", .run_b = "same", .noise = {"base2", "base3"}});
  EXPECT_EQ(r.verdict, Verdict::kWithinTolerance);
  ASSERT_TRUE(r.noise);
  EXPECT_FALSE(r.noise->stored);
  EXPECT_EQ(r.noise->runs.size(), 2u);
}

TEST_F(NoiseTest, WhatIsFarBeyondItIsTheRootWithTimesNoise) {
  const DiffReport r = Ask({.run_a = "base", .run_b = "fault", .noise = {"base2", "base3"}});
  ASSERT_TRUE(r.root);
  EXPECT_EQ(r.root->at.step, 6u);
  EXPECT_EQ(r.root->at.activation, "fc");
  EXPECT_GT(*r.root->at.times_noise, 40);
}

// With a tolerance of the user, rounding explains nothing, but ten times the noise is allowed.
TEST_F(NoiseTest, NoiseRaisesATolerance) {
  const DiffReport r =
      Ask({.run_a = "base", .run_b = "fault", .tolerance = 1e-5, .noise = {"base2", "base3"}});
  ASSERT_TRUE(r.first);
  EXPECT_EQ(r.first->step, 6u);
  EXPECT_EQ(r.first->activation, "fc");
  EXPECT_EQ(r.compared.diverged, 1u);
  const double noise = 1e-5 * 64;
  EXPECT_NEAR(*r.first->tolerance, 10 * noise, 3 * noise);  // a sketch's estimate
  EXPECT_GT(*r.first->times_noise, 40);
}

TEST_F(NoiseTest, StoredNoiseIsUsedUnlessItIsDeclined) {
  const QueryEngine engine(store_);
  EXPECT_EQ(testing::Ask(engine, GetNoise, "base").status().code(), Code::kNotFound);
  std::uint64_t done = 0;
  const auto saved = engine.SaveNoise({.run = "base", .repeats = {"base2", "base3"}},
                                      [&](const Progress& progress) { done = progress.done; });
  ASSERT_TRUE(saved.ok()) << saved.status().message();
  EXPECT_EQ(done, 8u);
  const auto stored = testing::Ask(engine, GetNoise, "base");
  ASSERT_TRUE(stored.ok()) << stored.status().message();
  EXPECT_EQ(stored->steps(), 8u);
  EXPECT_EQ(stored->last_step(), 7u);
  EXPECT_EQ(stored->activations(), 4u);
  ASSERT_EQ(stored->records_size(), 5);  // four tensors and the loss
  EXPECT_NEAR(stored->records(0).last(), 1e-5 * 128, 1e-5 * 40);
  EXPECT_NEAR(stored->records(0).first(), 1e-5, 0.3e-5);

  DiffReport r = Ask({.run_a = "base", .run_b = "same"});
  EXPECT_EQ(r.verdict, Verdict::kWithinTolerance);
  ASSERT_TRUE(r.noise);
  EXPECT_TRUE(r.noise->stored);
  EXPECT_EQ(Ask({.run_a = "base", .run_b = "same", .no_noise = true}).verdict, Verdict::kDiverged);
  EXPECT_EQ(Ask({.run_a = "base", .run_b = "same", .exact = true}).first->step, 0u);
  EXPECT_EQ(Ask({.run_a = "same", .run_b = "base"}).verdict,
            Verdict::kDiverged);  // base's noise, not same's
  r = Ask({.run_a = "base", .run_b = "fault"});
  EXPECT_EQ(r.first->activation, "fc");
  EXPECT_EQ(r.first->step, 6u);

  ASSERT_TRUE(testing::Ask(engine, DeleteNoise, "base").ok());
  EXPECT_EQ(testing::Ask(engine, DeleteNoise, "base").status().code(), Code::kNotFound);
  EXPECT_EQ(Ask({.run_a = "base", .run_b = "same"}).verdict, Verdict::kDiverged);
}

TEST_F(NoiseTest, RepeatsMustBeOtherRunsWithStepsInCommon) {
  RunWriter late(store_, "late");
  late.Observe(0, 100, Key("ln"), Wave(0));
  late.Commit();
  const QueryEngine engine(store_);
  const auto refusal = [&](std::vector<std::string> repeats) {
    return engine.SaveNoise({.run = "base", .repeats = std::move(repeats)}).status();
  };
  EXPECT_THAT(refusal({}).message(), HasSubstr("found no repeats"));
  EXPECT_THAT(refusal({"base"}).message(), HasSubstr("is not its own repeat"));
  EXPECT_THAT(refusal({"late"}).message(), HasSubstr("no step in common"));
  EXPECT_EQ(refusal({"base2", "nowhere"}).code(), Code::kNotFound);
  EXPECT_EQ(testing::Ask(engine, GetNoise, "base").status().code(), Code::kNotFound);
}

TEST_F(NoiseTest, RepeatsMustShareActivations) {
  RunWriter(store_, "gan").Observe(0, 3, Key("dis.0"), Wave(0)).Scalar(0, 3, "loss", 1).Commit();
  RunWriter(store_, "late", 2).Observe(1, 3, Key("ln"), Wave(0)).Commit();
  QueryEngine engine(store_);
  const auto saved = engine.SaveNoise({.run = "base", .repeats = {"base2", "gan"}}, {}, {});
  EXPECT_EQ(saved.status().code(), Code::kNotFound);
  EXPECT_EQ(saved.status().message(),
            "noise of run 'base': 'gan' has none of its 4 activations, such as 'ln', but others, "
            "such as 'dis.0'; "
            "expected a repeat of the same training: name its runs");
  EXPECT_EQ(testing::Ask(engine, GetNoise, "base").status().code(), Code::kNotFound)
      << "nothing was saved";
  EXPECT_THAT(engine.SaveNoise({.run = "base", .repeats = {"late"}}, {}, {}).status().message(),
              HasSubstr("'late' has no rank in common with it"));
  EXPECT_EQ(engine.Diff({.run_a = "base", .run_b = "same", .noise = {"gan"}}).status().code(),
            Code::kNotFound);
}

TEST_F(NoiseTest, StepsThatARepeatLacksTakeItsLastNoise) {
  RunWriter shorter(store_, "short");
  for (std::uint64_t step = 0; step < 4; ++step) {
    for (const char* name : {"ln", "fc", "head"}) shorter.Observe(0, step, Key(name), Wave(1e-2));
    shorter.Observe(0, step, Key("fc.weight", Kind::kWeight), Wave(1e-2));
    shorter.Scalar(0, step, "loss", 2.02);
  }
  shorter.Commit();
  EXPECT_EQ(Ask({.run_a = "base", .run_b = "fault", .noise = {"short"}}).verdict,
            Verdict::kWithinTolerance);
}

TEST(NoiseProfile, ComesBackAsItWas) {
  NoiseProfile profile;
  profile.runs = {"a", "b"};
  profile.saved_unix_nanos = 5;
  profile.steps = 3;
  profile.last_step = 900;
  profile.Note(Key("x", Kind::kWeight, "0", 2, 1, Mode::kEval), 0, 1e-6);
  profile.Note(Key("x", Kind::kWeight, "0", 2, 1, Mode::kEval), 900, 0.5);
  profile.Note(Key("y"), 3, 0);
  profile.NoteLoss("loss", 1, 7, 1e-3);
  profile.Finish();
  const auto back = NoiseProfile::Decode(profile.Encode());
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->runs, profile.runs);
  EXPECT_EQ(back->last_step, 900u);
  EXPECT_EQ(back->activations, profile.activations);
  EXPECT_EQ(back->losses, profile.losses);
  const auto& ages = back->activations.at(Key("x", Kind::kWeight, "0", 2, 1, Mode::kEval));
  EXPECT_GE(ages[0], 1e-6f);
  EXPECT_EQ(ages[0], ages[NoiseProfile::AgeOf(511)]);
  EXPECT_EQ(ages[NoiseProfile::AgeOf(900)], ages[64]);
}

TEST(NoiseProfile, DamagedBytesAreRefused) {
  NoiseProfile profile;
  profile.runs = {"a"};
  profile.Note(Key("x"), 3, 0.1);
  profile.Finish();
  const std::string bytes = profile.Encode();
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(NoiseProfile::Decode(bytes.substr(0, size)).ok()) << size;
  EXPECT_EQ(NoiseProfile::Decode(bytes + "x").status().code(), Code::kDataLoss);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::string changed = bytes;
    changed[i] = static_cast<char>(changed[i] ^ 0xff);
    (void)NoiseProfile::Decode(changed);  // whatever it says, it ends
  }
}

}  // namespace
}  // namespace statcollect::query
