// Keys of the store. Numbers are big-endian, so that byte order is scan order. The ones that are
// read most; docs/storage-format.md has all of them:
//
//   stats      attempt u32 | rank u32 | step u64 | activation u32        the block's first one
//   scalars    attempt u32 | rank u32 | step u64 | sequence number u64   also events, memory and
//              densities; 2^63 + n: the collector's own events
//   steps      attempt u32 | rank u32 | step u64
//   captures   attempt u32 | rank u32 | part | step u64 | activation u32 | offset u32; CaptureKey.
//              Of part 't', token records: a sequence number u64 stands for the last two
//   catalogue  a letter, then what it is about: 'r' an attempt of a run, 'i' a rank's hello,
//              'm' its watermark, 'a' an activation, 'l' a layout
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
// A chunk of a capture. `part`: 'h' its head, 'd' its data, 'e' a histogram of exponents, 't' a
// token record, whose sequence number stands in the place of activation and offset. The heads of a
// rank are adjacent, so they are listed without reading data; so are histograms and token records.
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
