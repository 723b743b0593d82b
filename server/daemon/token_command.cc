#include "server/daemon/token_command.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <optional>
#include <string>
#include <system_error>

#include <CLI/CLI.hpp>

#include "common/choice.h"
#include "common/clock.h"
#include "common/names.h"
#include "common/project.h"
#include "server/access/scopes.h"
#include "server/access/token.h"
#include "server/access/token_file.h"
#include "server/daemon/config.h"
#include "server/daemon/say_error.h"
#include "server/daemon/units.h"
#include "tls/files.h"

namespace statcollect {
namespace {

constexpr int kTokenFailed = 2;
constexpr char kTokenFooter[] = R"(
Examples:
  statcollectord token create --scope ingest --expires 30d --out agents.token
                                        for STATAGENT_TOKEN_FILE
  statcollectord token create --scope read,control,delete --out me.token
                                        for STATCTL_TOKEN_FILE
  statcollectord token create --project vision --scope ingest,read --out vision.token
                                        for the runs of one project
  statcollectord token list
  statcollectord token revoke 0123456789ab

Once the file of tokens exists, a collector that uses it wants a token with every call: the first
token turns authorization on, also in a collector that runs. Only hashes are kept, so a lost token
is replaced by a new one. To rotate: create a second token, hand it out, revoke the first.)";

struct TokenOptions {
  std::string data_dir = DaemonConfig().data_dir;
  std::string token_file;
  std::string scopes, expires, project;
  std::string out;  // a file; empty: standard output
  std::string id;
  std::string path() const { return token_file.empty() ? data_dir + "/tokens" : token_file; }
};

std::int64_t NowSeconds() { return SystemClock().UnixNanos() / 1'000'000'000; }

std::string DateText(std::int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts{};
  if (gmtime_r(&time, &parts) == nullptr) return std::to_string(seconds);
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%04d-%02d-%02d %02d:%02dZ", parts.tm_year + 1900,
                parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min);
  return text.data();
}

// The file that gets the token, empty at first, so that a path that cannot be used costs no token.
Status MakeOutFile(const std::string& path) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) {
    return {Code::kInvalidArgument,
            "--out " + Printable(path) + ": " + std::generic_category().message(errno) +
                (errno == EEXIST ? "; expected a new file; name another, or remove this one first"
                                 : "; expected a path where a file can be made")};
  }
  close(file);
  return Status::Ok();
}

Status WriteToken(const TokenOptions& o, const std::string& token) {
  if (!o.out.empty()) {
    const Status written = tls::ReplaceFile(o.out, token + "\n", 0600);
    return written.ok() ? written
                        : Status(written.code(), written.message() + "; revoke the token");
  }
  std::cout << token << std::endl;
  return std::cout
             ? Status::Ok()
             : Status(Code::kInternal, "write the token to standard output: failed; revoke it");
}

Result<access::TokenRecord> RecordOf(const TokenOptions& o) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto scopes, access::ParseScopes(o.scopes));
  access::TokenRecord record{
      .scopes = scopes, .created = NowSeconds(), .expires = {}, .revoked = {}};
  if (!o.project.empty()) STATCOLLECT_RETURN_IF_ERROR(ValidateProjectName(o.project));
  record.project = o.project;
  if (!o.expires.empty()) {
    STATCOLLECT_ASSIGN_OR_RETURN(const auto lifetime, ParseDuration("--expires", o.expires));
    if (lifetime.count() > 0) record.expires = record.created + lifetime.count();
  }
  return record;
}

Status CreateToken(const TokenOptions& o) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto made, RecordOf(o));
  access::TokenRecord& record = made;
  if (o.token_file.empty() && mkdir(o.data_dir.c_str(), 0700) != 0 && errno != EEXIST) {
    return {Code::kInternal, "create the data directory " + Printable(o.data_dir) + ": " +
                                 std::generic_category().message(errno) +
                                 "; name it with --data-dir"};
  }
  STATCOLLECT_ASSIGN_OR_RETURN(const auto token, access::MakeToken());
  record.digest = access::DigestOf(token);
  if (!o.out.empty()) STATCOLLECT_RETURN_IF_ERROR(MakeOutFile(o.out));
  const Status kept = access::ChangeTokens(o.path(), [&](access::TokenRecords& records) {
    if (records.size() >= access::kTokensMax)
      return Status(Code::kResourceExhausted,
                    "there are " + std::to_string(records.size()) +
                        " tokens; expected fewer; delete old lines of the file");
    records.emplace(std::string(*access::TokenId(token)), record);
    return Status::Ok();
  });
  if (!kept.ok()) {
    if (!o.out.empty()) (void)unlink(o.out.c_str());
    return kept;
  }
  STATCOLLECT_RETURN_IF_ERROR(WriteToken(o, token));
  const std::string said =
      "token " + std::string(*access::TokenId(token)) + " with scope " + record.scopes.ToString() +
      (record.project.empty() ? " for all projects" : " for project " + record.project) +
      (record.expires ? ", expires " + DateText(*record.expires) : ", never expires") +
      (o.out.empty() ? "; it is shown only this once: keep it in a file with mode 0600\n"
                     : "; it is in " + Printable(o.out) + ", and nowhere else\n");
  std::fputs(said.c_str(), stderr);
  return Status::Ok();
}

std::string StateOf(const access::TokenRecord& record) {
  if (record.revoked) return "revoked " + DateText(*record.revoked);
  if (!record.expires) return "valid, never expires";
  return (*record.expires <= NowSeconds() ? "expired " : "valid until ") +
         DateText(*record.expires);
}

Status ListTokens(const TokenOptions& o) {
  const auto records = access::ReadTokens(o.path());
  if (!records.ok()) {
    return {records.status().code(),
            records.status().message() + "; make the first one with: statcollectord token create"};
  }
  std::printf("%-12s  %-17s  %-26s  %-12s  %s\n", "ID", "CREATED", "STATE", "PROJECT", "SCOPES");
  for (const auto& [id, record] : *records) {
    std::printf("%-12s  %-17s  %-26s  %-12s  %s\n", id.c_str(), DateText(record.created).c_str(),
                StateOf(record).c_str(), record.project.empty() ? "(all)" : record.project.c_str(),
                record.scopes.ToString().c_str());
  }
  return Status::Ok();
}

Status RevokeToken(const TokenOptions& o) {
  // Who has the token itself at hand may give it: it is useless from now on.
  const std::string id(access::TokenId(o.id).value_or(o.id));
  return access::ChangeTokens(o.path(), [&](access::TokenRecords& records) {
    const auto found = records.find(id);
    if (found == records.end()) {
      return Status(Code::kNotFound, "revoke: no token '" + Printable(id, 20) + "' in " +
                                         Printable(o.path()) +
                                         "; statcollectord token list shows all");
    }
    if (!found->second.revoked) found->second.revoked = NowSeconds();
    return Status::Ok();
  });
}

}  // namespace

int RunTokenCommand(int argc, const char* const* argv) {
  TokenOptions o;
  CLI::App app("Makes, lists and revokes tokens.", "statcollectord token");
  app.footer(kTokenFooter);
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--data-dir", o.data_dir,
                 "Data directory of the collector; its tokens are in the file `tokens` there")
      ->check(OptionAsPath)
      ->capture_default_str();
  app.add_option("--token-file", o.token_file,
                 "File of tokens, if the collector uses --token-file");
  CLI::App* create = app.add_subcommand(
      "create", "Makes a token; without --out, prints it (and nothing else) on standard output");
  create
      ->add_option("--scope", o.scopes,
                   "ingest, read, capture, control, delete, admin; separated by commas")
      ->required();
  create->add_option("--project", o.project, "The only project that it is for; without it, all");
  create->add_option("--out", o.out, "New file for the token, with mode 0600");
  create->add_option("--expires", o.expires,
                     "Lifetime, such as 30d or 12h (default: never expires)");
  CLI::App* list = app.add_subcommand("list", "Lists the tokens, without their secrets");
  app.add_subcommand("revoke", "Makes a token invalid; running collectors notice within a second")
      ->add_option("id", o.id, "Id of the token: the second part of stc_<id>_...")
      ->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    SayError("statcollectord token",
             std::string(error.what()) + "; see statcollectord token --help");
    return kTokenFailed;
  }
  const Status done = create->parsed() ? CreateToken(o)
                      : list->parsed() ? ListTokens(o)
                                       : RevokeToken(o);
  if (done.ok()) return 0;
  SayError("statcollectord token", done.message());
  return kTokenFailed;
}

}  // namespace statcollect
