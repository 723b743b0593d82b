#include "client/commands/page_link.h"

#include <gtest/gtest.h>

namespace statcollect::client {
namespace {

TEST(PageOrigin, IsWhereTheCallerReachesThePage) {
  EXPECT_EQ(PageOrigin("127.0.0.1:7434", "127.0.0.1:7433"), "http://127.0.0.1:7434");
  EXPECT_EQ(PageOrigin("127.0.0.1:7434", "localhost:7433"), "http://127.0.0.1:7434");
  EXPECT_EQ(PageOrigin("10.1.2.3:7434", "10.1.2.3:7433"), "http://10.1.2.3:7434");
  EXPECT_EQ(PageOrigin("0.0.0.0:7434", "node7:7433"), "http://node7:7434");
  EXPECT_EQ(PageOrigin("[::]:7434", "[fe80::1]:7433"), "http://[fe80::1]:7434");
  EXPECT_EQ(PageOrigin("[::1]:7434", "[::1]:7433"), "http://[::1]:7434");
}

TEST(PageOrigin, IsEmptyWhereNoPageCanBeReached) {
  EXPECT_EQ(PageOrigin("", "127.0.0.1:7433"), "");            // --http off, or an older collector
  EXPECT_EQ(PageOrigin("127.0.0.1:7434", "node7:7433"), "");  // only node7 itself reaches it
  EXPECT_EQ(PageOrigin("127.0.0.1:0", "127.0.0.1:7433"), "");
  EXPECT_EQ(PageOrigin("nonsense", "127.0.0.1:7433"), "");
}

TEST(ComparePath, AsksTheSameQuestion) {
  v1::DiffRequest request;
  request.set_run_a("base");
  request.set_run_b("ort");
  EXPECT_EQ(ComparePath(request), "/?view=compare&a=base&b=ort");
  request.set_tolerance(0.001);
  request.add_ranks(0);
  request.add_ranks(3);
  request.set_steps("0-9,20,100-");
  request.add_kinds(v1::KIND_OUTPUT);
  request.add_kinds(v1::KIND_GRAD_OUTPUT);
  request.add_noise("base2");
  request.set_no_alignment(true);
  request.set_logical(true);
  EXPECT_EQ(ComparePath(request),
            "/?view=compare&a=base&b=ort&tolerance=0.001&ranks=0,3&steps=0-9,20,100-&kinds=output,"
            "grad_output"
            "&no_alignment=true&noise=base2&logical=true");
}

TEST(ComparePath, KeepsWhateverAMapHolds) {
  v1::DiffRequest request;
  request.set_run_a("a");
  request.set_run_b("b");
  request.set_map("h\\.(\\d+) -> b&c=#?\n\xc3\xa9 -> %");
  EXPECT_EQ(ComparePath(request),
            "/?view=compare&a=a&b=b&map=h%5C.%28%5Cd%2B%29%20-%3E%20b%26c%3D%23%3F%0A%C3%A9%20-%3E%"
            "20%25");
  request.set_map(std::string(3000, '>'));
  EXPECT_EQ(ComparePath(request), "");  // no browser and no terminal takes that
}

}  // namespace
}  // namespace statcollect::client
