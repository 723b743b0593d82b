#include "server/store/format_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

namespace statcollect {
namespace {

constexpr int kOldestRead = 2;

Status CannotWrite(const std::string& path) {
  return {Code::kUnavailable, "write '" + path + "': " + std::strerror(errno) +
                                  "; expected a disk with space and a folder this user may write"};
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

Status WriteFormatFile(const std::string& directory, int version) {
  const std::string path = directory + "/FORMAT", temporary = path + ".new";
  std::ofstream out(temporary, std::ios::trunc);
  out << "statcollect store " << version << "\n";
  out.close();
  if (!out || !SyncPath(temporary)) return CannotWrite(temporary);
  if (std::rename(temporary.c_str(), path.c_str()) != 0 || !SyncPath(directory)) return CannotWrite(path);
  return Status::Ok();
}

bool HasFormatFile(const std::string& directory) { return Exists(directory + "/FORMAT"); }

Status CheckFormatFile(const std::string& directory, int version) {
  const std::string path = directory + "/FORMAT";
  if (!Exists(path)) {
    if (!Exists(directory + "/CURRENT")) return WriteFormatFile(directory, version);
    return {Code::kFailedPrecondition,
            "open store '" + directory +
                "': found a RocksDB without a FORMAT file; expected an empty folder or one created by "
                "statcollectord; choose a different one with --data-dir"};
  }
  std::string word1, word2;
  int found = 0;
  std::ifstream in(path);
  in >> word1 >> word2 >> found;
  if (!in || word1 != "statcollect" || word2 != "store" || found < 1) {
    return {Code::kDataLoss, "open store '" + directory +
                                 "': the file FORMAT does not say 'statcollect store <version>'; "
                                 "restore it from a backup of this store"};
  }
  if (found > version) {
    return {Code::kFailedPrecondition, "open store '" + directory + "': format version is " +
                                           std::to_string(found) + "; this build reads " +
                                           std::to_string(kOldestRead) + ".." + std::to_string(version) +
                                           "; upgrade statcollectord"};
  }
  if (found < kOldestRead) {
    return {Code::kFailedPrecondition,
            "open store '" + directory + "': format version is " + std::to_string(found) +
                ", from before the first release; this build reads " + std::to_string(kOldestRead) + ".." +
                std::to_string(version) + "; choose a different folder with --data-dir and record again"};
  }
  return Status::Ok();
}

}  // namespace statcollect
