// A folder with a file of tokens and an audit log, on a clock that stands still.
#ifndef STATCOLLECT_TESTS_SERVER_ACCESS_TOKEN_FOLDER_H_
#define STATCOLLECT_TESTS_SERVER_ACCESS_TOKEN_FOLDER_H_

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "server/access/access.h"
#include "server/access/token.h"
#include "tests/server/access/audit_lines.h"
#include "tests/support/fake_clock.h"

namespace statcollect::testing {

struct TokenFolder {
  TokenFolder()
      : folder(Make()),
        path(folder + "/tokens"),
        audit(folder + "/audit.jsonl", clock, [](const std::string&) {}) {}
  ~TokenFolder() { std::filesystem::remove_all(folder); }
  TokenFolder(const TokenFolder&) = delete;
  TokenFolder& operator=(const TokenFolder&) = delete;

  std::int64_t Now() const { return clock.UnixNanos() / 1'000'000'000; }
  std::vector<std::string> AuditLines() const {
    return testing::AuditLines(folder + "/audit.jsonl");
  }
  // A new token in the file.
  std::string Create(const std::string& scopes, std::optional<std::int64_t> expires = {},
                     const std::string& project = "") {
    const std::string token = access::MakeToken().value();
    const auto add = [&](access::TokenRecords& records) {
      records.emplace(std::string(*access::TokenId(token)),
                      access::TokenRecord{.digest = access::DigestOf(token),
                                          .scopes = access::ParseScopes(scopes).value(),
                                          .created = Now(),
                                          .expires = expires,
                                          .revoked = {},
                                          .project = project});
      return Status::Ok();
    };
    EXPECT_TRUE(access::ChangeTokens(path, add).ok());
    return token;
  }
  void Revoke(const std::string& token) {
    EXPECT_TRUE(access::ChangeTokens(path, [&](access::TokenRecords& records) {
                  records.at(token.substr(4, access::kTokenIdBytes)).revoked = Now();
                  return Status::Ok();
                }).ok());
  }
  Result<std::unique_ptr<access::AccessControl>> Open(bool required = false,
                                                      access::Grants certificates = {}) {
    return access::AccessControl::Open(
        {.token_file = path,
         .required = required,
         .certificates = std::move(certificates),
         .log = [this](const std::string& line) { told.push_back(line); }},
        clock, audit);
  }
  static std::string Make() {
    std::string pattern = ::testing::TempDir() + "tokensXXXXXX";
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    return pattern;
  }

  FakeClock clock;
  std::vector<std::string> told;
  const std::string folder, path;
  access::AuditLog audit;
};

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_SERVER_ACCESS_TOKEN_FOLDER_H_
