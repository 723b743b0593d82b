#include "common/spill_format.h"

#include <cassert>

#include "common/checksum.h"
#include "common/endian.h"

namespace statcollect::spill {
namespace {

constexpr std::string_view kMagic = "statspil";

// Bytes, filled with zeros, and in the last four the CRC of those before.
std::string Seal(std::string bytes, std::size_t size) {
  assert(bytes.size() + 4 <= size);
  bytes.resize(size - 4);
  AppendLittleEndian(&bytes, Crc32c(bytes));
  return bytes;
}

Status CheckSealed(const char* what, std::string_view bytes, std::size_t size) {
  if (bytes.size() < size) {
    return {Code::kDataLoss, std::string(what) + " is cut off: " + std::to_string(bytes.size()) +
                                 " bytes; expected " + std::to_string(size)};
  }
  const auto found = LoadLittleEndian<std::uint32_t>(bytes.data() + size - 4);
  const std::uint32_t computed = Crc32c(bytes.substr(0, size - 4));
  if (found == computed) return Status::Ok();
  return {Code::kDataLoss, std::string(what) + " is damaged: its CRC-32C is " +
                               std::to_string(computed) + "; it says " + std::to_string(found)};
}

}  // namespace

std::string EncodeHead(std::string_view hello) {
  std::string bytes(kMagic);
  AppendLittleEndian(&bytes, kVersion);
  AppendLittleEndian(&bytes, static_cast<std::uint32_t>(hello.size()));
  AppendLittleEndian(&bytes, Crc32c(hello));
  return Seal(std::move(bytes), kMarkAt);
}

std::string EncodeMark(const Mark& mark) {
  std::string bytes;
  AppendLittleEndian(&bytes, mark.offset);
  AppendLittleEndian(&bytes, mark.seq);
  return Seal(std::move(bytes), kMarkBytes);
}

std::string EncodeFrameHead(const FrameHead& frame) {
  std::string bytes;
  for (const std::uint32_t number :
       {frame.payload_bytes, frame.records, frame.activations_before, frame.layouts_before,
        frame.activations_after, frame.layouts_after, frame.payload_crc}) {
    AppendLittleEndian(&bytes, number);
  }
  return Seal(std::move(bytes), kFrameHeadBytes);
}

Result<Head> DecodeHead(std::string_view bytes) {
  if (bytes.size() < kMarkAt || bytes.substr(0, kMagic.size()) != kMagic)
    return Status(Code::kDataLoss, "it is not a spill file of statagent");
  const Head head{.version = LoadLittleEndian<std::uint32_t>(bytes.data() + 8),
                  .hello_bytes = LoadLittleEndian<std::uint32_t>(bytes.data() + 12),
                  .hello_crc = LoadLittleEndian<std::uint32_t>(bytes.data() + 16)};
  if (head.version != kVersion) {
    return Status(Code::kFailedPrecondition,
                  "its format version is " + std::to_string(head.version) + "; this build reads " +
                      std::to_string(kVersion) + "; use the statctl of the agent's release");
  }
  STATCOLLECT_RETURN_IF_ERROR(CheckSealed("its head", bytes, kMarkAt));
  if (head.hello_bytes > kHelloBytesMax)
    return Status(Code::kDataLoss, "its hello has " + std::to_string(head.hello_bytes) + " bytes");
  return head;
}

Result<Mark> DecodeMark(std::string_view bytes) {
  STATCOLLECT_RETURN_IF_ERROR(CheckSealed("its mark", bytes, kMarkBytes));
  const Mark mark{.offset = LoadLittleEndian<std::uint64_t>(bytes.data()),
                  .seq = LoadLittleEndian<std::uint64_t>(bytes.data() + 8)};
  if (mark.seq == 0) return Status(Code::kDataLoss, "its mark says record 0; they begin with 1");
  return mark;
}

Result<FrameHead> DecodeFrameHead(std::string_view bytes) {
  STATCOLLECT_RETURN_IF_ERROR(CheckSealed("the frame's head", bytes, kFrameHeadBytes));
  const FrameHead frame{.payload_bytes = LoadLittleEndian<std::uint32_t>(bytes.data()),
                        .records = LoadLittleEndian<std::uint32_t>(bytes.data() + 4),
                        .activations_before = LoadLittleEndian<std::uint32_t>(bytes.data() + 8),
                        .layouts_before = LoadLittleEndian<std::uint32_t>(bytes.data() + 12),
                        .activations_after = LoadLittleEndian<std::uint32_t>(bytes.data() + 16),
                        .layouts_after = LoadLittleEndian<std::uint32_t>(bytes.data() + 20),
                        .payload_crc = LoadLittleEndian<std::uint32_t>(bytes.data() + 24)};
  if (frame.payload_bytes > kPayloadBytesMax)
    return Status(Code::kDataLoss,
                  "the frame says that it has " + std::to_string(frame.payload_bytes) + " bytes");
  return frame;
}

}  // namespace statcollect::spill
