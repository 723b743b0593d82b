#include "server/access/audit_log.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "server/access/failure_limiter.h"
#include "tests/server/access/audit_lines.h"
#include "tests/support/fake_clock.h"

namespace statcollect::access {
namespace {

using ::statcollect::testing::FakeClock;

class AuditLogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "auditXXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    path_ = folder_ + "/audit.jsonl";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  AuditLog Make(std::size_t file_bytes_max = AuditLog::kFileBytesMax) {
    return {path_, clock_, [this](const std::string& line) { told_.push_back(line); },
            file_bytes_max};
  }
  static AuditEntry Entry(const std::string& object) {
    return {.principal = "token 1",
            .address = "ipv4:1.2.3.4:5",
            .method = "/m",
            .object = object,
            .outcome = "ok"};
  }
  FakeClock clock_;
  std::string folder_, path_;
  std::vector<std::string> told_;
};

TEST_F(AuditLogTest, LinesAreJsonWhateverTheyHold) {
  AuditLog log = Make();
  log.Write(Entry("a \"run\"\n\xff\x01"));
  const auto lines = testing::AuditLines(path_);
  ASSERT_EQ(lines.size(), 1U);
  const auto line = nlohmann::json::parse(lines[0]);
  EXPECT_EQ(line["principal"], "token 1");
  EXPECT_EQ(line["time"], "1970-01-01T00:16:40.000Z");
  struct stat found {};
  ASSERT_EQ(stat(path_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600U);
}

TEST_F(AuditLogTest, FullFilesRotateAndTheOldestGoes) {
  AuditLog log = Make(1000);
  for (int i = 0; i < 200; ++i) log.Write(Entry(std::to_string(i)));
  std::size_t files = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder_)) {
    EXPECT_LE(file.file_size(), 1000U);
    ++files;
  }
  EXPECT_EQ(files, AuditLog::kFilesKept + 1U);
  const auto lines = testing::AuditLines(path_);
  ASSERT_GE(lines.size(), 12U) << "over several files";
  for (std::size_t i = 0; i < lines.size(); ++i)
    EXPECT_EQ(nlohmann::json::parse(lines[i])["object"], std::to_string(200 - lines.size() + i));
}

TEST_F(AuditLogTest, AHalfLineOfAPowerCutDoesNotDamageTheNext) {
  std::ofstream(path_) << "{\"time\":\"20";
  AuditLog log = Make();
  log.Write(Entry("next"));
  EXPECT_EQ(nlohmann::json::parse(testing::AuditLines(path_).back())["object"], "next");
}

TEST_F(AuditLogTest, WhatCannotBeWrittenIsCountedAndToldOnce) {
  path_ = folder_ + "/none/audit.jsonl";
  AuditLog log = Make();
  log.Write(Entry("a"));
  log.Write(Entry("b"));
  EXPECT_EQ(log.lost(), 2U);
  EXPECT_EQ(told_.size(), 1U);
  std::filesystem::create_directory(folder_ + "/none");
  log.Write(Entry("c"));
  EXPECT_EQ(testing::AuditLines(path_).size(), 1U) << "it does not try again";
}

TEST_F(AuditLogTest, FindsTheNewestOverSeveralFiles) {
  AuditLog log = Make(1000);
  for (int i = 0; i < 200; ++i) {
    clock_.Advance(std::chrono::seconds(1));
    AuditEntry entry = Entry(std::to_string(i));
    if (i % 2 == 0) entry.outcome = "permission_denied: no";
    entry.left_out = static_cast<std::uint64_t>(i);
    log.Write(entry);
  }
  const AuditFound found = log.Find({.outcome = "permission_denied", .limit = 6});
  ASSERT_EQ(found.records.size(), 6U);
  EXPECT_TRUE(found.more);
  for (std::size_t i = 0; i < 6; ++i)
    EXPECT_EQ(found.records[i].entry.object, std::to_string(188 + 2 * i));
  EXPECT_EQ(found.records[0].entry.left_out, 188U);
  EXPECT_EQ(found.records[0].entry.address, "ipv4:1.2.3.4:5");
  EXPECT_TRUE(log.Find({.principal = "token 2"}).records.empty());
  EXPECT_TRUE(log.Find({.method = "/n"}).records.empty());
  EXPECT_EQ(log.Find({.principal = "1", .method = "m", .limit = 3}).records.size(), 3U);
  const AuditFound recent =
      log.Find({.since_unix_nanos = clock_.UnixNanos() - 2'000'000'000, .limit = 100});
  ASSERT_EQ(recent.records.size(), 3U);
  EXPECT_EQ(recent.records.back().entry.object, "199");
  EXPECT_FALSE(recent.more);
}

TEST_F(AuditLogTest, PassesOverLinesThatAreNone) {
  std::ofstream(path_) << "{\"time\":\"20\n[1]\n{\"time\":7,\"object\":[]}\n\n";
  AuditLog log = Make();
  log.Write(Entry("whole"));
  const AuditFound found = log.Find({});
  ASSERT_EQ(found.records.size(), 2U) << "an object without texts counts as an empty entry";
  EXPECT_EQ(found.records.back().entry.object, "whole");
  EXPECT_TRUE(Make().Find({.limit = 1}).more);
}

TEST_F(AuditLogTest, ALinkIsNotFollowed) {
  std::ofstream(folder_ + "/other") << "";
  std::filesystem::create_symlink(folder_ + "/other", path_);
  AuditLog log = Make();
  log.Write(Entry("a"));
  EXPECT_EQ(std::filesystem::file_size(folder_ + "/other"), 0U);
}

TEST_F(AuditLogTest, FindsTheLinesOfOneProjectForWhoMayReadNoOther) {
  AuditLog log = Make();
  for (const char* project : {"vision", "", "speech", "vision"}) {
    AuditEntry entry = Entry(project);
    entry.project = project;
    log.Write(entry);
  }
  EXPECT_EQ(log.Find({}).records.size(), 4U);
  const AuditFound found = log.Find({.only_project = "vision"});
  ASSERT_EQ(found.records.size(), 2U);
  for (const AuditRecord& record : found.records) EXPECT_EQ(record.entry.object, "vision");
}

// A misspelt one would find nothing, as if nobody had been refused.
TEST(CheckOutcome, IsTheBeginningOfOneThatTheLogHasOrGoesOnFromIt) {
  for (const char* good : {"", "ok", "perm", "permission_denied", "permission_denied: token 1",
                           "error", "error NOT_FOUND", "unauth"})
    EXPECT_TRUE(CheckOutcome(good).ok()) << good;
  for (const char* bad : {"denied", "okay", "OK", "errors", "permission denied"}) {
    const Status status = CheckOutcome(bad);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << bad;
    EXPECT_NE(status.message().find("permission_denied"), std::string::npos) << status.message();
  }
}

TEST(FailureLimiter, FewLinesForOneAddressAndTheCountOfTheRest) {
  FailureLimiter limiter;
  FakeClock clock;
  std::uint32_t written = 0;
  for (int i = 0; i < 10'000; ++i)
    written += limiter.Admit("ipv4:1.2.3.4", clock.Now()).has_value() ? 1 : 0;
  EXPECT_EQ(written, FailureLimiter::kPerAddress);
  EXPECT_EQ(limiter.Admit("ipv4:9.9.9.9", clock.Now()), 10'000 - written)
      << "another address is written";
  clock.Advance(FailureLimiter::kWindow);
  EXPECT_EQ(limiter.Admit("ipv4:1.2.3.4", clock.Now()), 0U) << "the next minute";
}

TEST(FailureLimiter, ManyAddressesHaveALimitInAll) {
  FailureLimiter limiter;
  FakeClock clock;
  std::uint32_t written = 0;
  for (int i = 0; i < 100'000; ++i)
    written += limiter.Admit("ipv6:[" + std::to_string(i) + "]", clock.Now()).has_value() ? 1 : 0;
  EXPECT_EQ(written, FailureLimiter::kInAll);
}

}  // namespace
}  // namespace statcollect::access
