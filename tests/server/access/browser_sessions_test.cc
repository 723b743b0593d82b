#include "server/access/browser_sessions.h"

#include <string>

#include <gtest/gtest.h>

#include "server/access/access.h"
#include "tests/server/access/token_folder.h"

namespace statcollect::access {
namespace {

using testing::TokenFolder;
using namespace std::chrono_literals;

const BrowserSessions::Time kNow{};
const TokenReference kToken{.id = "0123456789ab", .digest = {1}};

SessionCredential Of(const SessionSecrets& secrets) {
  return {.cookie = secrets.cookie, .page = secrets.page};
}

TEST(BrowserSessions, ALinkIsUsedOnceAndSoon) {
  BrowserSessions sessions;
  const std::string link = sessions.MakeLink(kToken, kNow).value();
  EXPECT_TRUE(IsSessionSecret(link));
  EXPECT_EQ(sessions.TakeLink(link, kNow + 299s)->id, kToken.id);
  EXPECT_FALSE(sessions.TakeLink(link, kNow + 299s)) << "again";
  const std::string late = sessions.MakeLink(kToken, kNow).value();
  EXPECT_FALSE(sessions.TakeLink(late, kNow + 300s));
  EXPECT_FALSE(sessions.TakeLink(std::string(64, '0'), kNow));
  EXPECT_FALSE(sessions.TakeLink("", kNow));
}

TEST(BrowserSessions, ASessionNeedsBothSecretsUntilItEnds) {
  BrowserSessions sessions;
  const SessionSecrets secrets = sessions.Open(kToken, kNow).value(),
                       other = sessions.Open(kToken, kNow).value();
  EXPECT_EQ(sessions.Find(Of(secrets), kNow + 11h)->id, kToken.id);
  EXPECT_FALSE(sessions.Find(Of(secrets), kNow + 12h));
  EXPECT_FALSE(sessions.Find({.cookie = secrets.cookie, .page = ""}, kNow));
  EXPECT_FALSE(sessions.Find({.cookie = "", .page = secrets.page}, kNow));
  EXPECT_FALSE(sessions.Find({.cookie = secrets.cookie, .page = other.page}, kNow));
  sessions.Close({.cookie = secrets.cookie, .page = other.page}, kNow);
  EXPECT_TRUE(sessions.Find(Of(secrets), kNow)) << "the cookie alone does not log out";
  sessions.Close(Of(secrets), kNow);
  EXPECT_FALSE(sessions.Find(Of(secrets), kNow));
  EXPECT_TRUE(sessions.Find(Of(other), kNow));
}

TEST(BrowserSessions, OneTokenCannotPushOutTheSessionsOfOthers) {
  BrowserSessions sessions;
  const TokenReference greedy{.id = "ffffffffffff", .digest = {2}};
  const SessionSecrets kept = sessions.Open(kToken, kNow).value();
  const SessionSecrets first = sessions.Open(greedy, kNow).value();
  for (std::size_t i = 0; i < BrowserSessions::kSessionsMax; ++i)
    (void)sessions.Open(greedy, kNow + 1s);
  EXPECT_FALSE(sessions.Find(Of(first), kNow + 2s));
  EXPECT_TRUE(sessions.Find(Of(kept), kNow + 2s));
}

class LogInTest : public ::testing::Test {
 protected:
  void SetUp() override {
    token_ = folder_.Create("read", folder_.Now() + 3600);
    access_ = *folder_.Open();
    const std::string field = "Bearer " + token_;
    link_ = access_
                ->MakeLink({.authorization = {field},
                            .method = "/statcollect.v1.Login/CreateLink",
                            .address = "ipv4:1.2.3.4:5"})
                .value();
  }
  Code Ask(const SessionSecrets& secrets, const char* method = "/statcollect.v1.Query/ListRuns") {
    return access_
        ->Check({.authorization = {},
                 .method = method,
                 .address = "ipv4:1.2.3.4:5",
                 .session = Of(secrets)})
        .status()
        .code();
  }
  TokenFolder folder_;
  std::string token_, link_;
  std::unique_ptr<AccessControl> access_;
};

TEST_F(LogInTest, ASessionAllowsWhatItsTokenAllowsUntilThatIsRevoked) {
  const SessionSecrets session = access_->LogIn(link_, "ipv4:1.2.3.4:5").value();
  EXPECT_EQ(Ask(session), Code::kOk);
  EXPECT_EQ(Ask(session, "/statcollect.v1.Admin/DeleteRun"), Code::kPermissionDenied);
  EXPECT_EQ(access_->LogIn(link_, "ipv4:1.2.3.4:5").status().code(), Code::kUnauthenticated);
  folder_.Revoke(token_);
  EXPECT_EQ(Ask(session), Code::kUnauthenticated);
  const auto lines = folder_.AuditLines();
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_NE(lines[0].find("\"principal\":\"token " + token_.substr(4, 12) + " (browser)\""),
            std::string::npos)
      << lines[0];
  EXPECT_NE(lines[0].find("\"method\":\"/session/login\",\"object\":\"\",\"outcome\":\"ok\""),
            std::string::npos)
      << lines[0];
}

TEST_F(LogInTest, ASessionEndsWithItsToken) {
  const SessionSecrets session = access_->LogIn(link_, "ipv4:1.2.3.4:5").value();
  folder_.clock.Advance(3599s);
  EXPECT_EQ(Ask(session), Code::kOk);
  folder_.clock.Advance(1s);
  EXPECT_EQ(Ask(session), Code::kUnauthenticated);
}

TEST_F(LogInTest, ALinkOfARevokedTokenLogsNobodyIn) {
  folder_.Revoke(token_);
  const auto session = access_->LogIn(link_, "ipv4:1.2.3.4:5");
  EXPECT_EQ(session.status().code(), Code::kUnauthenticated);
  EXPECT_NE(session.status().message().find("was revoked"), std::string::npos);
}

TEST_F(LogInTest, LoggingOutEndsTheSessionAndIsAudited) {
  const SessionSecrets session = access_->LogIn(link_, "ipv4:1.2.3.4:5").value();
  access_->LogOut(Of(session), "ipv4:1.2.3.4:5");
  EXPECT_EQ(Ask(session), Code::kUnauthenticated);
  EXPECT_NE(folder_.AuditLines()[1].find("/session/logout"), std::string::npos);
  const std::size_t lines = folder_.AuditLines().size();
  access_->LogOut(Of(session), "ipv4:1.2.3.4:5");
  EXPECT_EQ(folder_.AuditLines().size(), lines) << "there is nothing left to end";
}

TEST(LogIn, WithoutTokensThereIsNoLink) {
  TokenFolder folder;
  const auto access = *folder.Open();
  EXPECT_EQ(
      access
          ->MakeLink(
              {.authorization = {}, .method = "/statcollect.v1.Login/CreateLink", .address = ""})
          .value(),
      "");
}

}  // namespace
}  // namespace statcollect::access
