#include "server/store/format_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "common/parse.h"

namespace statcollect {
namespace {

constexpr int kOldestRead = 2;

Status CannotWrite(const std::string& path) {
  return {Code::kUnavailable, "write '" + path + "': " + std::strerror(errno) +
                                  "; expected a disk with space and a folder this user may write"};
}

// What the file says; version 0: there is none, or it is damaged.
struct Format {
  int version = 0;
  std::set<std::string> words;
};

Format ReadFormat(const std::string& directory) {
  std::ifstream in(directory + "/FORMAT");
  std::string word1, word2, version;
  in >> word1 >> word2 >> version;
  Format format{.version = ParseNumber<int>(version).value_or(0)};
  if (word1 != "statcollect" || word2 != "store" || format.version < 1) return {};
  for (std::string word; in >> word;) {
    if (word != kSyncedWord && word != kTokensWord) return {};
    format.words.insert(word);
  }
  return format;
}

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

}  // namespace

bool SyncPath(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool synced = fsync(fd) == 0;
  const int error = errno;
  close(fd);
  errno = error;
  return synced;
}

Status ReplaceFile(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".new";
  std::ofstream out(temporary, std::ios::trunc);
  out << text;
  out.close();
  if (!out || !SyncPath(temporary)) return CannotWrite(temporary);
  const std::string directory = path.substr(0, path.rfind('/'));
  if (std::rename(temporary.c_str(), path.c_str()) != 0 || !SyncPath(directory))
    return CannotWrite(path);
  return Status::Ok();
}

Status WriteFormatFile(const std::string& directory, int version,
                       const std::set<std::string>& words) {
  std::string text = "statcollect store " + std::to_string(version);
  for (const std::string& word : words) text += " " + word;
  return ReplaceFile(directory + "/FORMAT", text + "\n");
}

bool FormatFileSays(const std::string& directory, const std::string& word) {
  return ReadFormat(directory).words.contains(word);
}

Status SetFormatWord(const std::string& directory, int version, const std::string& word,
                     bool present) {
  Format format = ReadFormat(directory);
  if (format.words.contains(word) == present) return Status::Ok();
  if (present) format.words.insert(word);
  if (!present) format.words.erase(word);
  return WriteFormatFile(directory, format.version > 0 ? format.version : version, format.words);
}

bool HasFormatFile(const std::string& directory) { return Exists(directory + "/FORMAT"); }

Status CheckFormatFile(const std::string& directory, int version) {
  const std::string path = directory + "/FORMAT";
  if (!Exists(path)) {
    if (!Exists(directory + "/CURRENT")) return WriteFormatFile(directory, version);
    return {Code::kFailedPrecondition,
            "open store '" + directory +
                "': found a RocksDB without a FORMAT file; expected an empty folder or one created "
                "by statcollectord; choose a different one with --data-dir"};
  }
  const int found = ReadFormat(directory).version;
  if (found < 1) {
    return {Code::kDataLoss, "open store '" + directory +
                                 "': the file FORMAT does not say 'statcollect store <version>'; "
                                 "restore it from a backup of this store"};
  }
  if (found > version) {
    return {Code::kFailedPrecondition, "open store '" + directory + "': format version is " +
                                           std::to_string(found) + "; this build reads " +
                                           std::to_string(kOldestRead) + ".." +
                                           std::to_string(version) + "; upgrade statcollectord"};
  }
  if (found < kOldestRead) {
    return {Code::kFailedPrecondition,
            "open store '" + directory + "': format version is " + std::to_string(found) +
                ", from before the first release; this build reads " + std::to_string(kOldestRead) +
                ".." + std::to_string(version) +
                "; choose a different folder with --data-dir and record again"};
  }
  return Status::Ok();
}

}  // namespace statcollect
