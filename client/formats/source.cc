#include "client/formats/source.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "common/names.h"
#include "common/parse.h"

namespace statcollect::client::formats {
namespace {

constexpr std::size_t kFoundBytesMax = 120;
constexpr std::size_t kReadBytes = std::size_t{64} << 10;

Status FromErrno(const std::string& what, const std::string& path, int error) {
  Code code = Code::kUnknown;
  if (error == ENOENT) code = Code::kNotFound;
  if (error == EACCES || error == EPERM) code = Code::kPermissionDenied;
  if (error == ENOTDIR || error == ELOOP) code = Code::kInvalidArgument;
  const std::string reason = error == ELOOP
                                 ? "it is a symbolic link; links inside a dump are not followed"
                                 : std::string(std::strerror(error));
  return {code, what + " '" + Printable(path, 4000) + "': " + reason};
}

bool IsComponent(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

EntryType TypeOf(mode_t mode) {
  if (S_ISREG(mode)) return EntryType::kFile;
  if (S_ISDIR(mode)) return EntryType::kFolder;
  return S_ISLNK(mode) ? EntryType::kLink : EntryType::kOther;
}

// Runs of digits compare by value, everything else by bytes.
bool NaturalLess(const std::string& a, const std::string& b) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (!digit(a[i]) || !digit(b[j])) {
      if (a[i] != b[j]) return static_cast<unsigned char>(a[i]) < static_cast<unsigned char>(b[j]);
      ++i, ++j;
      continue;
    }
    const auto run = [&](const std::string& text, std::size_t& at) {
      while (at < text.size() && text[at] == '0') ++at;
      const std::size_t begin = at;
      while (at < text.size() && digit(text[at])) ++at;
      return std::string_view(text).substr(begin, at - begin);
    };
    const std::string_view x = run(a, i), y = run(b, j);
    if (x.size() != y.size()) return x.size() < y.size();
    if (x != y) return x < y;
  }
  if ((i < a.size()) != (j < b.size())) return j < b.size();
  return a < b;
}

// Opens a regular file; a pipe or a device does not make it wait.
Result<FileSource> OpenRegular(int folder, const std::string& name, int flags,
                               const std::string& path, std::uint64_t* bytes) {
  const int fd = openat(folder, name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags);
  if (fd < 0) return FromErrno("open", path, errno);
  FileSource file(path, fd, bytes);
  struct stat status {};
  if (fstat(fd, &status) != 0) return FromErrno("look at", path, errno);
  if (S_ISREG(status.st_mode)) return file;
  return Status(Code::kInvalidArgument,
                "open '" + Printable(path, 4000) + "': found " +
                    (S_ISDIR(status.st_mode) ? "a folder" : "not a regular file") +
                    "; expected a file");
}

}  // namespace

Status BadInput(const std::string& path, std::uint64_t line, std::string_view found,
                const std::string& expected) {
  return {Code::kInvalidArgument, Printable(path, 4000) +
                                      (line > 0 ? ":" + std::to_string(line) : "") + ": found " +
                                      Printable(found, kFoundBytesMax) + "; expected " + expected};
}

Result<std::size_t> ByteSource::ReadUpTo(char* to, std::size_t size) {
  std::size_t done = 0;
  while (done < size) {
    const auto read = Read(to + done, size - done);
    if (!read.ok()) return read.status();
    if (*read == 0) break;
    done += *read;
  }
  return done;
}

Result<std::size_t> MemorySource::Read(char* to, std::size_t size) {
  const std::size_t count = std::min(size, rest_.size());
  std::memcpy(to, rest_.data(), count);
  rest_.remove_prefix(count);
  return count;
}

Status MemorySource::Seek(std::uint64_t position) {
  rest_ = whole_.substr(static_cast<std::size_t>(std::min<std::uint64_t>(position, whole_.size())));
  return Status::Ok();
}

FileSource::~FileSource() {
  if (fd_ >= 0) close(fd_);
}

FileSource::FileSource(FileSource&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), bytes_(other.bytes_) {}

Result<std::size_t> FileSource::Read(char* to, std::size_t size) {
  while (true) {
    const ssize_t got = read(fd_, to, size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FromErrno("read", path_, errno);
    if (bytes_ != nullptr) *bytes_ += static_cast<std::uint64_t>(got);
    return static_cast<std::size_t>(got);
  }
}

Status FileSource::Seek(std::uint64_t position) {
  constexpr std::uint64_t kFurthest = std::uint64_t{1} << 62;
  return lseek(fd_, static_cast<off_t>(std::min(position, kFurthest)), SEEK_SET) < 0
             ? FromErrno("read", path_, errno)
             : Status::Ok();
}

Result<std::uint64_t> FileSource::Size() const {
  struct stat status {};
  if (fstat(fd_, &status) != 0) return FromErrno("look at", path_, errno);
  return static_cast<std::uint64_t>(status.st_size);
}

Result<Folder> Folder::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return FromErrno("open folder", path, errno);
  return Folder(path, fd);
}

Folder::~Folder() {
  if (fd_ >= 0) close(fd_);
}

Folder::Folder(Folder&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

Folder& Folder::operator=(Folder&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

std::string Folder::PathOf(const std::string& name) const {
  return path_ + (path_.ends_with('/') ? "" : "/") + name;
}

Result<std::vector<Entry>> Folder::List() const {
  const int fd = openat(fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return FromErrno("list folder", path_, errno);
  const auto closer = [](DIR* directory) { closedir(directory); };
  const std::unique_ptr<DIR, decltype(closer)> directory(fdopendir(fd), closer);
  if (directory == nullptr) {
    close(fd);
    return FromErrno("list folder", path_, errno);
  }
  std::vector<Entry> entries;
  errno = 0;
  while (const dirent* found = readdir(directory.get())) {
    Entry entry{.name = found->d_name};
    struct stat status {};
    if (!IsComponent(entry.name) || fstatat(fd_, found->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0)
      continue;
    entry.type = TypeOf(status.st_mode);
    entry.bytes = static_cast<std::uint64_t>(status.st_size);
    entry.modified_nanos =
        static_cast<std::int64_t>(status.st_mtim.tv_sec) * 1'000'000'000 + status.st_mtim.tv_nsec;
    entries.push_back(std::move(entry));
    if (entries.size() > kFolderEntriesMax) {
      return BadInput(path_, 0, "more than " + std::to_string(kFolderEntriesMax) + " entries",
                      "fewer");
    }
    errno = 0;
  }
  if (errno != 0) return FromErrno("list folder", path_, errno);
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return NaturalLess(a.name, b.name); });
  return entries;
}

Result<Folder> Folder::Sub(const std::string& name) const {
  const std::string path = PathOf(name);
  if (!IsComponent(name)) return BadInput(path_, 0, "'" + name + "'", "a folder name");
  const int fd = openat(fd_, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return FromErrno("open folder", path, errno);
  return Folder(path, fd);
}

Result<FileSource> Folder::OpenFile(const std::string& name, std::uint64_t* bytes) const {
  if (!IsComponent(name)) return BadInput(path_, 0, "'" + name + "'", "a file name");
  return OpenRegular(fd_, name, O_NOFOLLOW, PathOf(name), bytes);
}

Result<FileSource> OpenNamedFile(const std::string& path, std::uint64_t* bytes) {
  return OpenRegular(AT_FDCWD, path, 0, path, bytes);
}

Result<bool> IsFolder(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return FromErrno("look at", path, errno);
  return S_ISDIR(status.st_mode);
}

void LineReader::Reset(ByteSource& source) {
  source_ = &source;
  begin_ = end_ = 0;
  line_ = 0;
  at_end_ = false;
}

Result<bool> LineReader::Fill() {
  if (at_end_) return false;
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (buffer_.size() < end_ + kReadBytes) buffer_.resize(end_ + kReadBytes);
  const auto got = source_->Read(buffer_.data() + end_, buffer_.size() - end_);
  if (!got.ok()) return got.status();
  at_end_ = *got == 0;
  end_ += *got;
  return !at_end_;
}

Result<bool> LineReader::Next(std::string_view* line) {
  std::size_t searched = 0;
  ++line_;
  while (true) {
    const std::string_view rest(buffer_.data() + begin_, end_ - begin_);
    const std::size_t stop = rest.find('\n', searched);
    if (stop != std::string_view::npos && stop <= kLineBytesMax) {
      *line = rest.substr(0, stop);
      if (line->ends_with('\r')) line->remove_suffix(1);
      begin_ += stop + 1;
      return true;
    }
    searched = rest.size();
    if (searched > kLineBytesMax) {
      return Bad("a line of more than " + std::to_string(kLineBytesMax) + " bytes",
                 "text in shorter lines");
    }
    const auto more = Fill();
    if (!more.ok()) return more.status();
    if (*more) continue;
    if (begin_ == end_) {
      --line_;
      return false;
    }
    *line = std::string_view(buffer_.data() + begin_, end_ - begin_);
    begin_ = end_;
    return true;
  }
}

Result<NumberPattern> NumberPattern::Parse(const std::string& text) {
  for (const std::string_view hole : {"{}", "{rank}"}) {
    const std::size_t at = text.find(hole);
    if (at == std::string::npos) continue;
    const std::string prefix = text.substr(0, at), suffix = text.substr(at + hole.size());
    const bool plain = (prefix + suffix).find_first_of("{}/") == std::string::npos;
    if (plain) return NumberPattern(prefix, suffix);
  }
  return Status(Code::kInvalidArgument,
                "--rank-pattern: found '" + Printable(text) +
                    "'; expected the name of a folder with one {} or {rank} where the "
                    "rank stands, such as rank{} or out_{rank}");
}

std::optional<std::uint64_t> NumberPattern::Match(std::string_view name) const {
  if (name.size() < prefix_.size() + suffix_.size() || !name.starts_with(prefix_) ||
      !name.ends_with(suffix_))
    return std::nullopt;
  return ParseUnsigned(name.substr(prefix_.size(), name.size() - prefix_.size() - suffix_.size()));
}

std::optional<std::uint64_t> ParseUnsigned(std::string_view text) {
  return ParseNumber<std::uint64_t>(text);
}

std::optional<double> ParseDouble(std::string_view text) { return ParseNumber<double>(text); }

}  // namespace statcollect::client::formats
