#include "agent/export/spill_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/checksum.h"
#include "common/names.h"
#include "common/read_at.h"
#include "common/ring_format.h"
#include "common/text.h"

namespace statcollect {
namespace {

// The head stays, and file systems free whole blocks.
constexpr std::uint64_t kBlockBytes = 4096;

Status ReadExactly(int fd, std::uint64_t offset, std::size_t size, std::string* bytes) {
  const ssize_t done = ReadAt(fd, offset, size, bytes);
  if (done < 0) return {Code::kDataLoss, std::generic_category().message(errno)};
  if (static_cast<std::size_t>(done) < size) return {Code::kDataLoss, "the file ends too early"};
  return Status::Ok();
}

}  // namespace

std::string SpillPath(const std::string& folder, std::uint32_t rank, const SessionId& session,
                      std::string_view suffix) {
  const std::string name = "rank" + std::to_string(rank) + "-" + HexOf(session);
  return (std::filesystem::path(folder) / (name + std::string(suffix))).string();
}

std::size_t CountLeftFiles(const std::string& folder) {
  constexpr std::size_t kLeftMax = 1000;
  std::size_t left = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end;
       !error && it != end && left < kLeftMax; it.increment(error)) {
    const auto suffix = it->path().extension();
    if (suffix != spill::kSuffix && suffix != ring::kSuffix) continue;
    const int fd = open(it->path().c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) continue;  // another user's
    struct stat found {};
    // An empty one is not locked yet: its process has just made it.
    const bool whole = fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && found.st_size > 0;
    if (whole && flock(fd, LOCK_SH | LOCK_NB) == 0) ++left;
    close(fd);
  }
  return left;
}

SpillFile::SpillFile(SpillOptions options, std::uint32_t rank, const SessionId& session,
                     std::string hello)
    : options_(std::move(options)),
      hello_(std::move(hello)),
      path_(SpillPath(options_.directory, rank, session, spill::kSuffix)) {}

void SpillFile::Close() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

Status CheckSpillDirectory(const std::string& directory) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(directory + "/").parent_path();
  if (folder.has_parent_path()) std::filesystem::create_directories(folder.parent_path(), error);
  // Whatever the process's umask says: what is in it is for this user only.
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    error.assign(errno, std::generic_category());
  if (!error && access(directory.c_str(), W_OK | X_OK) == 0) return Status::Ok();
  if (!error) error.assign(errno, std::generic_category());
  return {Code::kInvalidArgument,
          "start the agent: spill_dir '" + Printable(directory) + "': " + error.message() +
              "; expected a folder on a local disk that this process may write to"};
}

std::string SpillFile::Remark() const {
  struct stat found {};
  constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;
  if (stat(options_.directory.c_str(), &found) != 0 || (found.st_mode & kOthersWrite) == 0 ||
      (found.st_mode & S_ISVTX) != 0)
    return {};
  return "spill_dir '" + Printable(options_.directory) +
         "': other users may remove files in this folder; expected one that only this user may "
         "write to (chmod "
         "go-w), or one with the sticky bit, such as /tmp";
}

bool SpillFile::Fits(std::size_t payload_bytes) const {
  const std::uint64_t before = exists() ? bytes() : spill::kHeadBytes + hello_.size();
  return before + spill::kFrameHeadBytes + payload_bytes <= options_.bytes_max;
}

Status SpillFile::Create(std::uint64_t seq) {
  fd_ = open(path_.c_str(), O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd_ < 0) return Failed("make", errno);
  (void)flock(fd_, LOCK_EX | LOCK_NB);  // nobody else knows the name yet
  end_ = spill::kHeadBytes + hello_.size();
  freed_ = 0;
  const Status written = WriteAt(
      0, spill::EncodeHead(hello_) + spill::EncodeMark({.offset = end_, .seq = seq}) + hello_);
  if (!written.ok()) Remove();
  return written;
}

Status SpillFile::Append(const EncodedBatch& batch, FileSpan* at) {
  return AppendFrame({.payload_bytes = static_cast<std::uint32_t>(batch.bytes.size()),
                      .records = batch.records,
                      .activations_before = batch.before.activations,
                      .layouts_before = batch.before.layouts,
                      .activations_after = batch.after.activations,
                      .layouts_after = batch.after.layouts,
                      .payload_crc = Crc32c(batch.bytes)},
                     batch.bytes, at);
}

Status SpillFile::AppendGoodbye(std::string_view message) {
  FileSpan at;
  return AppendFrame(
      {.payload_bytes = static_cast<std::uint32_t>(message.size()), .payload_crc = Crc32c(message)},
      message, &at);
}

Status SpillFile::AppendFrame(const spill::FrameHead& frame, std::string_view payload,
                              FileSpan* at) {
  Status written = WriteAt(end_, spill::EncodeFrameHead(frame));
  if (written.ok()) written = WriteAt(end_ + spill::kFrameHeadBytes, payload);
  if (!written.ok()) {
    (void)!ftruncate(fd_, static_cast<off_t>(end_));
    return written;
  }
  *at = {.begin = end_, .end = end_ + spill::kFrameHeadBytes + payload.size()};
  end_ = at->end;
  return Status::Ok();
}

Status SpillFile::Write(const spill::Mark& mark) {
  return WriteAt(spill::kMarkAt, spill::EncodeMark(mark));
}

void SpillFile::FreeBefore(std::uint64_t offset) {
  const std::uint64_t first =
      (spill::kHeadBytes + hello_.size() + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  const std::uint64_t last = offset / kBlockBytes * kBlockBytes;
  if (last <= first + freed_) return;
  const std::uint64_t more = last - first - freed_;
  if (fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(first + freed_),
                static_cast<off_t>(more)) == 0) {
    freed_ += more;
  }
}

void SpillFile::Hide() { hidden_ = hidden_ || unlink(path_.c_str()) == 0; }

void SpillFile::Remove() {
  if (fd_ < 0) return;
  if (!std::exchange(hidden_, false)) (void)unlink(path_.c_str());
  (void)!ftruncate(fd_, 0);  // a forked child may hold it open
  Close();
}

Result<EncodedBatch> SpillFile::Read(std::uint64_t offset, spill::FrameHead* frame) const {
  *frame = {};
  EncodedBatch batch;
  std::string head;
  STATCOLLECT_RETURN_IF_ERROR(ReadExactly(fd_, offset, spill::kFrameHeadBytes, &head));
  auto decoded = spill::DecodeFrameHead(head);
  if (!decoded.ok()) return decoded.status();
  *frame = *decoded;
  STATCOLLECT_RETURN_IF_ERROR(
      ReadExactly(fd_, offset + spill::kFrameHeadBytes, frame->payload_bytes, &batch.bytes));
  ++progress_;
  if (Crc32c(batch.bytes) != frame->payload_crc)
    return Status(Code::kDataLoss, "a frame is damaged");
  batch.records = frame->records;
  batch.before = {.activations = frame->activations_before, .layouts = frame->layouts_before};
  batch.after = {.activations = frame->activations_after, .layouts = frame->layouts_after};
  batch.file = {.begin = offset, .end = offset + spill::kFrameHeadBytes + frame->payload_bytes};
  return batch;
}

Status SpillFile::WriteAt(std::uint64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    ++progress_;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed("write", errno);
    bytes.remove_prefix(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return Status::Ok();
}

Status SpillFile::Failed(const char* what, int error) const {
  return {
      error == ENOSPC || error == EDQUOT ? Code::kResourceExhausted : Code::kInternal,
      std::string(what) + " spill file " + path_ + ": " + std::generic_category().message(error)};
}

}  // namespace statcollect
