#include "server/store/checkpoint_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "server/store/format_file.h"

namespace statcollect {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kFreeMarginBytes = std::uint64_t{64} << 20;

Status Invalid(const std::string& attempted, const std::string& found) {
  return {Code::kInvalidArgument,
          attempted + ": " + found +
              "; expected the absolute path of an absent or empty folder on the collector's "
              "machine, outside its data directory, in a folder that exists"};
}

Status CannotWrite(const std::string& path, const std::string& why) {
  return {Code::kUnavailable,
          "write '" + path + "': " + why +
              "; expected a disk with space and a folder that statcollectord's user may write"};
}

std::string Mebibytes(std::uint64_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

bool Inside(const fs::path& path, const fs::path& folder) {
  const auto [end, rest] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return end == folder.end();
}

// `path`, or its parent if it does not exist.
std::string Existing(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error) ? path : fs::path(path).parent_path().string();
}

}  // namespace

StagedDirectory::StagedDirectory(std::string final_path)
    : final_path_(std::move(final_path)), path_(final_path_ + ".statcollect-incomplete") {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

StagedDirectory::~StagedDirectory() {
  std::error_code ignored;
  if (published_) return;
  fs::remove_all(path_, ignored);
  fs::remove_all(path_ + ".tmp", ignored);  // RocksDB's own staging
}

Status StagedDirectory::Publish() {
  if (!SyncPath(path_) || std::rename(path_.c_str(), final_path_.c_str()) != 0 ||
      !SyncPath(fs::path(final_path_).parent_path())) {
    return CannotWrite(final_path_, std::strerror(errno));
  }
  published_ = true;
  return Status::Ok();
}

Result<std::string> ParseTarget(const std::string& attempted, const std::string& directory,
                                const std::string& data_dir) {
  const auto control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (std::any_of(directory.begin(), directory.end(), control))
    return Invalid(attempted, "the path has control characters");
  fs::path path = fs::path(directory).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "/a/b/"
  if (!path.is_absolute() || path == path.root_path())
    return Invalid(attempted, "'" + directory + "' is " +
                                  (path.is_absolute() ? "the root" : "a relative path"));
  std::error_code error;
  const fs::path parent = fs::canonical(path.parent_path(), error);
  if (error) return Invalid(attempted, "'" + path.parent_path().string() + "': " + error.message());
  path = parent / path.filename();
  if (!data_dir.empty() && Inside(path, fs::weakly_canonical(data_dir, error)))
    return Invalid(attempted, "'" + directory + "' is in the collector's data directory");
  const fs::file_status found = fs::symlink_status(path, error);
  if (fs::exists(found) && !fs::is_directory(found))
    return Invalid(attempted, "'" + directory + "' exists and is not a folder");
  if (fs::exists(found) && !fs::is_empty(path, error))
    return Invalid(attempted, "'" + directory + "' " +
                                  (error ? "cannot be read: " + error.message() : "is not empty"));
  return path.string();
}

Status CheckFreeSpace(const std::string& attempted, const std::string& path, std::uint64_t bytes) {
  std::error_code error;
  const fs::space_info space = fs::space(Existing(path), error);
  if (error) return CannotWrite(path, error.message());
  if (space.available >= bytes + kFreeMarginBytes) return Status::Ok();
  return {Code::kResourceExhausted, attempted + ": " + Mebibytes(space.available) +
                                        " are free on the file system of '" + path +
                                        "'; expected " + Mebibytes(bytes + kFreeMarginBytes) +
                                        "; free space or name a folder on another disk"};
}

bool SameFileSystem(const std::string& path, const std::string& other) {
  struct stat a {
  }, b{};
  return stat(Existing(path).c_str(), &a) == 0 && stat(other.c_str(), &b) == 0 &&
         a.st_dev == b.st_dev;
}

Result<CheckpointReport> MeasureCheckpoint(const std::string& directory) {
  CheckpointReport report{.directory = directory, .files = 0, .bytes = 0, .linked = true};
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    struct stat file {};
    if (stat(entry->path().c_str(), &file) != 0)
      return CannotWrite(entry->path(), std::strerror(errno));
    ++report.files;
    report.bytes += static_cast<std::uint64_t>(file.st_size);
    if (entry->path().extension() == ".sst" && file.st_nlink < 2) report.linked = false;
  }
  if (error) return CannotWrite(directory, error.message());
  return report;
}

Status Stopped(const std::string& attempted) {
  return {Code::kCancelled, attempted + ": stopped by a signal; nothing was left behind"};
}

Status CopyFiles(const std::string& from, const std::string& to,
                 const std::function<bool()>& stopped) {
  std::error_code error;
  fs::create_directory(to, error);
  if (error) return CannotWrite(to, error.message());
  for (fs::directory_iterator entry(from, error), end; !error && entry != end;
       entry.increment(error)) {
    if (stopped && stopped()) return Stopped("copy '" + from + "'");
    if (!entry->is_regular_file() || entry->path().filename() == "statcollectord.pid") continue;
    const fs::path copy = fs::path(to) / entry->path().filename();
    fs::copy_file(entry->path(), copy, error);
    if (error) return CannotWrite(copy, error.message());
    if (!SyncPath(copy)) return CannotWrite(copy, std::strerror(errno));
  }
  return error ? CannotWrite(to, error.message()) : Status::Ok();
}

}  // namespace statcollect
