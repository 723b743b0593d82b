// Tables that tests write, in docs/reference-security.md and in walks.md: what is between two marks
// is what the test found. STATCOLLECT_WRITE_DOCS=1 writes it there instead of comparing.
#ifndef STATCOLLECT_TESTS_SERVER_ACCESS_SECURITY_PAGE_H_
#define STATCOLLECT_TESTS_SERVER_ACCESS_SECURITY_PAGE_H_

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

namespace statcollect::testing {

// `name` as in the mark "<!-- NAME: written by access_test -->"; the table ends at the next "<!--
// end ".
inline void ExpectInPage(const std::string& path, const std::string& name,
                         const std::string& table) {
  std::ifstream file(path);
  const std::string page((std::istreambuf_iterator<char>(file)), {});
  const std::string mark = "<!-- " + name + ": written by access_test -->\n";
  const std::size_t begin = page.find(mark);
  ASSERT_NE(begin, std::string::npos) << mark;
  const std::size_t from = begin + mark.size(), end = page.find("<!-- end ", from);
  ASSERT_NE(end, std::string::npos) << mark;
  if (std::getenv("STATCOLLECT_WRITE_DOCS") != nullptr)
    std::ofstream(path) << page.substr(0, from) + table + page.substr(end);
  else
    EXPECT_EQ(page.substr(from, end - from), table)
        << path << ": run access_test with STATCOLLECT_WRITE_DOCS=1";
}

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_SERVER_ACCESS_SECURITY_PAGE_H_
