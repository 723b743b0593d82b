// Tokens, their file on the collector's side, and their file on a client's.
#include "server/access/token.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/token_file.h"
#include "server/access/token_file.h"

namespace statcollect {
namespace {

using access::BearerToken;
using access::ChangeTokens;
using access::HoldsToken;
using access::ParseTokens;
using access::ReadTokens;
using access::TokenId;
using access::TokenRecords;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kGood = "stc_0123456789ab_" + std::string(64, 'c');

class TokenFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "tokenXXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& text, mode_t mode = 0600) {
    const std::string path = folder_ + "/file";
    std::ofstream(path, std::ios::binary) << text;
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }
  std::string folder_;
};

TEST(Token, ANewOneIsWellFormedAndNeverTheSame) {
  const auto a = access::MakeToken(), b = access::MakeToken();
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(*a, *b);
  ASSERT_TRUE(TokenId(*a));
  EXPECT_EQ(*TokenId(*a), a->substr(4, 12));
  EXPECT_TRUE(ContainsToken(*a));
}

TEST(Token, AnythingElseIsNone) {
  EXPECT_EQ(TokenId(kGood), "0123456789ab");
  EXPECT_FALSE(TokenId(""));
  EXPECT_FALSE(TokenId("stc_"));
  EXPECT_FALSE(TokenId(kGood.substr(0, kGood.size() - 1)));
  EXPECT_FALSE(TokenId(kGood + "0"));
  for (const std::size_t at : {0, 3, 4, 15, 16, 17, 80}) {
    std::string damaged = kGood;
    damaged[at] = 'X';
    EXPECT_FALSE(TokenId(damaged)) << at;
  }
  EXPECT_FALSE(TokenId(std::string(1 << 20, 'a')));
}

TEST(Token, TheAuthorizationFieldMayBeWrittenInSeveralWays) {
  EXPECT_EQ(BearerToken("Bearer x"), "x");
  EXPECT_EQ(BearerToken("  bearer   x "), "x");
  EXPECT_EQ(BearerToken("BEARER x"), "x");
  for (const char* bad : {"", "Bearer", "Bearerx", "Basic eDp5", "x", "Bearer\tx"})
    EXPECT_FALSE(BearerToken(bad)) << bad;
}

TEST(Token, DigestsAreShaAndSurviveTheirText) {
  const access::Digest digest = access::DigestOf("abc");
  EXPECT_EQ(access::ToHex(digest),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(access::DigestFromHex(access::ToHex(digest)), digest);
  EXPECT_FALSE(access::DigestFromHex("ba"));
  EXPECT_FALSE(access::DigestFromHex(std::string(64, 'g')));
  EXPECT_TRUE(access::Equal(digest, digest));
  EXPECT_FALSE(access::Equal(digest, access::DigestOf("abd")));
}

TEST(Scopes, AreParsedAndUnknownOnesNamed) {
  const auto two = access::ParseScopes("read,ingest");
  ASSERT_TRUE(two.ok());
  EXPECT_EQ(two->ToString(), "ingest,read");
  EXPECT_FALSE(two->Has(access::Scope::kAdmin));
  EXPECT_THAT(access::ParseScopes("read,root").status().message(), HasSubstr("'root'"));
  for (const char* bad : {"", ",", "read,", "read,read", "READ", " read"})
    EXPECT_FALSE(access::ParseScopes(bad).ok()) << bad;
}

TEST_F(TokenFileTest, TheCollectorsFileIsWrittenForItsOwnerAndReadBack) {
  const std::string path = folder_ + "/tokens";
  const auto add = [](TokenRecords& records) {
    access::TokenRecord record{.digest = access::DigestOf(kGood),
                               .created = 7,
                               .expires = 9,
                               .revoked = {},
                               .project = "vision"};
    record.scopes.Add(access::Scope::kDelete);
    records.emplace("0123456789ab", record);
    return Status::Ok();
  };
  ASSERT_TRUE(ChangeTokens(path, add).ok());
  struct stat found {};
  ASSERT_EQ(stat(path.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600U);
  const auto read = ReadTokens(path);
  ASSERT_TRUE(read.ok()) << read.status().message();
  ASSERT_EQ(read->count("0123456789ab"), 1U);
  EXPECT_EQ(read->begin()->second.expires, 9);
  EXPECT_FALSE(read->begin()->second.revoked);
  EXPECT_EQ(read->begin()->second.project, "vision");
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(text, Not(HasSubstr("cccc"))) << "the secret itself is stored";
}

TEST_F(TokenFileTest, AFailedChangeLeavesTheFile) {
  const std::string path = Write("# nothing\n");
  const auto fail = [](TokenRecords&) { return Status(Code::kNotFound, "no"); };
  EXPECT_EQ(ChangeTokens(path, fail).code(), Code::kNotFound);
  std::ifstream file(path);
  EXPECT_EQ(std::string((std::istreambuf_iterator<char>(file)), {}), "# nothing\n");
}

TEST_F(TokenFileTest, AFileThatCannotBeLockedOrReadIsNotReplaced) {
  bool asked = false;
  const auto change = [&](TokenRecords&) {
    asked = true;
    return Status::Ok();
  };
  const Status absent = ChangeTokens(folder_ + "/none/tokens", change);
  EXPECT_THAT(absent.message(), HasSubstr("change tokens: lock"));
  EXPECT_THAT(absent.message(), HasSubstr("No such file"));
  const std::string path = Write("nonsense\n");
  EXPECT_EQ(ChangeTokens(path, change).code(), Code::kInvalidArgument);
  EXPECT_FALSE(asked);
  std::ifstream file(path);
  EXPECT_EQ(std::string((std::istreambuf_iterator<char>(file)), {}), "nonsense\n");
}

TEST_F(TokenFileTest, MoreTokensThanACollectorKeepsAreRefused) {
  std::string text;
  for (std::size_t i = 0; i <= access::kTokensMax; ++i) {
    std::string id = std::to_string(i);
    id.insert(0, 12 - id.size(), '0');
    text += id + " " + std::string(64, '0') + " read 1 - -\n";
  }
  EXPECT_THAT(ParseTokens(text).status().message(), HasSubstr("more than 10000; remove old ones"));
  text.resize(text.size() - text.size() / (access::kTokensMax + 1));
  EXPECT_EQ(ParseTokens(text)->size(), access::kTokensMax);
}

TEST_F(TokenFileTest, AFileThatOthersMayReadOrThatIsDamagedIsRefused) {
  const std::string line = "0123456789ab " + std::string(64, '0') + " read 1 - -\n";
  EXPECT_TRUE(ReadTokens(Write(line)).ok());
  for (const mode_t mode : {0644U, 0604U, 0620U,
                            0666U})  // 0640: common/secret_mode_test.cc, as it depends on the owner
    EXPECT_THAT(ReadTokens(Write(line, mode)).status().message(), HasSubstr("chmod 600")) << mode;
  EXPECT_EQ(ReadTokens(folder_).status().code(), Code::kPermissionDenied) << "a folder";
  EXPECT_EQ(ReadTokens(folder_ + "/none").status().code(), Code::kNotFound);
  EXPECT_THAT(ReadTokens(Write(line + line)).status().message(), HasSubstr("line 2")) << "twice";
  EXPECT_FALSE(ReadTokens(Write(line.substr(0, line.size() - 1))).ok()) << "cut off";
  EXPECT_FALSE(ReadTokens(Write(std::string(access::kTokenFileBytesMax + 1, '#'))).ok()) << "huge";
  const std::string zeros(64, '0');
  for (const std::string& bad :
       {std::string("0123456789ab\n"), "0123456789aX " + zeros + " read 1 - -\n",
        std::string("0123456789ab 00 read 1 - -\n"), "0123456789ab " + zeros + " root 1 - -\n",
        "0123456789ab " + zeros + " read -1 - -\n", "0123456789ab " + zeros + " read 1 soon -\n",
        "0123456789ab " + zeros + " read 1 - - vision more\n",
        "0123456789ab " + zeros + " read 1 - - a/b\n"}) {
    EXPECT_EQ(ParseTokens(bad).status().code(), Code::kInvalidArgument) << bad;
  }
}

TEST_F(TokenFileTest, AClientsFileMustHoldOneWholeTokenAndBelongToItsOwnerAlone) {
  const auto read = ReadTokenFile(Write("  " + kGood + "\r\n"));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, kGood);
  const auto message = [](const std::string& path) {
    const auto found = ReadTokenFile(path);
    EXPECT_EQ(found.status().code(), Code::kUnauthenticated);
    EXPECT_THAT(found.status().message(), Not(HasSubstr("ccc"))) << "it shows the secret";
    return found.ok() ? std::string() : found.status().message();
  };
  EXPECT_THAT(message(Write(kGood, 0644)), HasSubstr("chmod 600"));
  EXPECT_THAT(message(Write(kGood, 0602)), HasSubstr("chmod 600"));
  EXPECT_THAT(message(Write("")), HasSubstr("empty"));
  EXPECT_THAT(message(Write(" \n\n")), HasSubstr("empty"));
  EXPECT_THAT(message(Write(kGood.substr(0, 40))), HasSubstr("cut off after 40"));
  EXPECT_THAT(message(Write("password")), HasSubstr("something else"));
  EXPECT_THAT(message(Write(kGood + "\n" + kGood)), HasSubstr("more than a token"));
  EXPECT_THAT(message(Write(std::string(1 << 20, 'x'))), HasSubstr("something else"));
  EXPECT_THAT(message(folder_), HasSubstr("not a plain file"));
  EXPECT_THAT(message(folder_ + "/none"), HasSubstr("No such file"));
}

TEST(HoldsToken, FindsWholeTokensAndNoNamesThatBeginLikeOne) {
  EXPECT_TRUE(HoldsToken(kGood));
  EXPECT_TRUE(HoldsToken("run=a&x=stc_" + kGood + "0"));
  EXPECT_TRUE(HoldsToken("stc%5F0123456789ab%5f" + std::string(64, 'c')));
  for (const char* name :
       {"", "stc_", "run=stc_run", "stc_0123456789ab_layer", "stc_0123456789ab", "%5F%5", "stc%"})
    EXPECT_FALSE(HoldsToken(name)) << name;
  EXPECT_FALSE(HoldsToken(kGood.substr(0, kGood.size() - 1)));
}

TEST(ContainsToken, FindsWholeAndCutOffTokensAndNothingElse) {
  EXPECT_TRUE(ContainsToken(kGood));
  EXPECT_TRUE(ContainsToken("--token=" + kGood));
  EXPECT_TRUE(ContainsToken("stc_stc_0123456789ab_c"));
  EXPECT_FALSE(ContainsToken("stc_run_1"));
  EXPECT_FALSE(ContainsToken("stc_0123456789ab"));
  EXPECT_FALSE(ContainsToken(""));
}

}  // namespace
}  // namespace statcollect
