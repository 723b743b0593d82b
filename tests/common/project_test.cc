#include "common/project.h"

#include <string>

#include <gtest/gtest.h>

namespace statcollect {
namespace {

TEST(Project, NamesAreThoseOfRunsAndShorter) {
  for (const char* name : {"default", "vision", "a", "0", "team-1.x_y"})
    EXPECT_TRUE(ValidateProjectName(name).ok());
  EXPECT_TRUE(ValidateProjectName(std::string(64, 'p')).ok());
  for (const std::string& name :
       {std::string(), std::string(65, 'p'), std::string("a/b"), std::string("-a"),
        std::string(".."), std::string("a b"), std::string("a\0b", 3)})
    EXPECT_FALSE(ValidateProjectName(name).ok()) << name;
}

TEST(Project, ARunOfTheDefaultProjectHasItsPlainName) {
  EXPECT_EQ(QualifiedRun("default", "base"), "base");
  EXPECT_EQ(QualifiedRun("", "base"), "base");
  EXPECT_EQ(QualifiedRun("vision", "base"), "vision/base");
  for (const char* project : {"default", "vision"}) {
    const std::string qualified = QualifiedRun(project, "base");
    EXPECT_EQ(SplitRun(qualified).project, project);
    EXPECT_EQ(SplitRun(qualified).run, "base");
  }
}

}  // namespace
}  // namespace statcollect
