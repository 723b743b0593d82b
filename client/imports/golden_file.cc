#include "client/imports/golden_file.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "common/checksum.h"

namespace statcollect::client {
namespace {

// Each frame: its size and CRC-32C, 4 bytes each, little endian; then that many bytes.
constexpr std::string_view kMagic = "statcollect golden 1\n";
constexpr std::size_t kFrameHeadBytes = 8;
constexpr std::size_t kFrameBytesMax = std::size_t{64} << 20;

void AppendNumber(std::uint32_t value, std::string& to) {
  for (int shift = 0; shift < 32; shift += 8) to += static_cast<char>(value >> shift & 0xff);
}

std::uint32_t NumberAt(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i)
    value |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  return value;
}

std::string Frame(const google::protobuf::Message& message) {
  const std::string payload = message.SerializeAsString();
  std::string frame;
  AppendNumber(static_cast<std::uint32_t>(payload.size()), frame);
  AppendNumber(Crc32c(payload), frame);
  return frame + payload;
}

Status Damaged(const std::string& what) {
  return {Code::kDataLoss, what + "; expected a whole file of statctl golden save; save it again"};
}

}  // namespace

std::string GoldenHead(const v1::GetRunResponse& run) { return std::string(kMagic) + Frame(run); }

std::string GoldenFrame(const v1::ReadRecordsResponse& message) { return Frame(message); }

std::string GoldenEnd(std::uint64_t messages, std::uint64_t tensors) {
  v1::ReadRecordsResponse end;
  end.mutable_progress()->set_done(messages);
  end.mutable_progress()->set_total(tensors);
  return Frame(end);
}

std::uint64_t RecordsIn(const v1::Records& records) {
  return static_cast<std::uint64_t>(records.stats().activation_size()) +
         static_cast<std::uint64_t>(records.scalars_size()) +
         static_cast<std::uint64_t>(records.events_size()) +
         static_cast<std::uint64_t>(records.memory_size()) +
         static_cast<std::uint64_t>(records.densities_size()) +
         static_cast<std::uint64_t>(records.settings_size()) +
         static_cast<std::uint64_t>(records.steps_size()) +
         static_cast<std::uint64_t>(records.captures_size()) +
         static_cast<std::uint64_t>(records.exponents_size()) +
         static_cast<std::uint64_t>(records.tokens_size());
}

Result<std::unique_ptr<GoldenReader>> GoldenReader::Open(const std::string& path) {
  std::unique_ptr<GoldenReader> reader(new GoldenReader(path));
  if (!reader->file_.is_open()) {
    return Status(Code::kNotFound, "cannot open it: " + std::generic_category().message(errno) +
                                       "; expected a file of statctl golden save");
  }
  STATCOLLECT_RETURN_IF_ERROR(reader->ReadHead());
  return reader;
}

Status GoldenReader::ReadHead() {
  const auto magic = Read(kMagic.size());
  if (!magic.ok() || *magic != kMagic) {
    const bool newer = magic.ok() && magic->starts_with("statcollect golden ");
    return newer ? Status(Code::kFailedPrecondition,
                          "its format version is unknown; expected version 1; use the statctl that "
                          "saved it")
                 : Damaged("it is not a golden");
  }
  const auto payload = ReadFrame();
  if (!payload.ok()) return payload.status();
  return run_.ParseFromString(*payload) ? Status::Ok() : Damaged("the run in it cannot be read");
}

Result<std::string> GoldenReader::Read(std::size_t size) {
  std::string bytes(size, '\0');
  file_.read(bytes.data(), static_cast<std::streamsize>(size));
  if (static_cast<std::size_t>(file_.gcount()) != size)
    return Damaged(fmt::format("it ends after {} bytes, in the middle of a record", bytes_));
  checksum_ = Crc32c(bytes, checksum_);
  bytes_ += size;
  return bytes;
}

Result<std::string> GoldenReader::ReadFrame() {
  const std::uint64_t at = bytes_;
  const auto head = Read(kFrameHeadBytes);
  if (!head.ok()) return head.status();
  const std::uint32_t size = NumberAt(*head, 0), crc = NumberAt(*head, 4);
  if (size > kFrameBytesMax) return Damaged(fmt::format("it is damaged at byte {}", at));
  auto payload = Read(size);
  if (payload.ok() && Crc32c(*payload) != crc)
    return Damaged(fmt::format("it is damaged at byte {}", at));
  return payload;
}

Result<std::optional<v1::ReadRecordsResponse>> GoldenReader::Next() {
  if (ended_) return std::optional<v1::ReadRecordsResponse>();
  const auto payload = ReadFrame();
  if (!payload.ok()) return payload.status();
  v1::ReadRecordsResponse message;
  if (!message.ParseFromString(*payload)) return Damaged("a message in it cannot be read");
  if (!message.has_progress()) {
    ++messages_;
    tensors_ += static_cast<std::uint64_t>(message.records().stats().activation_size());
    return std::optional(std::move(message));
  }
  if (message.progress().done() != messages_ || message.progress().total() != tensors_) {
    return Damaged(fmt::format("it has {} messages with {} tensors, and its end says {} with {}",
                               messages_, tensors_, message.progress().done(),
                               message.progress().total()));
  }
  if (file_.peek() != std::ifstream::traits_type::eof())
    return Damaged("there are bytes after its end");
  ended_ = true;
  return std::optional<v1::ReadRecordsResponse>();
}

}  // namespace statcollect::client
