#include "server/daemon/last_resort.h"

#include <unistd.h>

#include <chrono>
#include <thread>

#include <gtest/gtest.h>

namespace statcollect {
namespace {

TEST(LastResortDeathTest, AProcessThatDoesNotEndByItselfIsEndedAndSaysWhatItWaitedFor) {
  const auto never_end = [] {
    NowWaitingFor("queries");
    EndWithin(std::chrono::milliseconds(1'100));
    std::thread busy([] {
      volatile bool on = true;
      while (on) {
      }
    });
    busy.join();
  };
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EXIT(never_end(), ::testing::ExitedWithCode(kExitUnfinished),
              "waiting for queries; ended without it");
  EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(1'000));
}

TEST(LastResortDeathTest, AProcessThatEndsInTimeIsLeftAlone) {
  const auto end_in_time = [] {
    EndWithin(std::chrono::minutes(1));
    _exit(0);
  };
  EXPECT_EXIT(end_in_time(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace statcollect
