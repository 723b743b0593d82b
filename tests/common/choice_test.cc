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

TEST(OptionAsPath, IsTheNextOptionAfterOneWithoutItsValue) {
  EXPECT_EQ(OptionAsPath("--help"),
            "found the option '--help'; expected a folder; write ./--help for one of that name");
  for (const char* const path : {"", "data", "./--help", "-"}) EXPECT_EQ(OptionAsPath(path), "");
}

}  // namespace
}  // namespace statcollect
