#include "common/choice.h"

#include <gtest/gtest.h>

namespace statcollect {
namespace {

TEST(Choice, AWrongWordIsToldWhatIsNearAndWhatThereIs) {
  const std::vector<std::string> states = {"running", "finished", "interrupted"};
  EXPECT_EQ(NotOneOf("runing", states),
            "found 'runing' (did you mean 'running'?); expected running, finished or interrupted");
  EXPECT_EQ(NotOneOf("gone", states), "found 'gone'; expected running, finished or interrupted");
  EXPECT_EQ(NotOneOf("", {"csv"}), "found ''; expected csv");
  EXPECT_EQ(NotOneOf("\x1b[2J", {"csv"}), "found '\\x1b[2J'; expected csv");
}

}  // namespace
}  // namespace statcollect
