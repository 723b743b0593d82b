#include "server/store/rocksdb/zero_tail.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "common/parse.h"
#include "server/store/rocksdb/util.h"

namespace statcollect {
namespace {

// The files that RocksDB was appending to and syncing when it last ran: the newest log, the newest
// MANIFEST.
std::vector<std::string> NewestJournals(rocksdb::FileSystem& files, const std::string& directory) {
  std::vector<std::string> names;
  (void)files.GetChildren(directory, {}, &names, nullptr);
  std::map<bool, std::pair<std::uint64_t, std::string>> newest;  // of a log; number and path
  for (const std::string& name : names) {
    const bool log = name.ends_with(".log");
    constexpr std::string_view kManifest = "MANIFEST-";
    if (!log && !name.starts_with(kManifest)) continue;
    const auto leading = ParseLeadingNumber<std::uint64_t>(
        std::string_view(name).substr(log ? 0 : kManifest.size()));
    const std::uint64_t number = leading ? leading->number : 0;
    newest[log] = std::max(newest[log], {number, directory + "/" + name});
  }
  std::vector<std::string> paths;
  for (auto& [log, file] : newest) paths.push_back(std::move(file.second));
  return paths;
}

// Finds where the trailing zeros of the file begin.
rocksdb::IOStatus FindZeroTail(rocksdb::FileSystem& files, const std::string& path,
                               std::uint64_t size, std::uint64_t* begin) {
  std::unique_ptr<rocksdb::FSRandomAccessFile> file;
  rocksdb::IOStatus status = files.NewRandomAccessFile(path, {}, &file, nullptr);
  std::string scratch(64 << 10, '\0');
  for (*begin = size; status.ok() && *begin > 0;) {
    const std::uint64_t bytes = std::min<std::uint64_t>(*begin, scratch.size());
    rocksdb::Slice read;
    status = file->Read(*begin - bytes, bytes, {}, &read, scratch.data(), nullptr);
    if (!status.ok() || read.size() != bytes) break;
    const std::size_t last = View(read).find_last_not_of('\0');
    if (last != std::string_view::npos) {
      *begin -= bytes - last - 1;
      break;
    }
    *begin -= bytes;
  }
  return status;
}

bool CutZeroTail(rocksdb::FileSystem& files, const std::string& path, std::uint64_t synced,
                 const std::function<void(const std::string&)>& log) {
  constexpr std::uint64_t kSectorBytes = 512;
  std::uint64_t size = 0, zeros_from = 0;
  if (!files.GetFileSize(path, {}, &size, nullptr).ok()) return false;
  if (!FindZeroTail(files, path, size, &zeros_from).ok()) return false;
  const std::uint64_t left =
      std::max(synced, (zeros_from + kSectorBytes - 1) / kSectorBytes * kSectorBytes);
  if (left >= size) return false;
  const rocksdb::IOStatus cut = files.Truncate(path, left, {}, nullptr);
  log("'" + path + "' ends in zeros from byte " + std::to_string(left) +
      ", as after a power cut; " +
      (cut.ok() ? "they were cut off" : "cutting them off failed: " + cut.ToString()));
  return cut.ok();
}

}  // namespace

bool CutZeroTails(rocksdb::FileSystem& files, const std::string& directory,
                  const SyncedLengths& synced, const std::function<void(const std::string&)>& log) {
  bool cut = false;
  for (const std::string& path : NewestJournals(files, directory)) {
    const auto length = synced.find(path.substr(directory.size() + 1));
    cut |= CutZeroTail(files, path, length == synced.end() ? 0 : length->second, log);
  }
  return cut;
}

}  // namespace statcollect
