#include "server/access/token_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>
#include <system_error>
#include <utility>

#include "common/names.h"
#include "common/owned_fd.h"
#include "common/parse.h"
#include "common/project.h"
#include "common/secret_mode.h"

namespace statcollect::access {
namespace {

constexpr std::string_view kHead =
    "# Tokens of statcollectord, only their hashes. Change it with: statcollectord token create | "
    "revoke\n";

std::string ErrorText() { return std::generic_category().message(errno); }

Status Cannot(const std::string& attempted, const std::string& path) {
  return {Code::kInternal, attempted + " " + Printable(path) + ": " + ErrorText()};
}

std::string Number(const std::optional<std::int64_t>& seconds) {
  return seconds ? std::to_string(*seconds) : "-";
}

bool ParseTime(const std::string& text, std::optional<std::int64_t>& time) {
  if (text == "-") return true;
  time = ParseNumber<std::int64_t>(text);
  return time.has_value() && *time >= 0;
}

bool ParseLine(const std::string& line, TokenRecords& records) {
  std::istringstream words(line);
  std::string id, digest, scopes, created, expires, revoked, more;
  TokenRecord record;
  if (!(words >> id >> digest >> scopes >> created >> expires >> revoked)) return false;
  if (words >> record.project && (!ValidateProjectName(record.project).ok() || words >> more))
    return false;
  if (id.size() != kTokenIdBytes || id.find_first_not_of("0123456789abcdef") != std::string::npos)
    return false;
  const auto hash = DigestFromHex(digest);
  const auto allowed = ParseScopes(scopes);
  const auto made = ParseNumber<std::int64_t>(created);
  if (!hash || !allowed.ok() || !made || *made < 0) return false;
  if (!ParseTime(expires, record.expires) || !ParseTime(revoked, record.revoked)) return false;
  record.digest = *hash;
  record.scopes = *allowed;
  record.created = *made;
  return records.emplace(std::move(id), record).second;
}

// The permissions that the file must have.
Status CheckOwned(int fd, const std::string& path) {
  struct stat found {};
  if (fstat(fd, &found) != 0) return Cannot("read tokens: look at", path);
  if (!S_ISREG(found.st_mode))
    return {Code::kPermissionDenied, "read tokens: " + Printable(path) + " is not a plain file"};
  if (found.st_uid != geteuid() && found.st_uid != 0) {
    return {Code::kPermissionDenied, "read tokens: " + Printable(path) + " belongs to user " +
                                         std::to_string(found.st_uid) +
                                         "; expected the collector's user"};
  }
  if (!IsClosedToOthers(found)) {
    return {Code::kPermissionDenied, "read tokens: others may read or change " + Printable(path) +
                                         "; expected mode 0600; run: chmod 600 " + Printable(path)};
  }
  return Status::Ok();
}

Status WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t put = write(fd, text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return {Code::kInternal, ErrorText()};
    text.remove_prefix(static_cast<std::size_t>(put));
  }
  return fsync(fd) == 0 ? Status::Ok() : Status(Code::kInternal, ErrorText());
}

// Written beside it and renamed, so that a reader sees the old or the new one.
Status Replace(const std::string& path, const std::string& text) {
  const std::string beside = path + ".new";
  (void)unlink(beside.c_str());  // of a change that was cut off
  const OwnedFd file(
      open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file.get() < 0) return Cannot("write tokens: create", beside);
  if (const Status written = WriteAll(file.get(), text); !written.ok()) {
    (void)unlink(beside.c_str());
    return {Code::kInternal, "write tokens: " + Printable(beside) + ": " + written.message()};
  }
  if (rename(beside.c_str(), path.c_str()) != 0) return Cannot("write tokens: rename to", path);
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const OwnedFd directory(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() >= 0) (void)fsync(directory.get());
  return Status::Ok();
}

}  // namespace

Result<TokenRecords> ParseTokens(std::string_view text) {
  TokenRecords records;
  std::istringstream lines{std::string(text)};
  std::size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.empty() || line[0] == '#') continue;
    if (!ParseLine(line, records)) {
      return Status(
          Code::kInvalidArgument,
          "read tokens: line " + std::to_string(number) +
              " is not a token, or is there twice; expected '<id> <SHA-256> <scopes> <created> "
              "<expires> <revoked> [<project>]', as statcollectord token writes it");
    }
    if (records.size() > kTokensMax) {
      return Status(Code::kInvalidArgument, "read tokens: found more than " +
                                                std::to_string(kTokensMax) + "; remove old ones");
    }
  }
  if (!text.empty() && text.back() != '\n')
    return Status(Code::kInvalidArgument, "read tokens: the last line is cut off");
  return records;
}

std::string FormatTokens(const TokenRecords& records) {
  std::string text(kHead);
  for (const auto& [id, record] : records) {
    text += id + " " + ToHex(record.digest) + " " + record.scopes.ToString() + " " +
            std::to_string(record.created) + " " + Number(record.expires) + " " +
            Number(record.revoked) + (record.project.empty() ? "" : " " + record.project) + "\n";
  }
  return text;
}

Result<TokenRecords> ReadTokens(const std::string& path) {
  const OwnedFd file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0) {
    const Code code = errno == ENOENT ? Code::kNotFound : Code::kPermissionDenied;
    return Status(code, "read tokens: open " + Printable(path) + ": " + ErrorText());
  }
  STATCOLLECT_RETURN_IF_ERROR(CheckOwned(file.get(), path));
  std::string text;
  std::array<char, 16384> part{};
  while (true) {
    const ssize_t got = read(file.get(), part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Cannot("read tokens: read", path);
    if (got == 0) break;
    text.append(part.data(), static_cast<std::size_t>(got));
    if (text.size() > kTokenFileBytesMax) {
      return Status(Code::kInvalidArgument, "read tokens: " + Printable(path) + " is larger than " +
                                                std::to_string(kTokenFileBytesMax) + " bytes");
    }
  }
  auto records = ParseTokens(text);
  if (!records.ok())
    return Status(records.status().code(), Printable(path) + ": " + records.status().message());
  return records;
}

Status ChangeTokens(const std::string& path, const std::function<Status(TokenRecords&)>& change) {
  const std::string lock_path = path + ".lock";
  const OwnedFd lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (lock.get() < 0 || flock(lock.get(), LOCK_EX) != 0)
    return Cannot("change tokens: lock", lock_path);
  auto records = ReadTokens(path);
  if (!records.ok() && records.status().code() != Code::kNotFound) return records.status();
  TokenRecords changed = records.ok() ? *std::move(records) : TokenRecords();
  STATCOLLECT_RETURN_IF_ERROR(change(changed));
  return Replace(path, FormatTokens(changed));
}

}  // namespace statcollect::access
