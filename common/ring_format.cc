#include "common/ring_format.h"

#include <algorithm>

#include "common/checksum.h"

namespace statcollect::ring {
namespace {

constexpr std::uint64_t kPageBytes = 4096;

std::uint64_t WholePages(std::uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

Status NoRing(const std::string& found) {
  return {Code::kDataLoss, "found " + found + "; expected the ring file of an agent"};
}

}  // namespace

Head MakeHead(std::string_view hello, std::uint64_t values_bytes, std::uint64_t steps) {
  Head head{.version = kVersion,
            .hello_bytes = static_cast<std::uint32_t>(hello.size()),
            .hello_crc = Crc32c(hello),
            .slots = kSlots,
            .steps = steps};
  std::copy(kMagic.begin(), kMagic.end(), head.magic);
  head.slots_at = WholePages(sizeof(Head) + hello.size());
  head.values_at = WholePages(head.slots_at + std::uint64_t{head.slots} * sizeof(Slot));
  head.values_bytes = WholePages(values_bytes);
  return head;
}

Status Check(const Head& head, std::uint64_t file_bytes) {
  if (std::string_view(head.magic, sizeof head.magic) != kMagic) return NoRing("another beginning");
  if (head.version != kVersion) {
    return {Code::kFailedPrecondition, "its format is version " + std::to_string(head.version) +
                                           "; this statctl reads " + std::to_string(kVersion) +
                                           "; use the statctl of the agent's release"};
  }
  const std::uint64_t slots_bytes = std::uint64_t{head.slots} * sizeof(Slot);
  if (head.hello_bytes > kHelloBytesMax || head.slots > kSlots ||
      head.slots_at < sizeof(Head) + head.hello_bytes || head.slots_at > file_bytes ||
      head.values_at > file_bytes ||
      head.values_at - std::min(head.slots_at, head.values_at) < slots_bytes ||
      head.values_bytes > file_bytes - head.values_at)
    return NoRing("sizes that do not fit into its " + std::to_string(file_bytes) + " bytes");
  return Status::Ok();
}

bool Fits(const Head& head, const Slot& slot) {
  return slot.bytes <= head.values_bytes && slot.offset <= head.values_bytes - slot.bytes;
}

}  // namespace statcollect::ring
