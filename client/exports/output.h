// Files and folders that appear whole or not at all: they grow beside their place, under a name that says
// that they are not finished, and are renamed at the end.
#ifndef STATCOLLECT_CLIENT_EXPORTS_OUTPUT_H_
#define STATCOLLECT_CLIENT_EXPORTS_OUTPUT_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/status.h"

namespace statcollect::client {

// A buffered file; errors say the path and the next step. Not thread-safe.
class FileWriter {
 public:
  // Makes the file; it must not exist.
  static Result<FileWriter> Create(const std::string& path);
  static FileWriter StandardOutput();
  FileWriter(FileWriter&& other) noexcept;
  FileWriter& operator=(FileWriter&&) = delete;
  ~FileWriter();  // closes it, without its buffer

  Status Write(std::string_view text) {
    buffer_ += text;
    return buffer_.size() < kBufferBytes ? Status::Ok() : Flush();
  }
  // For appending without a copy; call Flushed afterwards.
  std::string& buffer() { return buffer_; }
  Status Flushed() { return buffer_.size() < kBufferBytes ? Status::Ok() : Flush(); }
  Status Flush();
  // Flushes and closes; `sync`: after the bytes are on the disk.
  Status Close(bool sync = false);
  const std::string& path() const { return path_; }

 private:
  static constexpr std::size_t kBufferBytes = 1u << 18;
  FileWriter(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  int fd_;
  std::string buffer_;
};

// Makes a small file with that text.
Status WriteNewFile(const std::string& path, std::string_view text);
// Makes the folder; its parent is there.
Status MakeFolder(const std::string& path);

// "PATH.partial-PID" until Commit. Destroyed before, it removes that.
class Partial {
 public:
  // kAlreadyExists without `overwrite`; with it only a regular file is replaced. Nothing is made.
  static Result<Partial> File(const std::string& path, bool overwrite);
  // Makes the partial folder. With `overwrite` a folder is replaced in which `is_ours` is true for each
  // entry's name: nothing that an export has not made is ever removed.
  static Result<Partial> Folder(const std::string& path, bool overwrite,
                                const std::function<bool(std::string_view)>& is_ours,
                                const std::string& expected);
  Partial(Partial&& other) noexcept;
  Partial& operator=(Partial&&) = delete;
  ~Partial();

  const std::string& path() const { return partial_; }  // where to write
  // Puts it in its place, in one step.
  Status Commit();

 private:
  Partial(std::string path, bool overwrite);

  std::string path_, partial_;
  bool overwrite_ = false;
};

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_EXPORTS_OUTPUT_H_
