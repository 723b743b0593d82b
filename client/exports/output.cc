#include "client/exports/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "common/names.h"

namespace statcollect::client {
namespace {

namespace fs = std::filesystem;

Code CodeOf(int error) {
  switch (error) {
    case EEXIST:
      return Code::kAlreadyExists;
    case ENOENT:
    case ENOTDIR:
      return Code::kNotFound;
    case EACCES:
    case EPERM:
    case EROFS:
      return Code::kPermissionDenied;
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
      return Code::kResourceExhausted;
    default:
      return Code::kUnknown;
  }
}

std::string NextStep(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return "; choose a path whose folders exist or can be made";
    case EACCES:
    case EPERM:
    case EROFS:
      return "; choose a path that you may write to";
    case ENOSPC:
    case EDQUOT:
      return "; free space or choose a different path";
    case EPIPE:
      return "; the reader has closed it";
    default:
      return "";
  }
}

Status Failure(const std::string& what, const std::string& path, int error) {
  return {CodeOf(error),
          what + " '" + Printable(path) + "': " + std::strerror(error) + NextStep(error)};
}

Status Exists(const std::string& path, const std::string& next) {
  return {Code::kAlreadyExists, "write '" + Printable(path) + "': it exists; " + next};
}

// 0 for nothing there.
mode_t TypeOf(const std::string& path) {
  struct stat found {};
  return lstat(path.c_str(), &found) == 0 ? found.st_mode & S_IFMT : 0;
}

std::string WithoutSlashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

Result<FileWriter> FileWriter::Create(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return Failure("create", path, errno);
  return FileWriter(path, fd);
}

FileWriter FileWriter::StandardOutput() { return {"standard output", STDOUT_FILENO}; }

FileWriter::FileWriter(FileWriter&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      buffer_(std::exchange(other.buffer_, {})) {}

FileWriter::~FileWriter() {
  if (fd_ > STDERR_FILENO) close(fd_);
}

Status FileWriter::Flush() {
  std::string_view left = buffer_;
  while (!left.empty()) {
    const ssize_t written = write(fd_, left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Failure("write", path_, errno);
    left.remove_prefix(static_cast<std::size_t>(written));
  }
  buffer_.clear();
  return Status::Ok();
}

Status FileWriter::Close(bool sync) {
  STATCOLLECT_RETURN_IF_ERROR(Flush());
  if (fd_ <= STDERR_FILENO) return Status::Ok();
  if (sync && fsync(fd_) != 0) return Failure("write", path_, errno);
  if (close(std::exchange(fd_, -1)) != 0) return Failure("write", path_, errno);
  return Status::Ok();
}

Status WriteNewFile(const std::string& path, std::string_view text) {
  auto file = FileWriter::Create(path);
  if (!file.ok()) return file.status();
  STATCOLLECT_RETURN_IF_ERROR(file->Write(text));
  return file->Close();
}

Status MakeFolder(const std::string& path) {
  return mkdir(path.c_str(), 0777) == 0 ? Status::Ok() : Failure("create", path, errno);
}

Partial::Partial(std::string path, bool overwrite)
    : path_(std::move(path)),
      partial_(path_ + ".partial-" + std::to_string(getpid())),
      overwrite_(overwrite) {}

Partial::Partial(Partial&& other) noexcept
    : path_(std::move(other.path_)),
      partial_(std::exchange(other.partial_, {})),
      made_(std::move(other.made_)),
      overwrite_(other.overwrite_) {}

Partial::~Partial() {
  if (partial_.empty()) return;
  std::error_code ignored;
  fs::remove_all(partial_, ignored);
  for (fs::path folder = fs::path(path_).parent_path(); !made_.empty();
       folder = folder.parent_path()) {
    fs::remove(folder, ignored);  // unless something else is in it by now
    if (folder == made_) break;
  }
}

Status Partial::MakeParents() {
  const fs::path parent = fs::path(path_).parent_path();
  for (fs::path folder = parent; !folder.empty() && TypeOf(folder) == 0;
       folder = folder.parent_path())
    made_ = folder;
  std::error_code error;
  if (!made_.empty()) fs::create_directories(parent, error);
  return error ? Failure("create the folder", parent, error.value()) : Status::Ok();
}

Result<Partial> Partial::File(const std::string& path, bool overwrite) {
  const mode_t type = TypeOf(path);
  if (path.empty() || path.back() == '/' || type == S_IFDIR) {
    return Status(Code::kInvalidArgument,
                  "write '" + Printable(path) + "': it is a folder; name a file");
  }
  if (type != 0 && !overwrite) return Exists(path, "--overwrite replaces it");
  if (type != 0 && type != S_IFREG)
    return Exists(path,
                  "--overwrite replaces only files; choose a different file, or '-' for standard "
                  "output");
  Partial partial(path, overwrite);
  STATCOLLECT_RETURN_IF_ERROR(partial.MakeParents());
  return partial;
}

Result<Partial> Partial::Folder(const std::string& path, bool overwrite,
                                const std::function<bool(std::string_view)>& is_ours,
                                const std::string& expected) {
  const std::string place = WithoutSlashes(path);
  const mode_t type = TypeOf(place);
  if (place.empty() || (type != 0 && type != S_IFDIR)) {
    return Status(Code::kInvalidArgument, "write '" + Printable(path) +
                                              "': this format needs a folder; found " +
                                              (place.empty() ? "an empty path" : "something else"));
  }
  if (type == S_IFDIR && !overwrite) return Exists(path, "--overwrite replaces it");
  std::error_code error;
  for (fs::directory_iterator entry(place, error), end; type == S_IFDIR && entry != end;
       entry.increment(error)) {
    if (error) break;
    const std::string name = entry->path().filename().string();
    if (is_ours(name)) continue;
    return Exists(
        path, "found '" + Printable(name) + "' in it; expected " + expected +
                  ", as an export creates it; a folder with other content is never overwritten");
  }
  if (type == S_IFDIR && error) return Failure("read", place, error.value());
  Partial partial(place, overwrite);
  STATCOLLECT_RETURN_IF_ERROR(partial.MakeParents());
  STATCOLLECT_RETURN_IF_ERROR(MakeFolder(partial.path()));
  return partial;
}

Status Partial::Commit() {
  if (TypeOf(path_) == 0) {
    // Must not overwrite a file that was created there meanwhile.
    if (renameat2(AT_FDCWD, partial_.c_str(), AT_FDCWD, path_.c_str(), RENAME_NOREPLACE) == 0) {
      partial_.clear();
      return Status::Ok();
    }
    if (errno != EINVAL && errno != ENOSYS) return Failure("rename to", path_, errno);
  } else if (!overwrite_) {
    return Exists(path_, "it was created while this export ran");
  } else if (TypeOf(path_) == S_IFDIR) {
    // Both are there at every moment; the old one goes as the partial.
    if (renameat2(AT_FDCWD, partial_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) == 0)
      return Status::Ok();
    std::error_code error;
    fs::remove_all(path_, error);  // a file system without exchange
    if (error) return Failure("remove", path_, error.value());
  }
  if (rename(partial_.c_str(), path_.c_str()) != 0) return Failure("rename to", path_, errno);
  partial_.clear();
  return Status::Ok();
}

}  // namespace statcollect::client
