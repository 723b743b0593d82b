#include "common/spill_format.h"

#include <cassert>

#include "common/checksum.h"

namespace statcollect::spill {
namespace {

constexpr std::string_view kMagic = "statspil";

template <typename T>
void Put(std::string* out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

template <typename T>
T Get(std::string_view bytes, std::size_t at) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value |= static_cast<T>(static_cast<T>(static_cast<unsigned char>(bytes[at + i])) << (8 * i));
  return value;
}

// Bytes, filled with zeros, and in the last four the CRC of those before.
std::string Seal(std::string bytes, std::size_t size) {
  assert(bytes.size() + 4 <= size);
  bytes.resize(size - 4);
  Put(&bytes, Crc32c(bytes));
  return bytes;
}

Status CheckSealed(const char* what, std::string_view bytes, std::size_t size) {
  if (bytes.size() < size) {
    return {Code::kDataLoss, std::string(what) + " is cut off: " + std::to_string(bytes.size()) +
                                 " bytes; expected " + std::to_string(size)};
  }
  const auto found = Get<std::uint32_t>(bytes, size - 4);
  const std::uint32_t computed = Crc32c(bytes.substr(0, size - 4));
  if (found == computed) return Status::Ok();
  return {Code::kDataLoss, std::string(what) + " is damaged: its CRC-32C is " + std::to_string(computed) +
                               "; it says " + std::to_string(found)};
}

}  // namespace

std::string EncodeHead(std::string_view hello) {
  std::string bytes(kMagic);
  Put(&bytes, kVersion);
  Put(&bytes, static_cast<std::uint32_t>(hello.size()));
  Put(&bytes, Crc32c(hello));
  return Seal(std::move(bytes), kMarkAt);
}

std::string EncodeMark(const Mark& mark) {
  std::string bytes;
  Put(&bytes, mark.offset);
  Put(&bytes, mark.seq);
  return Seal(std::move(bytes), kMarkBytes);
}

std::string EncodeFrameHead(const FrameHead& frame) {
  std::string bytes;
  for (const std::uint32_t number :
       {frame.payload_bytes, frame.records, frame.activations_before, frame.layouts_before,
        frame.activations_after, frame.layouts_after, frame.payload_crc}) {
    Put(&bytes, number);
  }
  return Seal(std::move(bytes), kFrameHeadBytes);
}

Result<Head> DecodeHead(std::string_view bytes) {
  if (bytes.size() < kMarkAt || bytes.substr(0, kMagic.size()) != kMagic)
    return Status(Code::kDataLoss, "it is not a spill file of statagent");
  const Head head{.version = Get<std::uint32_t>(bytes, 8),
                  .hello_bytes = Get<std::uint32_t>(bytes, 12),
                  .hello_crc = Get<std::uint32_t>(bytes, 16)};
  if (head.version != kVersion) {
    return Status(Code::kFailedPrecondition, "its format version is " + std::to_string(head.version) +
                                                 "; this build reads " + std::to_string(kVersion) +
                                                 "; use the statctl of the agent's release");
  }
  STATCOLLECT_RETURN_IF_ERROR(CheckSealed("its head", bytes, kMarkAt));
  if (head.hello_bytes > kHelloBytesMax)
    return Status(Code::kDataLoss, "its hello has " + std::to_string(head.hello_bytes) + " bytes");
  return head;
}

Result<Mark> DecodeMark(std::string_view bytes) {
  STATCOLLECT_RETURN_IF_ERROR(CheckSealed("its mark", bytes, kMarkBytes));
  const Mark mark{.offset = Get<std::uint64_t>(bytes, 0), .seq = Get<std::uint64_t>(bytes, 8)};
  if (mark.seq == 0) return Status(Code::kDataLoss, "its mark says record 0; they begin with 1");
  return mark;
}

Result<FrameHead> DecodeFrameHead(std::string_view bytes) {
  STATCOLLECT_RETURN_IF_ERROR(CheckSealed("the frame's head", bytes, kFrameHeadBytes));
  const FrameHead frame{.payload_bytes = Get<std::uint32_t>(bytes, 0),
                        .records = Get<std::uint32_t>(bytes, 4),
                        .activations_before = Get<std::uint32_t>(bytes, 8),
                        .layouts_before = Get<std::uint32_t>(bytes, 12),
                        .activations_after = Get<std::uint32_t>(bytes, 16),
                        .layouts_after = Get<std::uint32_t>(bytes, 20),
                        .payload_crc = Get<std::uint32_t>(bytes, 24)};
  if (frame.payload_bytes > kPayloadBytesMax)
    return Status(Code::kDataLoss,
                  "the frame says that it has " + std::to_string(frame.payload_bytes) + " bytes");
  return frame;
}

}  // namespace statcollect::spill
