// Files of an untrusted dump: links inside it are not followed, only regular files are opened, and
// lines are bounded.
#ifndef STATCOLLECT_CLIENT_FORMATS_SOURCE_H_
#define STATCOLLECT_CLIENT_FORMATS_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace statcollect::client::formats {

inline constexpr std::size_t kLineBytesMax = std::size_t{1} << 20;
inline constexpr std::size_t kFolderEntriesMax = 8'000'000;

// "PATH:LINE: found ...; expected ..." (LINE 0: omitted). All parts are made printable.
Status BadInput(const std::string& path, std::uint64_t line, std::string_view found,
                const std::string& expected);

// A sequence of bytes.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Up to `size` bytes; 0 at the end.
  virtual Result<std::size_t> Read(char* to, std::size_t size) = 0;
  // Where the next Read begins, in bytes from the start; beyond the end, nothing is read.
  virtual Status Seek(std::uint64_t position) = 0;
  virtual Result<std::uint64_t> Size() const = 0;
  // For messages.
  virtual const std::string& path() const = 0;
  // `size` bytes, or as many as there are.
  Result<std::size_t> ReadUpTo(char* to, std::size_t size);
};

// Text in memory, also for tests.
class MemorySource final : public ByteSource {
 public:
  MemorySource(std::string path, std::string_view text)
      : path_(std::move(path)), whole_(text), rest_(text) {}
  Result<std::size_t> Read(char* to, std::size_t size) override;
  Status Seek(std::uint64_t position) override;
  Result<std::uint64_t> Size() const override { return whole_.size(); }
  const std::string& path() const override { return path_; }

 private:
  const std::string path_;
  const std::string_view whole_;
  std::string_view rest_;
};

// A regular file, closed by the destructor.
class FileSource final : public ByteSource {
 public:
  FileSource(std::string path, int fd, std::uint64_t* bytes)
      : path_(std::move(path)), fd_(fd), bytes_(bytes) {}
  ~FileSource() override;
  FileSource(FileSource&& other) noexcept;
  FileSource& operator=(FileSource&&) = delete;
  Result<std::size_t> Read(char* to, std::size_t size) override;
  Status Seek(std::uint64_t position) override;
  Result<std::uint64_t> Size() const override;
  const std::string& path() const override { return path_; }

 private:
  std::string path_;
  int fd_;
  std::uint64_t* bytes_;  // incremented by the bytes read; may be null
};

enum class EntryType { kFile, kFolder, kLink, kOther };

struct Entry {
  std::string name;
  EntryType type = EntryType::kOther;
  std::uint64_t bytes = 0;
  std::int64_t modified_nanos = 0;
};

// An open folder. Names passed to it are single components: no "/", not "." or "..".
class Folder {
 public:
  // Follows a link, because the user named it.
  static Result<Folder> Open(const std::string& path);
  ~Folder();
  Folder(Folder&& other) noexcept;
  Folder& operator=(Folder&& other) noexcept;

  const std::string& path() const { return path_; }
  std::string PathOf(const std::string& name) const;
  // Sorted by name, numbers in it by value ("step_9" before "step_10").
  Result<std::vector<Entry>> List() const;
  Result<Folder> Sub(const std::string& name) const;
  // kNotFound if there is no such file.
  Result<FileSource> OpenFile(const std::string& name, std::uint64_t* bytes = nullptr) const;

 private:
  Folder(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  int fd_ = -1;
};

// Opens a file that the user named; follows a link.
Result<FileSource> OpenNamedFile(const std::string& path, std::uint64_t* bytes = nullptr);
// Whether it is a folder. kNotFound, kPermissionDenied.
Result<bool> IsFolder(const std::string& path);

// Splits a source into lines of at most kLineBytesMax bytes. One reader can serve several sources,
// one after the other.
class LineReader {
 public:
  LineReader() = default;
  // Starts at the first line of the source, which must outlive the reading.
  void Reset(ByteSource& source);
  // False at the end. The line excludes its end ("\n", "\r\n") and is valid until the next call.
  Result<bool> Next(std::string_view* line);
  // Number of the line that Next returned last, from 1.
  std::uint64_t line() const { return line_; }
  const std::string& path() const { return source_->path(); }
  Status Bad(std::string_view found, const std::string& expected) const {
    return BadInput(path(), line_, found, expected);
  }

 private:
  // Reads more; false at the end.
  Result<bool> Fill();

  ByteSource* source_ = nullptr;
  std::string buffer_;
  std::size_t begin_ = 0, end_ = 0;  // bytes read and not returned yet
  std::uint64_t line_ = 0;
  bool at_end_ = false;
};

// A name with a number in it: "rank{}" or "out_{rank}".
class NumberPattern {
 public:
  // kInvalidArgument unless there is exactly one {} or {rank}.
  static Result<NumberPattern> Parse(const std::string& text);
  NumberPattern(std::string prefix, std::string suffix)
      : prefix_(std::move(prefix)), suffix_(std::move(suffix)) {}
  std::optional<std::uint64_t> Match(std::string_view name) const;

 private:
  std::string prefix_, suffix_;
};

// Empty unless the whole text is a number in range.
std::optional<std::uint64_t> ParseUnsigned(std::string_view text);
// Empty unless the whole text is a number (including "nan", "inf", "1e-05") that a double can hold.
std::optional<double> ParseDouble(std::string_view text);

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_CLIENT_FORMATS_SOURCE_H_
