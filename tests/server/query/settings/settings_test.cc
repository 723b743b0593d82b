// Which recorded numbers differ, and what a configuration was in an earlier step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "server/query/settings/config_at.h"
#include "server/query/settings/other_settings.h"

namespace statcollect::query {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// --- of modules

TEST(OtherSettings, OfAModuleAreNamed) {
  const OtherSettings settings({{"module.blocks.*.ln.eps", "1e-05"}, {"module.head.scale", "0.5"}},
                               {{"module.blocks.*.ln.eps", "2e-05"}, {"module.head.scale", "0.5"}});
  EXPECT_TRUE(settings.any_of_modules());
  EXPECT_THAT(settings.OfModule("blocks.0.ln"), ElementsAre("eps"));
  EXPECT_THAT(settings.OfModule("blocks.11.ln"), ElementsAre("eps"));
  EXPECT_THAT(settings.OfModule("blocks.0"), IsEmpty());
  EXPECT_THAT(settings.OfModule("blocks.0.ln.0"), IsEmpty());
  EXPECT_THAT(settings.OfModule("blocks.last.ln"), IsEmpty()) << "* is a number";
  EXPECT_THAT(settings.OfModule("head"), IsEmpty());
  EXPECT_THAT(settings.OfModule(""), IsEmpty());
}

TEST(OtherSettings, OfExceptionsAreThoseOfTheListedModules) {
  const OtherSettings one({{"module.blocks.*.ln.eps", "1e-05"}},
                          {{"module.blocks.*.ln.eps", "1e-05 x 3; 0.001 (blocks.1.ln)"}});
  EXPECT_THAT(one.OfModule("blocks.1.ln"), ElementsAre("eps"));
  EXPECT_THAT(one.OfModule("blocks.0.ln"), IsEmpty());
  const OtherSettings others({{"module.blocks.*.ln.eps", "1e-05 x 3; 0.001 (blocks.1.ln)"}},
                             {{"module.blocks.*.ln.eps", "2e-05 x 3; 0.001 (blocks.1.ln)"}});
  EXPECT_THAT(others.OfModule("blocks.1.ln"), IsEmpty());
  EXPECT_THAT(others.OfModule("blocks.0.ln"), ElementsAre("eps"));
}

TEST(OtherSettings, OfANamedModelListPlacesWithoutItsName) {
  const OtherSettings settings({{"module.dis.blocks.*.ln.eps", "1e-05"}},
                               {{"module.dis.blocks.*.ln.eps", "1e-05 x 3; 0.001 (blocks.1.ln)"}});
  EXPECT_THAT(settings.OfModule("dis.blocks.1.ln"), ElementsAre("eps"));
  EXPECT_THAT(settings.OfModule("dis.blocks.0.ln"), IsEmpty());
  EXPECT_THAT(settings.OfModule("blocks.1.ln"), IsEmpty());
}

TEST(OtherSettings, ThatAreNotShownSayNothing) {
  const OtherSettings settings(
      {{"module.blocks.*.drop.p", "0.1"}},
      {{"module.blocks.*.drop.p", "0.1 x 4; 0.2 x 4; 7 more values, hash 1f"}});
  EXPECT_THAT(settings.OfModule("blocks.0.drop"), IsEmpty());
}

TEST(OtherSettings, ArePlainNumbersAndTuplesOfThem) {
  const OtherSettings settings({{"module.conv.padding", "(1, 1)"},
                                {"module.conv.padding_mode", "zeros"},
                                {"module.conv.bias", "true"},
                                {"module.conv.scale", "-1.5E-3"},
                                {"module.conv.class", "Conv2d"}},
                               {{"module.conv.padding", "(0, 0)"},
                                {"module.conv.padding_mode", "reflect"},
                                {"module.conv.bias", "false"},
                                {"module.conv.scale", "+2"},
                                {"module.conv.class", "Conv3d"}});
  EXPECT_THAT(settings.OfModule("conv"), ElementsAre("padding", "scale"));
}

TEST(OtherSettings, AReplacedForwardIsLeftOut) {
  const OtherSettings settings({{"module.fc.forward", "function f1"}},
                               {{"module.fc.forward", "function f2"}});
  EXPECT_THAT(settings.OfModule("fc"), IsEmpty());
}

TEST(OtherSettings, OneNumberWrittenInTwoWaysIsEqual) {
  const OtherSettings settings({{"module.ln.eps", "1e-05"}}, {{"module.ln.eps", "0.00001"}});
  EXPECT_FALSE(settings.any_of_modules());
}

TEST(OtherSettings, ThatOnlyOneRunHasAreLeftOut) {
  const OtherSettings settings(
      {{"module.ln.eps", "1e-05"}, {"optimizer.group0.betas", "(0.9, 0.99)"}},
      {{"module.ln.scale", "2"}, {"optimizer.group0.eps", "1e-08"}});
  EXPECT_FALSE(settings.any_of_modules());
  EXPECT_THAT(settings.OfModule("ln"), IsEmpty());
  EXPECT_THAT(settings.of_optimizers(), IsEmpty());
}

TEST(OtherSettings, OfTheModelItselfStandUnderItsClass) {
  const OtherSettings settings({{"module.Gpt.scale", "0.5"}}, {{"module.Gpt.scale", "0.25"}});
  EXPECT_THAT(settings.OfModule("Gpt"), ElementsAre("scale"));
  EXPECT_THAT(settings.OfModule("blocks.0"), IsEmpty());
}

TEST(OtherSettings, OfASecondModelBeginWithItsClassOrName) {
  const OtherSettings of_class({{"module.Net.layers.*.eps", "1"}},
                               {{"module.Net.layers.*.eps", "2"}});
  EXPECT_THAT(of_class.OfModule("layers.3"), ElementsAre("eps"));
  const OtherSettings of_name({{"module.dis.layers.*.eps", "1"}},
                              {{"module.dis.layers.*.eps", "2"}});
  EXPECT_THAT(of_name.OfModule("dis.layers.3"), ElementsAre("eps"));
  EXPECT_THAT(of_name.OfModule("gen.layers.3"), IsEmpty());
  EXPECT_THAT(of_name.OfModule("layers.3"), IsEmpty());
}

TEST(OtherSettings, OfPatternsThatNameSomeNumbersAreThoseOfTheModulesMeant) {
  const OtherSettings settings({{"module.3.p", "0.1"}, {"module.stages.*.blocks.1.p", "0.1"}},
                               {{"module.3.p", "0.2"}, {"module.stages.*.blocks.1.p", "0.2"}});
  EXPECT_THAT(settings.OfModule("3"), ElementsAre("p"));
  EXPECT_THAT(settings.OfModule("4"), IsEmpty());
  EXPECT_THAT(settings.OfModule("stages.7.blocks.1"), ElementsAre("p"));
  EXPECT_THAT(settings.OfModule("stages.7.blocks.2"), IsEmpty());
}

// --- of optimizers

std::vector<std::string> Optimizers(const Config& a, const Config& b) {
  std::vector<std::string> found;
  const OtherSettings settings(a, b);
  for (const auto& other : settings.of_optimizers())
    found.push_back(other.group.model + "/" + other.group.optimizer + "/" + other.group.group +
                    "/" + other.setting);
  return found;
}

TEST(OtherSettings, OfOptimizersHaveTheirGroup) {
  EXPECT_THAT(
      Optimizers({{"optimizer.group0.betas", "(0.9, 0.999)"}, {"optimizer.group1.eps", "1e-08"}},
                 {{"optimizer.group0.betas", "(0.9, 0.99)"}, {"optimizer.group1.eps", "1e-07"}}),
      ElementsAre("//0/betas", "//1/eps"));
  EXPECT_THAT(Optimizers({{"optimizer.dis.1.group0.momentum", "0.9"}},
                         {{"optimizer.dis.1.group0.momentum", "0.8"}}),
              ElementsAre("dis/1/0/momentum"));
}

TEST(OtherSettings, OfOptimizersThatDoNotChangeWhatIsComputedAreLeftOut) {
  Config a, b;
  for (const char* name : {"foreach", "fused", "capturable", "differentiable", "initial_lr",
                           "tensors", "elements", "lr", "weight_decay"}) {
    a["optimizer.group0." + std::string(name)] = "0";
    b["optimizer.group0." + std::string(name)] = "1";
  }
  EXPECT_THAT(Optimizers(a, b), IsEmpty());
  a["optimizer.group0.eps"] = "0";
  b["optimizer.group0.eps"] = "1";
  EXPECT_THAT(Optimizers(a, b), ElementsAre("//0/eps"));
}

TEST(OtherSettings, OfOptimizersAreNumbersAndSwitchesOfGroups) {
  EXPECT_THAT(Optimizers({{"optimizer.class", "Adam"},
                          {"optimizer.groups", "1"},
                          {"optimizer.parameters", "10"},
                          {"optimizer.group0.fused", "None"},
                          {"optimizer.group0.normalise", "false"},
                          {"optimizer.group0.amsgrad", "false"}},
                         {{"optimizer.class", "SGD"},
                          {"optimizer.groups", "2"},
                          {"optimizer.parameters", "20"},
                          {"optimizer.group0.fused", "true"},
                          {"optimizer.group0.normalise", "true"},
                          {"optimizer.group0.amsgrad", "true"}}),
              ElementsAre("//0/amsgrad"));
}

TEST(OtherSettings, OfTheUserSayNothing) {
  const OtherSettings settings({{"eps", "1"}, {"modules.ln.eps", "1"}},
                               {{"eps", "2"}, {"modules.ln.eps", "2"}});
  EXPECT_FALSE(settings.any_of_modules());
  EXPECT_THAT(settings.of_optimizers(), IsEmpty());
}

// --- in an earlier step

EventRecord Change(std::uint64_t step, const std::string& from, const std::string& key = "k") {
  return {.kind = "setting_changed",
          .step = step,
          .unix_nanos = 0,
          .text = "",
          .fields = {{"key", key}, {"from", from}}};
}

std::string ValueIn(std::uint64_t step, const std::vector<EventRecord>& events,
                    std::uint64_t first_step = 0) {
  std::map<std::string, std::string> config = {{"k", "new"}};
  TakeBackLaterChanges(step, first_step, events, config);
  const auto found = config.find("k");
  return found == config.end() ? "none" : found->second;
}

TEST(ConfigAt, AChangeIsTakenBackBeforeTheLookAfterWhichItHappened) {
  // Found at step 8, when steps 0 to 7 had ended; the look before was at step 4.
  EXPECT_EQ(ValueIn(0, {Change(8, "old")}), "old");
  EXPECT_EQ(ValueIn(3, {Change(8, "old")}), "old");
  EXPECT_EQ(ValueIn(4, {Change(8, "old")}), "new") << "it may have changed right after the look";
  EXPECT_EQ(ValueIn(8, {Change(8, "old")}), "new");
  EXPECT_EQ(ValueIn(100, {Change(8, "old")}), "new");
}

TEST(ConfigAt, StepsCountFromTheFirstOfTheLaunch) {
  EXPECT_EQ(ValueIn(103, {Change(108, "old")}, 100), "old");
  EXPECT_EQ(ValueIn(104, {Change(108, "old")}, 100), "new");
  EXPECT_EQ(ValueIn(100, {Change(101, "old")}, 100), "new") << "in the first step";
  EXPECT_EQ(ValueIn(100, {Change(100, "old")}, 100), "new");
}

TEST(ConfigAt, LateChangesAreLookedForEvery1024Steps) {
  EXPECT_EQ(ValueIn(2047, {Change(3072, "old")}), "old");
  EXPECT_EQ(ValueIn(2048, {Change(3072, "old")}), "new");
}

TEST(ConfigAt, OfSeveralChangesTheFirstAfterTheStepTells) {
  const std::vector<EventRecord> events = {Change(1, "first"), Change(7, "second"),
                                           Change(31, "third")};
  EXPECT_EQ(ValueIn(2, events), "second");
  EXPECT_EQ(ValueIn(10, events), "third");
  EXPECT_EQ(ValueIn(20, events), "new");
}

TEST(ConfigAt, WhatWasNotSetIsTakenAway) { EXPECT_EQ(ValueIn(0, {Change(7, "not set")}), "none"); }

TEST(ConfigAt, OtherEventsAndKeysSayNothing) {
  EventRecord other = Change(7, "old");
  other.kind = "graph_transition";
  EventRecord incomplete = Change(7, "old");
  incomplete.fields.erase("from");
  EXPECT_EQ(ValueIn(0, {other, incomplete, Change(7, "old", "another key")}), "new");
}

}  // namespace
}  // namespace statcollect::query
