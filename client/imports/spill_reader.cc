#include "client/imports/spill_reader.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "common/checksum.h"
#include "proto/convert.h"
#include "statcollect/v1/ingest.pb.h"

namespace statcollect::client {
namespace {

Status Os(const char* what, int error) {
  return {Code::kDataLoss, std::string(what) + ": " + std::generic_category().message(error)};
}

}  // namespace

Result<std::unique_ptr<SpillReader>> SpillReader::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return Os("cannot open it", errno);
  std::unique_ptr<SpillReader> reader(new SpillReader(fd));
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    return Status(Code::kUnavailable,
                  "a training process, its child or another statctl has it open; the training "
                  "sends it itself, or "
                  "send it after the training has ended");
  }
  STATCOLLECT_RETURN_IF_ERROR(reader->ReadHead());
  return reader;
}

SpillReader::~SpillReader() { close(fd_); }

Status SpillReader::ReadHead() {
  struct stat found {};
  if (fstat(fd_, &found) != 0) return Os("cannot inspect it", errno);
  if (!S_ISREG(found.st_mode)) return {Code::kDataLoss, "it is not a regular file"};
  size_ = static_cast<std::uint64_t>(found.st_size);
  if (size_ < spill::kHeadBytes)
    return {Code::kDataLoss, fmt::format("it is not a spill file of statagent: {} bytes", size_)};
  std::string bytes;
  STATCOLLECT_RETURN_IF_ERROR(ReadAt(0, spill::kHeadBytes, &bytes));
  const auto head = spill::DecodeHead(std::string_view(bytes).substr(0, spill::kMarkAt));
  if (!head.ok()) return head.status();
  const auto mark = spill::DecodeMark(std::string_view(bytes).substr(spill::kMarkAt));
  if (!mark.ok()) return mark.status();
  if (mark->offset < head->frames_at() || mark->offset > size_) {
    return {Code::kDataLoss,
            fmt::format("its first frame should be at byte {} of {}; expected {} or more",
                        mark->offset, size_, head->frames_at())};
  }
  STATCOLLECT_RETURN_IF_ERROR(ReadAt(spill::kHeadBytes, head->hello_bytes, &bytes));
  v1::AgentMessage message;
  if (Crc32c(bytes) != head->hello_crc || !message.ParseFromString(bytes) || !message.has_hello())
    return {Code::kDataLoss, "the hello in it is damaged"};
  auto session = FromWire(message.hello());
  if (!session.ok()) return session.status();
  session_ = *std::move(session);
  first_seq_ = mark->seq;
  at_ = mark->offset;
  bytes_ = size_ - at_;
  return Status::Ok();
}

Result<std::optional<SpillReader::Frame>> SpillReader::Next() {
  while (at_ < size_ && !goodbye_) {
    const std::uint64_t left = size_ - at_;
    const auto torn = [&]() -> std::optional<Frame> {
      torn_bytes_ = left;
      at_ = size_;
      return std::nullopt;
    };
    if (left < spill::kFrameHeadBytes) return torn();
    std::string bytes;
    STATCOLLECT_RETURN_IF_ERROR(ReadAt(at_, spill::kFrameHeadBytes, &bytes));
    const auto head = spill::DecodeFrameHead(bytes);
    if (!head.ok())
      return Status(Code::kDataLoss,
                    fmt::format("at byte {} of {}: {}", at_, size_, head.status().message()));
    if (left - spill::kFrameHeadBytes < head->payload_bytes) return torn();
    Frame frame{.records = head->records, .payload = {}};
    STATCOLLECT_RETURN_IF_ERROR(
        ReadAt(at_ + spill::kFrameHeadBytes, head->payload_bytes, &frame.payload));
    if (Crc32c(frame.payload) != head->payload_crc) {
      return Status(Code::kDataLoss,
                    fmt::format("at byte {} of {}: a frame of {} records is damaged", at_, size_,
                                head->records));
    }
    at_ += spill::kFrameHeadBytes + head->payload_bytes;
    if (frame.records > 0) return std::optional(std::move(frame));
    v1::AgentMessage message;
    if (!message.ParseFromString(frame.payload) || !message.has_goodbye())
      return Status(Code::kDataLoss, "its last frame is not a goodbye");
    goodbye_ = FromWire(message.goodbye().counters());
  }
  return std::optional<Frame>();
}

Status SpillReader::ReadAt(std::uint64_t offset, std::size_t size, std::string* bytes) const {
  bytes->resize(size);
  std::size_t done = 0;
  while (done < size) {
    const ssize_t n =
        pread(fd_, bytes->data() + done, size - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Os("cannot read it", errno);
    if (n == 0) return {Code::kDataLoss, fmt::format("it ends at byte {}", offset + done)};
    done += static_cast<std::size_t>(n);
  }
  return Status::Ok();
}

}  // namespace statcollect::client
