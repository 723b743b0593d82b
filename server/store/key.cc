#include "server/store/key.h"

namespace statcollect {
namespace {

constexpr std::size_t kStatKeyBytes = 20;
constexpr std::size_t kCaptureKeyBytes = 25;

template <typename T>
void AppendBigEndian(std::string& key, T value) {
  for (int shift = static_cast<int>(sizeof(T)) * 8 - 8; shift >= 0; shift -= 8) {
    key.push_back(static_cast<char>(value >> shift));
  }
}

template <typename T>
T ReadBigEndian(std::string_view text) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value = static_cast<T>(value << 8) | static_cast<unsigned char>(text[i]);
  return value;
}

}  // namespace

KeyBuilder& KeyBuilder::U32(std::uint32_t value) {
  AppendBigEndian(key_, value);
  return *this;
}

KeyBuilder& KeyBuilder::U64(std::uint64_t value) {
  AppendBigEndian(key_, value);
  return *this;
}

std::uint32_t ReadU32(std::string_view text) { return ReadBigEndian<std::uint32_t>(text); }
std::uint64_t ReadU64(std::string_view text) { return ReadBigEndian<std::uint64_t>(text); }

std::string EncodeStatKey(const StatKey& key) {
  return KeyBuilder().U32(key.attempt).U32(key.rank).U64(key.step).U32(key.activation).Take();
}

std::optional<StatKey> DecodeStatKey(std::string_view text) {
  if (text.size() != kStatKeyBytes) return std::nullopt;
  return StatKey{.attempt = ReadU32(text),
                 .rank = ReadU32(text.substr(4)),
                 .step = ReadU64(text.substr(8)),
                 .activation = ReadU32(text.substr(16))};
}

std::string StepPrefix(std::uint32_t attempt, std::uint32_t rank, std::uint64_t step) {
  return KeyBuilder().U32(attempt).U32(rank).U64(step).Take();
}

std::string EncodeCaptureKey(const CaptureKey& key) {
  return KeyBuilder()
      .U32(key.attempt)
      .U32(key.rank)
      .Text({&key.part, 1})
      .U64(key.step)
      .U32(key.activation)
      .U32(key.offset)
      .Take();
}

std::optional<CaptureKey> DecodeCaptureKey(std::string_view text) {
  if (text.size() != kCaptureKeyBytes ||
      (text[8] != 'h' && text[8] != 'd' && text[8] != 'e' && text[8] != 't'))
    return std::nullopt;
  return CaptureKey{.attempt = ReadU32(text),
                    .rank = ReadU32(text.substr(4)),
                    .part = text[8],
                    .step = ReadU64(text.substr(9)),
                    .activation = ReadU32(text.substr(17)),
                    .offset = ReadU32(text.substr(21))};
}

std::string PrefixEnd(std::string prefix) {
  while (!prefix.empty() && static_cast<unsigned char>(prefix.back()) == 0xff) prefix.pop_back();
  if (!prefix.empty())
    prefix.back() = static_cast<char>(static_cast<unsigned char>(prefix.back()) + 1);
  return prefix;
}

std::string Describe(const StatKey& key) {
  return "attempt " + std::to_string(key.attempt) + ", rank " + std::to_string(key.rank) +
         ", step " + std::to_string(key.step) + ", activation " + std::to_string(key.activation);
}

}  // namespace statcollect
