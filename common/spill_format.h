// Format of a spill file: batches of one session that wait on the training machine's disk until the
// collector has them. docs/storage-format.md has a diagram. The agent writes it; the agent and
// statctl read it.
//
// Head (64 bytes), hello, frames. Numbers are little-endian. The hello is the AgentMessage that
// opens the session's stream. A frame is a head of 32 bytes and a serialized Records; a frame of 0
// records is the goodbye (an AgentMessage) and the last. Frames have no sequence numbers: the mark
// in the head gives the number of the first record of the frame at one offset, and the others
// follow from it.
#ifndef STATCOLLECT_COMMON_SPILL_FORMAT_H_
#define STATCOLLECT_COMMON_SPILL_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/status.h"

namespace statcollect::spill {

inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::string_view kSuffix = ".spill";
inline constexpr std::size_t kHeadBytes = 64, kMarkAt = 32, kMarkBytes = 32, kFrameHeadBytes = 32;
inline constexpr std::uint32_t kHelloBytesMax = 4u << 20;  // a message of the protocol
inline constexpr std::uint32_t kPayloadBytesMax = 64u << 20;

// Start of the pending frames: the frame at `offset` begins with record `seq`; earlier bytes are no
// longer needed.
struct Mark {
  std::uint64_t offset = 0;
  std::uint64_t seq = 0;  // >= 1
  bool operator==(const Mark&) const = default;
};

struct FrameHead {
  std::uint32_t payload_bytes = 0;
  std::uint32_t records = 0;  // 0: the goodbye
  // Number of definitions of activations and layouts that the session had sent before this frame,
  // and after it.
  std::uint32_t activations_before = 0, layouts_before = 0, activations_after = 0,
                layouts_after = 0;
  std::uint32_t payload_crc = 0;  // CRC-32C
};

struct Head {
  std::uint32_t version = 0;
  std::uint32_t hello_bytes = 0;
  std::uint32_t hello_crc = 0;
  std::uint64_t frames_at() const { return kHeadBytes + std::uint64_t{hello_bytes}; }
};

// The first kMarkAt bytes of a file; the mark follows them.
std::string EncodeHead(std::string_view hello);
std::string EncodeMark(const Mark& mark);  // kMarkBytes
std::string EncodeFrameHead(const FrameHead& frame);

// `bytes`: as many as the encoders return. kFailedPrecondition: a newer version. kDataLoss: damaged
// or not such a file; the message says what was found and expected, without the file's name.
Result<Head> DecodeHead(std::string_view bytes);
Result<Mark> DecodeMark(std::string_view bytes);
Result<FrameHead> DecodeFrameHead(std::string_view bytes);

}  // namespace statcollect::spill

#endif  // STATCOLLECT_COMMON_SPILL_FORMAT_H_
