#include "server/page/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace statcollect {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class FakeExchange : public HttpExchange {
 public:
  void Send(HttpResponse response) override { answer = std::move(response); }
  void Begin(HttpResponse) override {}
  void Write(std::string, std::function<void(bool)>) override {}
  void End(bool) override {}
  void OnGone(std::function<void()>) override {}
  HttpResponse answer;
};

HttpResponse Ask(const HttpService& page, HttpRequest request) {
  auto exchange = std::make_shared<FakeExchange>();
  page(std::move(request), exchange);
  return exchange->answer;
}

HttpRequest Get(const std::string& path) { return {.method = "GET", .path = path}; }

TEST(PageTest, ServesTheBundleStrictly) {
  const HttpService page = MakePageService();
  const HttpResponse start = Ask(page, Get("/"));
  EXPECT_EQ(start.status, 200);
  EXPECT_EQ(start.content_type, "text/html; charset=utf-8");
  EXPECT_THAT(start.body, HasSubstr("/assets/app.js"));
  EXPECT_THAT(start.body, Not(HasSubstr("<style")));
  EXPECT_THAT(start.body, Not(HasSubstr("onclick")));
  const std::string policy = start.headers.at("Content-Security-Policy");
  EXPECT_THAT(policy, HasSubstr("default-src 'none'"));
  EXPECT_THAT(policy, HasSubstr("script-src 'self';"));
  EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
  EXPECT_EQ(Ask(page, Get("/assets/app.js")).content_type, "text/javascript; charset=utf-8");
}

TEST(PageTest, TheWholeBundleIsSmall) {
  std::size_t packed = 0;
  const HttpService page = MakePageService();
  for (const PageFile& file : PageFiles()) {
    HttpRequest request = Get(std::string(file.path));
    request.accept_encoding = "gzip";
    packed += Ask(page, request).body.size();
  }
  EXPECT_LE(packed, 200u << 10);
}

TEST(PageTest, AnswersWithoutTheBodyIfTheClientHasIt) {
  const HttpService page = MakePageService();
  const std::string etag = Ask(page, Get("/")).headers.at("ETag");
  for (const std::string& known : {etag, "W/" + etag, "\"other\", " + etag, std::string("*")}) {
    HttpRequest request = Get("/");
    request.if_none_match = known;
    const HttpResponse answer = Ask(page, request);
    EXPECT_EQ(answer.status, 304) << known;
    EXPECT_EQ(answer.body, "");
  }
  HttpRequest request = Get("/");
  request.if_none_match = "\"other\"";
  EXPECT_EQ(Ask(page, request).status, 200);
}

TEST(PageTest, PacksForClientsThatTakeIt) {
  const HttpService page = MakePageService();
  HttpRequest request = Get("/assets/app.js");
  request.accept_encoding = "gzip";
  const HttpResponse packed = Ask(page, request), plain = Ask(page, Get("/assets/app.js"));
  EXPECT_EQ(packed.headers.at("Content-Encoding"), "gzip");
  EXPECT_EQ(plain.headers.count("Content-Encoding"), 0u);
  EXPECT_LT(packed.body.size(), plain.body.size() / 2);
}

TEST(PageTest, RefusesWhatIsNotThere) {
  const HttpService page = MakePageService();
  EXPECT_EQ(Ask(page, Get("/assets/../index.html")).status, 404);
  EXPECT_EQ(Ask(page, Get("/assets/")).status, 404);
  HttpRequest post = Get("/");
  post.method = "POST";
  EXPECT_EQ(Ask(page, post).status, 405);
}

}  // namespace
}  // namespace statcollect
