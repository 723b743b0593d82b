#include "client/imports/spill_reader.h"

#include <unistd.h>

#include <utility>

#include <fmt/format.h>

#include "client/imports/locked_file.h"
#include "common/checksum.h"
#include "proto/convert.h"
#include "statcollect/v1/ingest.pb.h"

namespace statcollect::client {

Result<std::unique_ptr<SpillReader>> SpillReader::Open(const std::string& path) {
  const auto fd = OpenLocked(path);
  if (!fd.ok()) return fd.status();
  std::unique_ptr<SpillReader> reader(new SpillReader(*fd));
  STATCOLLECT_RETURN_IF_ERROR(reader->ReadHead());
  return reader;
}

SpillReader::~SpillReader() { close(fd_); }

Status SpillReader::ReadHead() {
  STATCOLLECT_ASSIGN_OR_RETURN(size_, SizeOf(fd_));
  if (size_ < spill::kHeadBytes)
    return {Code::kDataLoss, fmt::format("it is not a spill file of statagent: {} bytes", size_)};
  std::string bytes;
  STATCOLLECT_RETURN_IF_ERROR(ReadExactly(fd_, 0, spill::kHeadBytes, &bytes));
  const auto head = spill::DecodeHead(std::string_view(bytes).substr(0, spill::kMarkAt));
  if (!head.ok()) return head.status();
  const auto mark = spill::DecodeMark(std::string_view(bytes).substr(spill::kMarkAt));
  if (!mark.ok()) return mark.status();
  if (mark->offset < head->frames_at() || mark->offset > size_) {
    return {Code::kDataLoss,
            fmt::format("its first frame should be at byte {} of {}; expected {} or more",
                        mark->offset, size_, head->frames_at())};
  }
  STATCOLLECT_RETURN_IF_ERROR(ReadExactly(fd_, spill::kHeadBytes, head->hello_bytes, &bytes));
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
    STATCOLLECT_RETURN_IF_ERROR(ReadExactly(fd_, at_, spill::kFrameHeadBytes, &bytes));
    const auto head = spill::DecodeFrameHead(bytes);
    if (!head.ok())
      return Status(Code::kDataLoss,
                    fmt::format("at byte {} of {}: {}", at_, size_, head.status().message()));
    if (left - spill::kFrameHeadBytes < head->payload_bytes) return torn();
    Frame frame{.records = head->records, .payload = {}};
    STATCOLLECT_RETURN_IF_ERROR(
        ReadExactly(fd_, at_ + spill::kFrameHeadBytes, head->payload_bytes, &frame.payload));
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

}  // namespace statcollect::client
