#include "server/access/access.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/access/token_folder.h"

namespace statcollect::access {
namespace {

using ::statcollect::testing::TokenFolder;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

constexpr char kRuns[] = "/statcollect.v1.Query/ListRuns";

class AccessTest : public ::testing::Test {
 protected:
  Result<Principal> Check(const std::string& field, const std::string& method = kRuns) {
    folder_.clock.Advance(1s);  // so that it looks at the file
    Caller caller{.authorization = {}, .method = method, .address = "ipv4:1.2.3.4:5"};
    if (!field.empty()) caller.authorization.push_back(field);
    return access_->Check(caller);
  }
  Result<Principal> CheckToken(const std::string& token, const std::string& method = kRuns) {
    return Check("Bearer " + token, method);
  }
  void Open(bool required = false) {
    auto opened = folder_.Open(required);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    access_ = *std::move(opened);
  }
  TokenFolder folder_;
  std::unique_ptr<AccessControl> access_;
};

TEST_F(AccessTest, WithoutAFileEverythingIsAllowed) {
  Open();
  EXPECT_FALSE(access_->on());
  EXPECT_TRUE(Check("").ok());
  EXPECT_TRUE(Check("", "/unheard.of").ok());
  EXPECT_EQ(Check("Bearer nonsense")->Name(), "nobody");
}

TEST_F(AccessTest, AFileThatMustExistAndDoesNotStopsTheStart) {
  EXPECT_EQ(folder_.Open(true).status().code(), Code::kNotFound);
  std::ofstream(folder_.path) << "nonsense\n";
  ASSERT_EQ(chmod(folder_.path.c_str(), 0600), 0);
  EXPECT_EQ(folder_.Open(false).status().code(), Code::kInvalidArgument);
  ASSERT_EQ(chmod(folder_.path.c_str(), 0644), 0);
  EXPECT_EQ(folder_.Open(false).status().code(), Code::kPermissionDenied);
}

TEST_F(AccessTest, EachKindOfBadTokenHasItsOwnMessage) {
  const std::string read = folder_.Create("read");
  const std::string expired = folder_.Create("read", folder_.Now() + 4);
  const std::string revoked = folder_.Create("read");
  folder_.Revoke(revoked);
  Open();
  EXPECT_TRUE(CheckToken(read).ok());
  EXPECT_TRUE(CheckToken(expired).ok()) << "not yet";
  folder_.clock.Advance(5s);
  const auto message = [&](const std::string& field) {
    const auto checked = Check(field);
    EXPECT_EQ(checked.status().code(), Code::kUnauthenticated) << field;
    EXPECT_THAT(checked.status().message(), Not(HasSubstr(read.substr(17))))
        << "it shows the secret";
    return checked.ok() ? std::string() : checked.status().message();
  };
  EXPECT_THAT(message(""), HasSubstr("no token was sent"));
  EXPECT_THAT(message("Bearer stc_x"), HasSubstr("not a token"));
  EXPECT_THAT(message("Basic " + read), HasSubstr("not a token"));
  EXPECT_THAT(message("Bearer " + read.substr(0, 50)), HasSubstr("not a token"));
  EXPECT_THAT(message("Bearer stc_0123456789ab_" + std::string(64, '0')),
              HasSubstr("does not know"));
  std::string other_secret = read;
  other_secret.back() = other_secret.back() == '0' ? '1' : '0';
  EXPECT_THAT(message("Bearer " + other_secret), HasSubstr("does not know"));
  EXPECT_THAT(message("Bearer " + expired), HasSubstr("has expired"));
  EXPECT_THAT(message("Bearer " + revoked), HasSubstr("was revoked"));
  const auto lacks = CheckToken(read, "/statcollect.v1.Admin/DeleteRun");
  EXPECT_EQ(lacks.status().code(), Code::kPermissionDenied);
  EXPECT_THAT(lacks.status().message(), HasSubstr("token create --scope delete"));
  EXPECT_EQ(CheckToken(read, "/statcollect.v1.Query/Unheard").status().code(),
            Code::kPermissionDenied);
  EXPECT_TRUE(Check("", "/healthz").ok());
}

TEST_F(AccessTest, ANewTokenIsKnownToTheNextCallWithoutAnyWait) {
  (void)folder_.Create("read");
  Open();
  const Caller nobody{.authorization = {}, .method = kRuns, .address = "x"};
  EXPECT_FALSE(access_->Check(nobody).ok());
  const std::string field = "Bearer " + folder_.Create("read");
  EXPECT_TRUE(access_->Check({.authorization = {field}, .method = kRuns, .address = "x"}).ok());
}

TEST_F(AccessTest, TwoAuthorizationFieldsAreRefused) {
  const std::string field = "Bearer " + folder_.Create("read");
  Open();
  EXPECT_EQ(access_->Check({.authorization = {field, field}, .method = kRuns, .address = "x"})
                .status()
                .code(),
            Code::kUnauthenticated);
}

TEST_F(AccessTest, AChangedFileCountsAtOnce) {
  Open();
  EXPECT_TRUE(Check("").ok());
  const std::string first = folder_.Create("read");
  EXPECT_FALSE(Check("").ok()) << "the first token turns it on";
  const auto principal = CheckToken(first);
  ASSERT_TRUE(principal.ok());
  const std::string second = folder_.Create("read");
  EXPECT_TRUE(CheckToken(second).ok()) << "both are valid while one replaces the other";
  EXPECT_TRUE(access_->StillValid(*principal).ok());
  folder_.Revoke(first);
  EXPECT_FALSE(CheckToken(first).ok());
  EXPECT_THAT(access_->StillValid(*principal).message(), HasSubstr("revoked"));
  EXPECT_THAT(access_->StillValid(Principal{}).message(), HasSubstr("turned on"));
}

TEST_F(AccessTest, ADamagedFileKeepsTheTokensAndAMissingOneRefusesAll) {
  const std::string token = folder_.Create("read");
  Open();
  std::ofstream(folder_.path) << "0123";
  EXPECT_TRUE(CheckToken(token).ok());
  EXPECT_FALSE(Check("").ok());
  std::filesystem::remove(folder_.path);
  EXPECT_FALSE(CheckToken(token).ok());
  EXPECT_FALSE(Check("").ok()) << "removing the file must not turn authorization off";
  EXPECT_EQ(folder_.told.size(), 2U);
}

TEST_F(AccessTest, RefusalsAreAuditedWithoutWhatWasSent) {
  const std::string token = folder_.Create("read");
  Open();
  (void)Check("Bearer stc_deadbeefdead_" + std::string(64, 'e'));
  (void)CheckToken(token, "/statcollect.v1.Admin/DeleteRun");
  const auto lines = folder_.AuditLines();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_THAT(lines[0], HasSubstr("\"principal\":\"nobody\""));
  EXPECT_THAT(lines[0], Not(HasSubstr("eeee")));
  EXPECT_THAT(lines[1], HasSubstr("\"principal\":\"token " + token.substr(4, 12) + "\""));
  EXPECT_THAT(lines[1], Not(HasSubstr(token.substr(17))));
}

TEST_F(AccessTest, AFloodOfBadTokensNeitherFillsTheLogNorStopsAValidOne) {
  const std::string token = folder_.Create("read");
  Open();
  const std::string bad = "Bearer stc_0123456789ab_" + std::string(64, '0');
  const std::string good = "Bearer " + token;
  for (int i = 0; i < 10'000; ++i) {
    const std::string address = "ipv4:10.0.0." + std::to_string(i % 200) + ":1";
    EXPECT_FALSE(
        access_->Check({.authorization = {bad}, .method = kRuns, .address = address}).ok());
    if (i % 100 == 0) {
      EXPECT_TRUE(
          access_->Check({.authorization = {good}, .method = kRuns, .address = address}).ok());
    }
  }
  EXPECT_LE(folder_.AuditLines().size(), FailureLimiter::kInAll);
}

TEST_F(AccessTest, ATokenForOneProjectReachesNoOther) {
  const std::string all = "Bearer " + folder_.Create("read");
  const std::string vision = "Bearer " + folder_.Create("read", {}, "vision");
  Open();
  const auto check = [&](const std::string& field, std::vector<std::string_view> project) {
    return access_->Check(
        {.authorization = {field}, .method = kRuns, .address = "x", .project = std::move(project)});
  };
  EXPECT_EQ(check(all, {})->project, "default");
  EXPECT_EQ(check(all, {"vision"})->project, "vision");
  EXPECT_EQ(check(vision, {})->project, "vision") << "its own, where the call names none";
  EXPECT_EQ(check(vision, {"vision"})->project, "vision");
  const auto other = check(vision, {"speech"});
  EXPECT_EQ(other.status().code(), Code::kPermissionDenied);
  EXPECT_THAT(other.status().message(), HasSubstr("is for project 'vision'"));
  EXPECT_THAT(other.status().message(), HasSubstr("token create --project speech"));
  EXPECT_EQ(check(vision, {"default"}).status().code(), Code::kPermissionDenied);
  EXPECT_EQ(check(all, {"a/b"}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(check(all, {""}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(check(all, {std::string(65, 'p')}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(check(all, {"vision", "vision"}).status().code(), Code::kInvalidArgument);
}

TEST_F(AccessTest, WhatIsAboutTheRunsOfAllIsRefusedToATokenForOneProject) {
  const std::string all = folder_.Create("admin"), vision = folder_.Create("admin", {}, "vision");
  Open();
  for (const MethodRule& rule : MethodRules()) {
    if (rule.scope != Scope::kAdmin) continue;
    EXPECT_TRUE(CheckToken(all, std::string(rule.method)).ok()) << rule.method;
    const auto checked = CheckToken(vision, std::string(rule.method));
    EXPECT_EQ(checked.ok(), !rule.all_projects) << rule.method;
    if (rule.all_projects) {
      EXPECT_EQ(checked.status().code(), Code::kPermissionDenied);
      EXPECT_THAT(checked.status().message(), HasSubstr("is for project 'vision'"));
    }
  }
  EXPECT_FALSE(CheckToken(vision, "/statcollect.v1.Admin/Checkpoint").ok());
}

TEST_F(AccessTest, EachLineOfTheAuditLogHasTheProjectThatItIsAbout) {
  const std::string all = "Bearer " + folder_.Create("read"),
                    vision = "Bearer " + folder_.Create("read", {}, "vision");
  Open();
  const auto project = [&](const std::string& field, std::vector<std::string_view> named,
                           std::string_view method = kRuns) {
    Caller caller{
        .authorization = {}, .method = method, .address = "x", .project = std::move(named)};
    if (!field.empty()) caller.authorization.push_back(field);
    return access_->ProjectOf(caller);
  };
  EXPECT_EQ(project(all, {}), "default");
  EXPECT_EQ(project(vision, {}), "vision");
  EXPECT_EQ(project(vision, {"speech"}), "speech") << "refused, and about speech";
  EXPECT_EQ(project("", {"speech"}), "speech");
  EXPECT_EQ(project("", {}), "") << "who is not known says nothing";
  EXPECT_EQ(project(all, {"a/b"}), "default");
  EXPECT_EQ(project(all, {}, "/statcollect.v1.Admin/Checkpoint"), "");
  for (const auto& [field, named] :
       {std::pair(vision, "speech"), std::pair(std::string("Bearer x"), "vision")})
    (void)access_->Check(
        {.authorization = {field}, .method = kRuns, .address = "x", .project = {named}});
  EXPECT_EQ(folder_.audit.Find({.only_project = "speech"}).records.size(), 1U);
  EXPECT_EQ(folder_.audit.Find({.only_project = "vision"}).records.size(), 1U);
  EXPECT_EQ(folder_.audit.Find({.only_project = "other"}).records.size(), 0U);
  EXPECT_EQ(folder_.audit.Find({}).records.size(), 2U);
}

TEST_F(AccessTest, TokensAreFoundOnceAtTheStartOrWhenTheyCome) {
  int found = 0;
  const auto open = [&] {
    auto opened = AccessControl::Open({.token_file = folder_.path,
                                       .log = [](const std::string&) {},
                                       .tokens_found = [&] { ++found; }},
                                      folder_.clock, folder_.audit);
    ASSERT_TRUE(opened.ok());
    access_ = *std::move(opened);
  };
  open();
  EXPECT_EQ(found, 0);
  const std::string token = folder_.Create("read");
  EXPECT_TRUE(CheckToken(token).ok());
  EXPECT_EQ(found, 1);
  (void)folder_.Create("read");
  EXPECT_TRUE(CheckToken(token).ok());
  EXPECT_EQ(found, 1);
  open();
  EXPECT_EQ(found, 2);
}

TEST_F(AccessTest, AnOpenCallEndsWhenTheProjectOfItsTokenChanges) {
  const std::string token = folder_.Create("read", {}, "vision");
  Open();
  const auto principal = CheckToken(token);
  ASSERT_TRUE(principal.ok());
  EXPECT_TRUE(access_->StillValid(*principal).ok());
  ASSERT_TRUE(ChangeTokens(folder_.path, [&](TokenRecords& records) {
                records.at(token.substr(4, kTokenIdBytes)).project = "speech";
                return Status::Ok();
              }).ok());
  folder_.clock.Advance(1s);
  EXPECT_THAT(access_->StillValid(*principal).message(), HasSubstr("project of token"));
}

class CertificateTest : public AccessTest {
 protected:
  void SetUp() override {
    const auto grants = ParseGrants({"rank7.gpu=ingest", "spiffe://lab/me=read,delete@vision"});
    ASSERT_TRUE(grants.ok()) << grants.status().message();
    auto opened = folder_.Open(false, *grants);
    ASSERT_TRUE(opened.ok());
    access_ = *std::move(opened);
  }
  Result<Principal> With(std::vector<std::string> names, const std::string& method,
                         std::vector<std::string_view> fields = {}) {
    return access_->Check({.authorization = std::move(fields),
                           .method = method,
                           .address = "x",
                           .certificate = std::move(names)});
  }
};

TEST_F(CertificateTest, ANameInACertificateAuthorisesWithoutAToken) {
  EXPECT_TRUE(access_->on());
  const auto agent = With({"other", "rank7.gpu"}, "/statcollect.v1.Ingest/Stream");
  ASSERT_TRUE(agent.ok()) << agent.status().message();
  EXPECT_EQ(agent->Name(), "certificate rank7.gpu");
  EXPECT_EQ(agent->project, "default");
  EXPECT_TRUE(access_->StillValid(*agent).ok());
  const auto reader = With({"spiffe://lab/me"}, kRuns);
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(reader->project, "vision");
}

TEST_F(CertificateTest, WhatIsNotGrantedIsRefused) {
  const auto lacks = With({"rank7.gpu"}, kRuns);
  EXPECT_EQ(lacks.status().code(), Code::kPermissionDenied);
  EXPECT_THAT(lacks.status().message(),
              HasSubstr("certificate rank7.gpu has scope 'ingest'; expected 'read'"));
  const auto unknown = With({"rank8.gpu"}, kRuns);
  EXPECT_EQ(unknown.status().code(), Code::kUnauthenticated);
  EXPECT_THAT(unknown.status().message(), HasSubstr("rank8.gpu is in no --tls-principal"));
  EXPECT_EQ(With({}, kRuns).status().code(), Code::kUnauthenticated);
  EXPECT_EQ(With({"rank7.gpu"}, "/statcollect.v1.Ingest/Unheard").status().code(),
            Code::kPermissionDenied);
  const auto lines = folder_.AuditLines();
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_THAT(lines[0], HasSubstr("\"principal\":\"certificate rank7.gpu\""));
}

TEST_F(CertificateTest, ATokenDecidesWhereThereIsOne) {
  const std::string token = "Bearer " + folder_.Create("read");
  folder_.clock.Advance(1s);
  const auto both = With({"rank7.gpu"}, kRuns, {token});
  ASSERT_TRUE(both.ok()) << both.status().message();
  EXPECT_EQ(both->Name().substr(0, 6), "token ");
  EXPECT_EQ(With({"spiffe://lab/me"}, kRuns, {"Bearer stc_x"}).status().code(),
            Code::kUnauthenticated)
      << "a bad token is not passed over";
}

TEST_F(AccessTest, WithoutGrantsACertificateIsOnlyWrittenDown) {
  Open();
  const auto checked = access_->Check({.authorization = {},
                                       .method = kRuns,
                                       .address = "x",
                                       .certificate = {"rank7.gpu", "rank7"}});
  ASSERT_TRUE(checked.ok());
  EXPECT_EQ(checked->Name(), "certificate rank7.gpu");
  EXPECT_TRUE(access_->StillValid(*checked).ok());
  (void)folder_.Create("read");
  folder_.clock.Advance(1s);
  EXPECT_FALSE(access_->StillValid(*checked).ok());
}

TEST(ParseGrants, SaysWhatIsWrong) {
  const auto grants = ParseGrants({"a=b=read", "rank=ingest,read@vision"});
  ASSERT_TRUE(grants.ok());
  EXPECT_EQ(grants->at("a=b").scopes.ToString(), "read") << "names may have '='";
  EXPECT_EQ(grants->at("rank").project, "vision");
  for (const auto& [text, expected] : std::vector<std::pair<std::string, std::string>>{
           {"rank", "no NAME="},
           {"=read", "no NAME="},
           {"rank=", "found none"},
           {"rank=root", "not a scope"},
           {"rank=read@", "project"},
           {"rank=read@a/b", "project"},
           {"ra\nnk=read", "not printable"},
           {std::string(300, 'r') + "=read", "longer"}}) {
    const auto bad = ParseGrants({text});
    EXPECT_EQ(bad.status().code(), Code::kInvalidArgument) << text;
    EXPECT_THAT(bad.status().message(), HasSubstr(expected)) << text;
  }
  EXPECT_THAT(ParseGrants({"r=read", "r=ingest"}).status().message(), HasSubstr("twice"));
}

}  // namespace
}  // namespace statcollect::access
