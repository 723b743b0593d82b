#include "server/store/codec/stat_block.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstdint>
#include <span>

#include "common/wide_loops.h"
#include "server/store/byte_io.h"
#include "server/store/codec/block_reader.h"
#include "server/store/codec/packed_column.h"
#include "server/store/codec/predictions.h"
#include "server/store/codec/sealed.h"
#include "server/store/codec/stored_numbers.h"

namespace statcollect {
namespace {

// The records of a block that are stored: all, or those that are not as in the key frame.
struct Own {
  std::array<std::uint16_t, kBlockRecordsMax> index;
  std::size_t count = 0;
  std::span<const std::uint16_t> indexes() const { return std::span(index).first(count); }
};

STATCOLLECT_WIDE_LOOPS void Differences(const std::uint64_t* values, const std::uint64_t* from,
                                        std::size_t count, std::uint64_t* to) {
  for (std::size_t i = 0; i < count; ++i) to[i] = ZigZag(values[i] - from[i]);
}
STATCOLLECT_WIDE_LOOPS void NeighbourDifferences(const std::uint64_t* values, std::size_t count,
                                                 std::uint64_t* to) {
  to[0] = ZigZag(values[0]);
  for (std::size_t i = 1; i < count; ++i) to[i] = ZigZag(values[i] - values[i - 1]);
}

class ColumnEncoder {
 public:
  ColumnEncoder(const BlockColumns& block, const BlockColumns* key_frame, const Own& own)
      : block_(block), key_frame_(key_frame), own_(own) {
    for (const std::size_t i : own.indexes())
      all_finite_ = all_finite_ && (block.of(kFlags)[i] & kHasFinite) != 0;
  }

  void Write(Column column, ByteWriter& out) {
    const std::uint64_t* const values = OwnOf(block_, column, gathered_);
    StoredMode mode = kPlain;
    if (IsPredicted(column)) {
      PredictColumn(column, block_, key_frame_, own_.indexes(),
                    std::span(predictions_).first(own_.count));
      mode = kPredicted;
      Differences(values, predictions_.data(), own_.count, other_.data());
    }
    std::span<const std::uint64_t> best(mode == kPlain ? values : other_.data(), own_.count);
    best = Quietened(column, best, quiet_);
    Packing packing = PackingOf(best);
    // Takes the other mode's numbers if they are fewer bytes.
    const auto consider = [&](StoredMode other, BlockNumbers& numbers) {
      const auto found = Quietened(column, std::span(numbers).first(own_.count), quiet_other_);
      const Packing its = PackingOf(found);
      if (its.bytes >= packing.bytes) return;
      packing = its;
      best = found;
      mode = other;
    };
    if (RunsAlong(column) && packing.shift != kAllEqual) {
      NeighbourDifferences(values, own_.count, other_.data());
      consider(kNeighbour, other_);
    }
    if (key_frame_ != nullptr && !IsPredicted(column) && packing.shift != kAllEqual) {
      const std::uint64_t* const keys = OwnOf(*key_frame_, column, gathered_keys_);
      if (column == kFlags) {
        for (std::size_t i = 0; i < own_.count; ++i) keyed_[i] = values[i] ^ keys[i];
        consider(kExclusiveOr, keyed_);
      } else {
        Differences(values, keys, own_.count, keyed_.data());
        consider(kKeyFrame, keyed_);
      }
    }
    out.U8(mode);
    WritePacked(out, best, packing);
  }

 private:
  static constexpr unsigned kAllEqual = 64;  // Packing::shift

  // The column's numbers of the own records, one after another.
  const std::uint64_t* OwnOf(const BlockColumns& block, Column column,
                             BlockNumbers& gathered) const {
    const auto values = block.of(column);
    if (own_.count == block.size()) return values.data();
    for (std::size_t j = 0; j < own_.count; ++j) gathered[j] = values[own_.index[j]];
    return gathered.data();
  }

  // Records without finite elements have no real values; their numbers are whatever is cheapest to
  // store.
  std::span<const std::uint64_t> Quietened(Column column, std::span<const std::uint64_t> numbers,
                                           BlockNumbers& to) const {
    if (all_finite_ || !IsReal(column)) return numbers;
    const auto flags = block_.of(kFlags);
    std::uint64_t least = ~std::uint64_t{0};
    for (std::size_t j = 0; j < own_.count; ++j) {
      if ((flags[own_.index[j]] & kHasFinite) != 0) least = std::min(least, numbers[j]);
    }
    for (std::size_t j = 0; j < own_.count; ++j) {
      to[j] = (flags[own_.index[j]] & kHasFinite) != 0 ? numbers[j] : least;
    }
    return std::span(to).first(own_.count);
  }

  const BlockColumns& block_;
  const BlockColumns* key_frame_;
  const Own& own_;
  bool all_finite_ = true;
  BlockNumbers gathered_, gathered_keys_, predictions_, other_, keyed_, quiet_, quiet_other_;
};

void WriteHashes(std::span<const std::uint64_t> hashes, const Own& own, ByteWriter& out) {
  if (own.count == hashes.size()) return out.Array(hashes);
  for (const std::size_t i : own.indexes()) out.U64(hashes[i]);
}

std::string EncodeSums(const BlockColumns& block, const Own& own) {
  ByteWriter out;
  out.Reserve(16 + own.count * block.sketch_width() * sizeof(float));
  out.U8(kStatBlockVersion);
  const auto flags = block.of(kFlags), counts = block.of(kSamples);
  for (const std::size_t i : own.indexes()) {
    if ((flags[i] & kWideSketch) != 0) {
      out.Array(block.sketch_of(i));
    } else {
      std::array<float, kSketchMax> narrow;
      const auto sums = block.sketch_of(i);
      std::transform(sums.begin(), sums.end(), narrow.begin(),
                     [](double sum) { return static_cast<float>(sum); });
      out.Array(std::span<const float>(narrow).first(sums.size()));
    }
  }
  std::size_t at = 0, next = 0;
  for (std::size_t i = 0; i < block.size() && !block.samples.empty(); ++i) {
    const bool mine = next < own.count && own.index[next] == i;
    for (std::uint64_t s = 0; mine && s < counts[i]; ++s) out.F64(block.samples[at + s]);
    at += counts[i];
    next += mine ? 1 : 0;
  }
  return out.bytes().size() == 1 ? std::string() : SealInPlace(out.Take());
}

void WriteHeader(BlockReader::Kind kind, const BlockDigest& digest, std::size_t size,
                 std::uint32_t sketch_width, ByteWriter& out) {
  out.U8(kStatBlockVersion);
  out.U8(static_cast<std::uint8_t>(kind));
  out.Raw({reinterpret_cast<const char*>(digest.data()), digest.size()});
  out.Varint(size);
  out.Varint(sketch_width);
}

void WriteColumns(const BlockColumns& block, const BlockColumns* key_frame, const Own& own,
                  ByteWriter& out) {
  if (own.count == 0) return;
  ColumnEncoder encoder(block, key_frame, own);
  for (std::size_t column = 0; column < kColumnCount; ++column) {
    if (column == kHash || (column == kActivation && key_frame != nullptr)) continue;
    encoder.Write(static_cast<Column>(column), out);
  }
  WriteHashes(block.of(kHash), own, out);
}

// The records that are not as in the key frame.
Own FindOwn(const BlockColumns& block, const BlockColumns& key_frame) {
  BlockNumbers differs{};
  for (std::size_t column = 0; column < kColumnCount; ++column) {
    const auto a = block.of(static_cast<Column>(column)),
               b = key_frame.of(static_cast<Column>(column));
    for (std::size_t i = 0; i < a.size(); ++i) differs[i] |= a[i] ^ b[i];
  }
  const auto counts = block.of(kSamples), key_counts = key_frame.of(kSamples);
  Own own;
  std::size_t at = 0, key_at = 0;
  const auto bits_equal = [](std::span<const double> a, std::span<const double> b) {
    return std::equal(a.begin(), a.end(), b.begin(), [](double x, double y) {
      return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y);
    });
  };
  for (std::size_t i = 0; i < block.size(); ++i) {
    const bool same = differs[i] == 0 && bits_equal(block.sketch_of(i), key_frame.sketch_of(i)) &&
                      bits_equal(std::span(block.samples).subspan(at, counts[i]),
                                 std::span(key_frame.samples).subspan(key_at, counts[i]));
    if (!same) own.index[own.count++] = static_cast<std::uint16_t>(i);
    at += counts[i];
    key_at += key_counts[i];
  }
  return own;
}

// 0: none is as in the key frame; 1: a bit a record says; 2: all are.
void WriteSame(const Own& own, std::size_t size, ByteWriter& out) {
  if (own.count == size || own.count == 0) return out.U8(own.count == 0 ? 2 : 0);
  out.U8(1);
  std::array<std::uint8_t, kBlockRecordsMax / 8> bits;
  bits.fill(0xff);
  for (const std::size_t i : own.indexes())
    bits[i / 8] = static_cast<std::uint8_t>(bits[i / 8] & ~(1u << (i % 8)));
  if (size % 8 != 0)
    bits[size / 8] = static_cast<std::uint8_t>(bits[size / 8] & ((1u << (size % 8)) - 1));
  for (std::size_t byte = 0; byte < (size + 7) / 8; ++byte) out.U8(bits[byte]);
}

}  // namespace

bool IsKeyFrameFor(const BlockColumns& key_frame, const BlockColumns& block) {
  return key_frame.size() == block.size() && key_frame.sketch_width() == block.sketch_width() &&
         std::ranges::equal(key_frame.of(kActivation), block.of(kActivation));
}

EncodedBlock EncodeBlock(const BlockColumns& block, const BlockDigest& digest) {
  Own own{.index = {}, .count = block.size()};
  for (std::size_t i = 0; i < own.count; ++i) own.index[i] = static_cast<std::uint16_t>(i);
  ByteWriter out;
  out.Reserve(64 + 64 * block.size());
  WriteHeader(BlockReader::Kind::kWhole, digest, block.size(), block.sketch_width(), out);
  WriteColumns(block, nullptr, own, out);
  return {.stats = SealInPlace(out.Take()), .sums = EncodeSums(block, own)};
}

EncodedBlock EncodeBlock(const BlockColumns& block, const BlockDigest& digest,
                         const BlockColumns& key_frame, std::uint64_t steps_back) {
  assert(IsKeyFrameFor(key_frame, block) && steps_back >= 1);
  const Own own = FindOwn(block, key_frame);
  ByteWriter out;
  out.Reserve(64 + 64 * own.count);
  WriteHeader(BlockReader::Kind::kRelative, digest, block.size(), block.sketch_width(), out);
  out.Varint(steps_back);
  WriteSame(own, block.size(), out);
  WriteColumns(block, &key_frame, own, out);
  return {.stats = SealInPlace(out.Take()), .sums = EncodeSums(block, own)};
}

std::string EncodeAlias(const BlockDigest& digest, std::size_t size, std::uint32_t sketch_width,
                        const StatKey& target) {
  ByteWriter out;
  WriteHeader(BlockReader::Kind::kAlias, digest, size, sketch_width, out);
  out.Varint(target.attempt);
  out.Varint(target.rank);
  out.Varint(target.step);
  out.Varint(target.activation);
  return SealInPlace(out.Take());
}

}  // namespace statcollect
