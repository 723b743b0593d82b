// Keys of the store. All numbers are big-endian, so that byte order is scan order. Sizes are in
// bytes.
//
//   stats        attempt (4) | rank (4) | step (8) | activation (4)       the block's first
//   activation scalars, events, memory, densities
//                attempt (4) | rank (4) | step (8) | sequence number (8)  of the record; of the
//                collector's
//                                                                         own events 2^63 + n
//   steps        attempt (4) | rank (4) | step (8)
//   captures     attempt (4) | rank (4) | 'h' | step (8) | activation (4) | offset (4)    head of a
//   chunk
//                attempt (4) | rank (4) | 'd' | step (8) | activation (4) | offset (4)    data of a
//                chunk attempt (4) | rank (4) | 'e' | step (8) | activation (4) | 0 (4) exponent
//                counts
//   catalogue    'r' | run name | 0x00 | number (4)        attempt
//                'i' | attempt (4) | rank (4)              the rank's hello
//                'c' | attempt (4) | rank (4) | name       setting added after the hello
//                'm' | attempt (4) | rank (4)              watermark and tallies of the rank
//                'a' | attempt (4) | rank (4) | id (4)     definition of an activation
//                'l' | attempt (4) | rank (4) | id (4)     layout
//
// docs/storage-format.md has all of them.
#ifndef STATCOLLECT_SERVER_STORE_KEY_H_
#define STATCOLLECT_SERVER_STORE_KEY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace statcollect {

// Appends numbers most significant byte first.
class KeyBuilder {
 public:
  KeyBuilder() = default;
  explicit KeyBuilder(char prefix) : key_(1, prefix) {}
  KeyBuilder& U32(std::uint32_t value);
  KeyBuilder& U64(std::uint64_t value);
  KeyBuilder& Text(std::string_view text) {
    key_ += text;
    return *this;
  }
  std::string Take() { return std::move(key_); }

 private:
  std::string key_;
};

struct StatKey {
  std::uint32_t attempt = 0, rank = 0;
  std::uint64_t step = 0;
  std::uint32_t activation = 0;
  auto operator<=>(const StatKey&) const = default;
};

std::string EncodeStatKey(const StatKey& key);
// Empty if the text has a different length.
std::optional<StatKey> DecodeStatKey(std::string_view text);
// Reads a big-endian number at the beginning; the text must be long enough.
std::uint32_t ReadU32(std::string_view text);
std::uint64_t ReadU64(std::string_view text);

// attempt | rank | step: the prefix of a rank's records of a step in stats, scalars, events and
// steps.
std::string StepPrefix(std::uint32_t attempt, std::uint32_t rank, std::uint64_t step);
// A chunk of a capture. `part`: 'h' its head, 'd' its data, 'e' a histogram of exponents. The heads
// of a rank are adjacent, so they are listed without reading data; so are histograms.
struct CaptureKey {
  std::uint32_t attempt = 0, rank = 0;
  char part = 'h';
  std::uint64_t step = 0;
  std::uint32_t activation = 0;
  std::uint32_t offset = 0;  // bytes
};
std::string EncodeCaptureKey(const CaptureKey& key);
std::optional<CaptureKey> DecodeCaptureKey(std::string_view text);

// The smallest text that is greater than every text with this prefix; empty if there is none.
std::string PrefixEnd(std::string prefix);

// "attempt 3, rank 1, step 12, activation 40", for messages.
std::string Describe(const StatKey& key);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_KEY_H_
