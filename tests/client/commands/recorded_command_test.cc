// What a run keeps of the command that made it.
#include "client/commands/recorded_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace statcollect::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TEST(RecordedCommand, IsTheCommandWithItsVariablesAndFolder) {
  const Training training{.run = "base",
                          .command = {"python", "-c", "a = 'it''s'\nb = \"\xc3\xa4\"", ""},
                          .folder = "/usr",
                          .environment = {{"EPS", "0.1"}, {"STATAGENT_ZOOM", "1@0"}, {"X", "a b"}}};
  const auto again = RecordedTraining("base", CommandSettings(training));
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->run, "base");
  EXPECT_EQ(again->folder, "/usr");
  std::vector<std::string> words = {"env", "EPS=0.1", "X=a b"};
  words.insert(words.end(), training.command.begin(), training.command.end());
  EXPECT_EQ(again->command, words) << "statcollect's own variables are of this recording";
}

TEST(RecordedCommand, IsNotKeptIfItIsNoTextOrTooLong) {
  EXPECT_TRUE(CommandSettings({.command = {"python", "\xff"}, .folder = "/usr"}).empty());
  EXPECT_TRUE(
      CommandSettings({.command = {"python", std::string(9000, 'x')}, .folder = "/usr"}).empty());
}

std::string WhyNot(RunConfig config) {
  const auto again = RecordedTraining("base", config);
  EXPECT_EQ(again.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(again.status().message(), HasSubstr("leave --train out"));
  return again.status().message();
}

TEST(RecordedCommand, SaysWhyItCannotBeStartedAgain) {
  const RunConfig known = CommandSettings({.command = {"python", "train.py"}, .folder = "/usr"});
  const auto with = [&](const std::string& key, const std::string& value) {
    RunConfig config = known;
    config[key] = value;
    return WhyNot(config);
  };
  EXPECT_THAT(WhyNot({}), HasSubstr("its command is not known"));
  EXPECT_THAT(with("recording.folder", "/no/such"), HasSubstr("/no/such, is not there any more"));
  EXPECT_THAT(with("recording.perturb", "1"), HasSubstr("it is a twin"));
  EXPECT_THAT(with("recording.command", R"x(["t.py","--key","(redacted)"])x"),
              HasSubstr("has a secret"));
  for (const char* const bad : {"", "[]", "[1]", R"(["a",{}])", R"(["a)", "{}", "\"a\""})
    EXPECT_THAT(with("recording.command", bad), HasSubstr("cannot be read")) << bad;
}

TEST(RecordedCommand, VariablesThatDifferBetweenTheRunsAreRestored) {
  Training a{.command = {"a"}}, b{.command = {"b"}};
  const RunConfig of_a = {{"env.OMP_NUM_THREADS", "1"}, {"env.SAME", "x"}, {"lr", "1"}};
  const RunConfig of_b = {{"env.OMP_NUM_THREADS", "2"}, {"env.SAME", "x"}, {"env.TF32", "0"}};
  ASSERT_TRUE(RestoreVariables(of_a, of_b, a, b).ok());
  EXPECT_THAT(a.environment, ElementsAre(Pair("OMP_NUM_THREADS", "1")));
  EXPECT_THAT(a.command, ElementsAre("env", "-u", "TF32", "a"));
  EXPECT_THAT(b.environment, ElementsAre(Pair("OMP_NUM_THREADS", "2"), Pair("TF32", "0")));
  EXPECT_THAT(b.command, ElementsAre("b"));
  const Status cut = RestoreVariables({{"env.A", std::string(512, 'x')}}, {}, a, b);
  EXPECT_THAT(cut.message(), HasSubstr("of its variable A only a part is stored"));
}

}  // namespace
}  // namespace statcollect::client
