#include "server/http/foreign.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace statcollect {
namespace {

using ::testing::HasSubstr;
using Reason = ForeignCheck::Reason;

HttpRequest From(const std::string& host, const std::string& path = "/api/v1/runs") {
  HttpRequest head{.method = "GET", .path = path};
  head.host = {host};
  return head;
}

// The status of the answer; 200: nothing speaks against the request.
int StatusOf(ForeignCheck& check, const HttpRequest& head) {
  const auto refusal = check.Check(head);
  return refusal ? refusal->status : 200;
}

ForeignCheck Plain() { return ForeignCheck({.names = {"gpu7"}}); }

TEST(Authority, TakesHostsAsBrowsersWriteThem) {
  EXPECT_EQ(ParseAuthority("LocalHost:7434"), (Authority{"localhost", 7434, false}));
  EXPECT_EQ(ParseAuthority("gpu7.example.org."), (Authority{"gpu7.example.org", 0, false}));
  EXPECT_EQ(ParseAuthority("10.1.2.3"), (Authority{"10.1.2.3", 0, true}));
  EXPECT_EQ(ParseAuthority("[::1]:80"), (Authority{"::1", 80, true}));
  for (const char* wrong : {"", ":80", "a b", "a/b", "user@a", "a:", "a:0", "a:70000", "a:8x",
                            "::1", "[::1", "[a]", "[1.2.3.4]", "a,b", "a\r\n", "\xc3\xa4"})
    EXPECT_FALSE(ParseAuthority(wrong)) << wrong;
  EXPECT_FALSE(ParseAuthority(std::string(300, 'a')));
}

TEST(AllowedHost, IsANameAlone) {
  EXPECT_EQ(ParseAllowedHost("GPU7.example.org").value(), "gpu7.example.org");
  EXPECT_EQ(ParseAllowedHost("fe80::1").value(), "fe80::1");
  for (const char* wrong : {"", "http://gpu7", "gpu7:80", "*.example.org", "gpu7/page"})
    EXPECT_THAT(ParseAllowedHost(wrong).status().message(), HasSubstr("--http-allowed-host: found"))
        << wrong;
}

TEST(Foreign, NamesOfOthersAreRefusedAndAddressesAreNot) {
  ForeignCheck check = Plain();
  for (const char* own : {"localhost", "localhost:7434", "LOCALHOST.:80", "127.0.0.1:7434",
                          "[::1]:7434", "10.2.3.4:7434", "gpu7", "GPU7:9"})
    EXPECT_EQ(StatusOf(check, From(own)), 200) << own;
  for (const char* other :
       {"evil.example", "evil.example:7434", "gpu7.evil.example", "localhost.evil.example",
        "127.0.0.1.evil.example", "2130706433", "0x7f.1", "sub.localhost"})
    EXPECT_EQ(StatusOf(check, From(other)), 421) << other;
  EXPECT_EQ(StatusOf(check, From("http://localhost")), 400);
  HttpRequest twice = From("localhost");
  twice.host.emplace_back("evil.example");
  EXPECT_EQ(StatusOf(check, twice), 400);
  EXPECT_EQ(StatusOf(check, {.method = "GET", .path = "/"}), 200) << "HTTP/1.0";
  EXPECT_EQ(check.refused(Reason::kHost), 10U);
  EXPECT_THAT(check.Check(From("evil.example"))->message,
              HasSubstr("--http-allowed-host evil.example"));
}

TEST(Foreign, ProbesMayUseAnyNameButNoOtherPageMaySendThem) {
  ForeignCheck check = Plain();
  EXPECT_EQ(StatusOf(check, From("statcollect.monitoring.svc", "/healthz")), 200);
  EXPECT_EQ(StatusOf(check, From("statcollect.monitoring.svc", "/readyz")), 200);
  EXPECT_EQ(StatusOf(check, From("statcollect.monitoring.svc", "/metrics")), 421);
  HttpRequest probe = From("localhost", "/healthz");
  probe.origin = "https://evil.example";
  EXPECT_EQ(StatusOf(check, probe), 403);
}

TEST(Foreign, NamesInTheCertificateAreOwn) {
  ForeignCheck check({.names = {},
                      .certified = [](const std::string& name) { return name == "collector.lab"; },
                      .https = true});
  EXPECT_EQ(StatusOf(check, From("collector.lab:7434")), 200);
  EXPECT_EQ(StatusOf(check, From("other.lab:7434")), 421);
}

TEST(Foreign, OriginsOfOthersAreRefused) {
  ForeignCheck check = Plain();
  const auto status = [&](const std::string& origin, const std::string& host = "localhost:7434") {
    HttpRequest head = From(host);
    head.origin = origin;
    return StatusOf(check, head);
  };
  EXPECT_EQ(status("http://localhost:7434"), 200);
  EXPECT_EQ(status("https://localhost:7434"), 200) << "a proxy that ends TLS";
  EXPECT_EQ(status("http://LOCALHOST:7434"), 200);
  EXPECT_EQ(status("http://[::1]:7434", "[::1]:7434"), 200);
  for (const char* other :
       {"null", "http://evil.example", "http://localhost", "http://localhost:8888",
        "http://127.0.0.1:7434", "file://", "ftp://localhost:7434", "localhost:7434",
        "http://localhost:7434, http://evil.example", "http://localhost:7434/"})
    EXPECT_EQ(status(other), 403) << other;
  EXPECT_EQ(check.refused(Reason::kOrigin), 10U);
  HttpRequest without_host{
      .method = "POST", .path = "/api/v1/noise_rm", .origin = "http://localhost"};
  EXPECT_EQ(StatusOf(check, without_host), 403);
  ForeignCheck https({.https = true});
  HttpRequest head = From("localhost:7434");
  head.origin = "http://localhost:7434";
  EXPECT_EQ(StatusOf(https, head), 403);
}

TEST(Foreign, OtherSitesMayLinkToThePageOnly) {
  ForeignCheck check = Plain();
  const auto status = [&](const std::string& site, const std::string& mode, const std::string& dest,
                          const std::string& path, const std::string& method = "GET") {
    HttpRequest head = From("localhost:7434", path);
    head.method = method;
    head.fetch_site = site;
    head.fetch_mode = mode;
    head.fetch_dest = dest;
    return StatusOf(check, head);
  };
  EXPECT_EQ(status("same-origin", "cors", "empty", "/api/v1/runs"), 200);
  EXPECT_EQ(status("none", "navigate", "document", "/api/v1/runs"), 200) << "typed by somebody";
  for (const char* site : {"cross-site", "same-site", "nonsense"}) {
    EXPECT_EQ(status(site, "navigate", "document", "/"), 200) << site;
    EXPECT_EQ(status(site, "navigate", "document", "/api/v1/diff"), 403) << site;
    EXPECT_EQ(status(site, "navigate", "document", "/", "POST"), 403) << site;
    EXPECT_EQ(status(site, "navigate", "iframe", "/"), 403) << site;
    EXPECT_EQ(status(site, "no-cors", "image", "/"), 403) << site;
    EXPECT_EQ(status(site, "no-cors", "script", "/assets/app.js"), 403) << site;
    EXPECT_EQ(status(site, "no-cors", "image", "/api/v1/diff"), 403) << site;
  }
}

}  // namespace
}  // namespace statcollect
