#include "server/store/rocksdb/synced_mark.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "common/checksum.h"
#include "common/parse.h"
#include "server/store/rocksdb/util.h"

namespace statcollect {
namespace {

constexpr std::string_view kHeading = "statcollect synced 1";

std::string Padded(std::string text, std::size_t bytes) {
  text.resize(bytes - 1, ' ');
  return text + '\n';
}

std::string Hex(std::uint32_t number) {
  std::string text(8, '0');
  (void)std::snprintf(text.data(), text.size() + 1, "%08x", number);
  return text;
}

Status Damaged(const std::string& directory) {
  return {Code::kDataLoss, "the file '" + std::string(kSyncedName) + "' of '" + directory +
                               "' is damaged, which says how much of each log there must be"};
}

// Absent: damaged, or blank.
std::optional<std::pair<std::string, std::uint64_t>> ParseLine(std::string_view line) {
  std::istringstream words{std::string(line)};
  std::string name, bytes, crc;
  words >> name >> bytes >> crc;
  const auto number = ParseNumber<std::uint64_t>(bytes);
  if (!IsJournal(name) || !number) return std::nullopt;
  return std::pair{name, *number};
}

}  // namespace

bool IsJournal(const std::string& name) {
  return name.ends_with(".log") || name.starts_with("MANIFEST-");
}

std::string SyncedMark::Line(const std::string& name, std::uint64_t bytes) {
  const std::string text = name + " " + std::to_string(bytes);
  return Padded(text + " " + Hex(Crc32c(text)), kLineBytes);
}

Result<SyncedLengths> ReadSyncedMark(rocksdb::FileSystem& files, const std::string& directory) {
  const std::string path = directory + "/" + kSyncedName;
  constexpr std::size_t kBytes = SyncedMark::kLineBytes * SyncedMark::kLines;
  std::unique_ptr<rocksdb::FSRandomAccessFile> file;
  std::string scratch(kBytes + 1, '\0');
  rocksdb::Slice read;
  rocksdb::IOStatus status = files.FileExists(path, {}, nullptr);
  if (status.ok()) status = files.NewRandomAccessFile(path, {}, &file, nullptr);
  if (status.ok()) status = file->Read(0, scratch.size(), {}, &read, scratch.data(), nullptr);
  if (!status.ok()) return FromRocks("read '" + path + "'", status);
  const std::string_view text = View(read);
  const std::string blank = Padded("", SyncedMark::kLineBytes);
  if (text.size() != kBytes || text.substr(0, SyncedMark::kLineBytes) != SyncedMark::Heading())
    return Damaged(directory);
  SyncedLengths lengths;
  for (std::size_t at = SyncedMark::kLineBytes; at < kBytes; at += SyncedMark::kLineBytes) {
    const std::string_view line = text.substr(at, SyncedMark::kLineBytes);
    if (line == blank) continue;
    const auto found = ParseLine(line);
    if (!found || line != SyncedMark::Line(found->first, found->second)) return Damaged(directory);
    lengths.insert(*found);
  }
  return lengths;
}

std::string SyncedMark::Heading() { return Padded(std::string(kHeading), kLineBytes); }

Status WriteSyncedMark(rocksdb::FileSystem& files, const std::string& directory,
                       const SyncedLengths& lengths) {
  const std::string path = directory + "/" + kSyncedName, temporary = path + ".new";
  std::string text = SyncedMark::Heading();
  std::size_t lines = 1;
  for (const auto& [name, bytes] : lengths) {
    if (lines++ < SyncedMark::kLines) text += SyncedMark::Line(name, bytes);
  }
  while (text.size() < SyncedMark::kLineBytes * SyncedMark::kLines)
    text += Padded("", SyncedMark::kLineBytes);
  std::unique_ptr<rocksdb::FSWritableFile> file;
  std::unique_ptr<rocksdb::FSDirectory> folder;
  rocksdb::IOStatus status = files.NewWritableFile(temporary, {}, &file, nullptr);
  if (status.ok()) status = file->Append(text, {}, nullptr);
  if (status.ok()) status = file->Sync({}, nullptr);
  if (status.ok()) status = file->Close({}, nullptr);
  if (status.ok()) status = files.RenameFile(temporary, path, {}, nullptr);
  if (status.ok()) status = files.NewDirectory(directory, {}, &folder, nullptr);
  if (status.ok()) status = folder->Fsync({}, nullptr);
  return FromRocks("write '" + path + "'", status);
}

Result<std::unique_ptr<SyncedMark>> SyncedMark::Open(
    const std::shared_ptr<rocksdb::FileSystem>& files, const std::string& directory,
    const SyncedLengths& lengths, std::function<void(const std::string&)> log) {
  const std::string path = directory + "/" + kSyncedName;
  std::unique_ptr<rocksdb::FSRandomRWFile> file;
  STATCOLLECT_RETURN_IF_ERROR(
      FromRocks("open '" + path + "'", files->NewRandomRWFile(path, {}, &file, nullptr)));
  std::unique_ptr<SyncedMark> mark(new SyncedMark(std::move(file), std::move(log)));
  MutexLock lock(mark->mutex_);
  std::size_t line = 1;  // as WriteSyncedMark has put them
  for (const auto& [name, bytes] : lengths) {
    const bool written = line < kLines;
    mark->used_[written ? line : 0] = true;
    mark->journals_[name] = {.bytes = bytes, .line = written ? line++ : 0, .named = true};
  }
  return mark;
}

void SyncedMark::Created(const std::string& name) {
  MutexLock lock(mutex_);
  journals_[name];
}

void SyncedMark::Synced(const std::string& name, std::uint64_t bytes) {
  MutexLock lock(mutex_);
  Journal& journal = journals_[name];
  journal.bytes = std::max(journal.bytes, bytes);
  if (journal.named) PutLocked(name);
}

std::set<std::string> SyncedMark::Unnamed() const {
  MutexLock lock(mutex_);
  std::set<std::string> names;
  for (const auto& [name, journal] : journals_) {
    if (!journal.named) names.insert(name);
  }
  return names;
}

void SyncedMark::DirectorySynced(const std::set<std::string>& names) {
  MutexLock lock(mutex_);
  for (const std::string& name : names) {
    const auto found = journals_.find(name);
    if (found == journals_.end()) continue;
    found->second.named = true;
    if (found->second.bytes > 0) PutLocked(name);
  }
}

rocksdb::IOStatus SyncedMark::Forget(const std::string& name) {
  MutexLock lock(mutex_);
  const auto found = journals_.find(name);
  if (found == journals_.end()) return rocksdb::IOStatus::OK();
  if (const std::size_t line = found->second.line; line > 0) {
    rocksdb::IOStatus cleared = WriteLocked(line, Padded("", kLineBytes));
    if (cleared.ok()) cleared = file_->Sync({}, nullptr);
    if (!cleared.ok()) return cleared;
    used_[line] = false;
  }
  journals_.erase(found);
  return rocksdb::IOStatus::OK();
}

// More journals than lines: those without one are not checked.
void SyncedMark::PutLocked(const std::string& name) {
  Journal& journal = journals_[name];
  if (journal.line == 0) {
    const auto free = std::find(used_.begin(), used_.end(), false);
    if (free == used_.end()) return;
    *free = true;
    journal.line = static_cast<std::size_t>(free - used_.begin());
  }
  const rocksdb::IOStatus written = WriteLocked(journal.line, Line(name, journal.bytes));
  if (written.ok() || std::exchange(told_, true)) return;
  log_("write '" + std::string(kSyncedName) + "': " + written.ToString() +
       "; what is written meanwhile is safe, but the next start will not notice if its logs are "
       "cut");
}

rocksdb::IOStatus SyncedMark::WriteLocked(std::size_t line, const std::string& text) {
  return file_->Write(line * kLineBytes, text, {}, nullptr);
}

}  // namespace statcollect
