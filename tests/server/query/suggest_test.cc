#include "server/query/suggest.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/edit_distance.h"

namespace statcollect::query {
namespace {

TEST(Suggest, EditDistanceCountsInsertionsDeletionsAndReplacements) {
  EXPECT_EQ(EditDistance("", ""), 0u);
  EXPECT_EQ(EditDistance("abc", ""), 3u);
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
  EXPECT_EQ(EditDistance("base", "bsae"), 2u);
}

TEST(Suggest, ClosestComesFirstAndTheRestIsCounted) {
  EXPECT_EQ(Suggest("bse", {"zzz", "ort", "base"}, 2), "base, ort, and 1 more");
  EXPECT_EQ(Suggest("ln_2", {"a", "h.0.ln_2"}, 1), "h.0.ln_2, and 1 more");
  EXPECT_EQ(Suggest("x", {}), "none");
}

TEST(Suggest, ManyLongNamesAreComparedOnlyForAWhile) {
  std::vector<std::string> names = {std::string(1024, 'a') + "b"};
  for (int i = 0; i < 20'000; ++i) names.push_back(std::to_string(i) + std::string(1000, 'c'));
  EXPECT_EQ(Suggest(std::string(1024, 'a'), names, 1),
            std::string(200, 'a') + "..., and 20000 more");
}

TEST(Suggest, HostileNamesArePrintable) { EXPECT_EQ(Suggest("x", {"a\x1b[31m"}), "a\\x1b[31m"); }

}  // namespace
}  // namespace statcollect::query
