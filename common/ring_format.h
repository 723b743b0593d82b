// Format of a ring file: the raw values of a rank's last steps, in memory that the kernel keeps
// when the process is killed. The agent maps it; `statctl move import spill` reads what was left.
// docs/storage-format.md has a diagram. Little-endian.
//
//   head (64 bytes), hello (the AgentMessage that opens the session's stream), slots, values
//
// A slot describes one tensor; only those with state kReady count. Ids are those of the session, so
// the tensors can be sent to a collector that has the session's definitions.
#ifndef STATCOLLECT_COMMON_RING_FORMAT_H_
#define STATCOLLECT_COMMON_RING_FORMAT_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/status.h"

namespace statcollect::ring {

static_assert(std::endian::native == std::endian::little);

inline constexpr std::string_view kSuffix = ".ring";
inline constexpr std::string_view kMagic = "scring\r\n";
inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::uint32_t kHelloBytesMax = 4u << 20;  // a message of the protocol
inline constexpr std::uint32_t kSlots = 65'536;
inline constexpr std::uint32_t kFree = 0, kReady = 2;  // of Slot::state

struct Head {
  char magic[8] = {};
  std::uint32_t version = 0;
  std::uint32_t hello_bytes = 0;
  std::uint32_t hello_crc = 0;  // CRC-32C
  std::uint32_t slots = 0;
  std::uint64_t slots_at = 0;  // offset of the first in the file
  std::uint64_t values_at = 0;
  std::uint64_t values_bytes = 0;
  std::uint64_t steps = 0;  // that the user wanted to keep
  std::uint64_t reserved = 0;
};
static_assert(sizeof(Head) == 64);

struct Slot {
  std::uint32_t state = kFree;
  std::uint32_t activation = 0;  // TensorDef::id
  std::uint32_t layout = 0;      // Layout::id
  std::uint32_t reserved = 0;
  std::uint64_t step = 0;
  std::uint64_t elements = 0;  // the first ones of the tensor
  std::uint64_t offset = 0;    // of its values, from Head::values_at
  std::uint64_t bytes = 0;
};
static_assert(sizeof(Slot) == 48);

// Of a file for this hello, and this many bytes of values.
Head MakeHead(std::string_view hello, std::uint64_t values_bytes, std::uint64_t steps);
inline std::uint64_t FileBytes(const Head& head) { return head.values_at + head.values_bytes; }

// kFailedPrecondition: a newer version. kDataLoss: not such a file, or damaged; the message says
// what was found and expected, without the file's name. `file_bytes`: the size of the file.
Status Check(const Head& head, std::uint64_t file_bytes);
// Whether the slot lies within the values.
bool Fits(const Head& head, const Slot& slot);

}  // namespace statcollect::ring

#endif  // STATCOLLECT_COMMON_RING_FORMAT_H_
