// Files and folders that appear completely or not at all: they are written next to their final
// path, under a name that marks them as unfinished, and renamed at the end.
#ifndef STATCOLLECT_CLIENT_EXPORTS_OUTPUT_H_
#define STATCOLLECT_CLIENT_EXPORTS_OUTPUT_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/status.h"

namespace statcollect::client {

// A buffered file. Errors name the path and the next step. Not thread-safe.
class FileWriter {
 public:
  // Creates the file; it must not exist.
  static Result<FileWriter> Create(const std::string& path);
  static FileWriter StandardOutput();
  // Takes the open descriptor; `name` stands for the path in errors.
  static FileWriter Of(std::string name, int fd) { return {std::move(name), fd}; }
  FileWriter(FileWriter&& other) noexcept;
  FileWriter& operator=(FileWriter&&) = delete;
  ~FileWriter();  // closes it without flushing

  Status Write(std::string_view text) {
    buffer_ += text;
    return buffer_.size() < kBufferBytes ? Status::Ok() : Flush();
  }
  // For appending without a copy; call Flushed afterwards.
  std::string& buffer() { return buffer_; }
  Status Flushed() { return buffer_.size() < kBufferBytes ? Status::Ok() : Flush(); }
  Status Flush();
  // Flushes and closes the file. `sync`: waits until the bytes are on disk.
  Status Close(bool sync = false);
  const std::string& path() const { return path_; }

 private:
  static constexpr std::size_t kBufferBytes = 1u << 18;
  FileWriter(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  int fd_;
  std::string buffer_;
};

// Creates a small file with this text.
Status WriteNewFile(const std::string& path, std::string_view text);
// Creates the folder; its parent must exist.
Status MakeFolder(const std::string& path);

// "PATH.partial-PID" until Commit; the destructor removes it if it was not committed, with the
// parent folders that were made.
class Partial {
 public:
  // kAlreadyExists without `overwrite`; with it, only a regular file is replaced. Creates missing
  // parent folders only.
  static Result<Partial> File(const std::string& path, bool overwrite);
  // Creates missing parent folders and the partial folder. With `overwrite`, a folder is replaced
  // only if `is_ours` is true for the name of each entry, so only exports are ever removed.
  static Result<Partial> Folder(const std::string& path, bool overwrite,
                                const std::function<bool(std::string_view)>& is_ours,
                                const std::string& expected);
  Partial(Partial&& other) noexcept;
  Partial& operator=(Partial&&) = delete;
  ~Partial();

  const std::string& path() const { return partial_; }  // where to write
  // Renames it to its final path, atomically.
  Status Commit();

 private:
  Partial(std::string path, bool overwrite);
  Status MakeParents();

  std::string path_, partial_;
  std::string made_;  // the highest of the parent folders that were made; empty: none was
  bool overwrite_ = false;
};

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_EXPORTS_OUTPUT_H_
