#include "server/store/codec/stat_block.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <span>

#include "server/store/byte_io.h"
#include "server/store/codec/sealed.h"
#include "server/store/codec/wide_loops.h"

namespace statcollect {
namespace {

using Numbers = std::array<std::uint64_t, kBlockRecordsMax>;

// How a column's stored numbers say its values.
enum Mode : std::uint8_t {
  kPlain = 0,
  kNeighbour = 1,    // zigzag difference to the record before, 0 before the first
  kKeyFrame = 2,     // zigzag difference to the key frame's record
  kExclusiveOr = 3,  // with the key frame's record
  kPredicted = 4,    // zigzag difference to what the columns before it lead one to expect
  kStoredModes
};

// Integers that may be predicted by their neighbour.
constexpr bool RunsAlong(Column column) { return column <= kOrder || column == kNumel || column == kSamples; }
constexpr bool IsPredicted(Column column) { return column == kPos || column == kL1 || column == kL2; }
constexpr bool IsReal(Column column) { return column >= kMean && column <= kMax; }
constexpr std::uint64_t LimitOf(Column column) {
  return column <= kOrder || column == kSamples ? 0xffffffffu : ~std::uint64_t{0};
}

inline std::uint64_t ZigZag(std::uint64_t difference) {
  return (difference << 1) ^ (~(difference >> 63) + 1);
}
inline std::uint64_t UnZigZag(std::uint64_t code) { return (code >> 1) ^ (~(code & 1) + 1); }

double Real(std::uint64_t magnitude) { return std::bit_cast<double>(magnitude); }

// A prediction must come out the same wherever it is made: IEEE arithmetic in a fixed order (this file is
// compiled without contraction of a * b + c), and 0 for what is no number.
std::uint64_t Prediction(double value) {
  return value >= 0 && std::isfinite(value) ? std::bit_cast<std::uint64_t>(value) : 0;
}

// What ReadOne and the encoder need of a record and of its counterpart in the key frame.
struct Known {
  std::uint64_t numel, nan, pos_inf, neg_inf, zero, neg, pos, mean, std, l2;
  std::uint64_t key_l1, key_l2;  // 0 without a key frame
};

std::uint64_t PredictPos(const Known& r) {
  return r.numel - (r.nan + r.pos_inf + r.neg_inf + r.zero + r.neg);
}

// l2^2 = n (mean^2 + std^2).
std::uint64_t PredictL2(const Known& r) {
  const double n = static_cast<double>(r.zero + r.neg + r.pos);
  return Prediction(std::sqrt(n * (Real(r.mean) * Real(r.mean) + Real(r.std) * Real(r.std))));
}

// l1 = n |mean| if no element has the other sign; else its ratio to l2 is the key frame's, nearly, or that of
// a normal distribution, sqrt(2 n / pi).
std::uint64_t PredictL1(const Known& r) {
  const double n = static_cast<double>(r.zero + r.neg + r.pos);
  if (r.neg == 0 || r.pos == 0) return Prediction(n * Real(r.mean));
  if (r.key_l1 != 0 && r.key_l2 != 0) return Prediction(Real(r.l2) * (Real(r.key_l1) / Real(r.key_l2)));
  return Prediction(Real(r.l2) * (0.7978845608028654 * std::sqrt(n)));
}

std::uint64_t Predict(Column column, const Known& r) {
  return column == kPos ? PredictPos(r) : column == kL2 ? PredictL2(r) : PredictL1(r);
}

// Of column-wise blocks, which must not be resized meanwhile.
class KnownColumns {
 public:
  KnownColumns(const BlockColumns& block, const BlockColumns* key_frame)
      : numbers_(block.of(kActivation).data()),
        size_(block.size()),
        key_l1_(key_frame != nullptr ? key_frame->of(kL1).data() : nullptr),
        key_l2_(key_frame != nullptr ? key_frame->of(kL2).data() : nullptr) {}

  // Record `i`, and its counterpart in the key frame if there is one.
  Known At(std::size_t i) const {
    const auto of = [&](Column column) { return numbers_[column * size_ + i]; };
    return {.numel = of(kNumel),
            .nan = of(kNan),
            .pos_inf = of(kPosInf),
            .neg_inf = of(kNegInf),
            .zero = of(kZero),
            .neg = of(kNeg),
            .pos = of(kPos),
            .mean = of(kMean),
            .std = of(kStd),
            .l2 = of(kL2),
            .key_l1 = key_l1_ != nullptr ? key_l1_[i] : 0,
            .key_l2 = key_l2_ != nullptr ? key_l2_[i] : 0};
  }

 private:
  const std::uint64_t* const numbers_;  // column by column
  const std::size_t size_;
  const std::uint64_t *const key_l1_, *const key_l2_;
};

Known KnownOf(const ColumnRecord& record, const ColumnRecord* key) {
  return {.numel = record[kNumel],
          .nan = record[kNan],
          .pos_inf = record[kPosInf],
          .neg_inf = record[kNegInf],
          .zero = record[kZero],
          .neg = record[kNeg],
          .pos = record[kPos],
          .mean = record[kMean],
          .std = record[kStd],
          .l2 = record[kL2],
          .key_l1 = key != nullptr ? (*key)[kL1] : 0,
          .key_l2 = key != nullptr ? (*key)[kL2] : 0};
}

// --- encoding

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
    Mode mode = kPlain;
    if (IsPredicted(column)) {
      Predictions(column);
      mode = kPredicted;
      Differences(values, predictions_.data(), own_.count, other_.data());
    }
    std::span<const std::uint64_t> best(mode == kPlain ? values : other_.data(), own_.count);
    best = Quietened(column, best, quiet_);
    Packing packing = PackingOf(best);
    // Takes the other mode's numbers if they are fewer bytes.
    const auto consider = [&](Mode other, Numbers& numbers) {
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
  const std::uint64_t* OwnOf(const BlockColumns& block, Column column, Numbers& gathered) const {
    const auto values = block.of(column);
    if (own_.count == block.size()) return values.data();
    for (std::size_t j = 0; j < own_.count; ++j) gathered[j] = values[own_.index[j]];
    return gathered.data();
  }

  void Predictions(Column column) {
    const KnownColumns known(block_, key_frame_);
    for (std::size_t j = 0; j < own_.count; ++j) predictions_[j] = Predict(column, known.At(own_.index[j]));
  }

  // Records without finite elements have no real numbers: whatever is cheapest stands for them.
  std::span<const std::uint64_t> Quietened(Column column, std::span<const std::uint64_t> numbers,
                                           Numbers& to) const {
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
  Numbers gathered_, gathered_keys_, predictions_, other_, keyed_, quiet_, quiet_other_;
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

void WriteColumns(const BlockColumns& block, const BlockColumns* key_frame, const Own& own, ByteWriter& out) {
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
  Numbers differs{};
  for (std::size_t column = 0; column < kColumnCount; ++column) {
    const auto a = block.of(static_cast<Column>(column)), b = key_frame.of(static_cast<Column>(column));
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
  if (size % 8 != 0) bits[size / 8] = static_cast<std::uint8_t>(bits[size / 8] & ((1u << (size % 8)) - 1));
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

EncodedBlock EncodeBlock(const BlockColumns& block, const BlockDigest& digest, const BlockColumns& key_frame,
                         std::uint64_t steps_back) {
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

// --- reading

namespace {

// Stored numbers of the own records to values. `index_of`: the place of own record j in the block.
template <typename IndexOf>
void Restore(Column column, std::uint8_t mode, std::span<std::uint64_t> numbers, const IndexOf& index_of,
             const BlockColumns* key_frame, const BlockColumns& block) {
  const auto each = [&](const auto& value_of) {
    for (std::size_t j = 0; j < numbers.size(); ++j) numbers[j] = value_of(numbers[j], index_of(j));
  };
  if (mode == kNeighbour) {
    std::uint64_t previous = 0;
    for (std::uint64_t& number : numbers) number = previous += UnZigZag(number);
  } else if (mode == kKeyFrame) {
    const std::uint64_t* const keys = key_frame->of(column).data();
    each([=](std::uint64_t number, std::size_t i) { return keys[i] + UnZigZag(number); });
  } else if (mode == kExclusiveOr) {
    const std::uint64_t* const keys = key_frame->of(column).data();
    each([=](std::uint64_t number, std::size_t i) { return keys[i] ^ number; });
  } else if (mode == kPredicted) {
    const KnownColumns known(block, key_frame);
    const auto add = [&](const auto& predict) {
      each([&](std::uint64_t number, std::size_t i) { return UnZigZag(number) + predict(known.At(i)); });
    };
    column == kPos  ? add([](const Known& r) { return PredictPos(r); })
    : column == kL2 ? add([](const Known& r) { return PredictL2(r); })
                    : add([](const Known& r) { return PredictL1(r); });
  }
}

}  // namespace

Result<BlockReader> BlockReader::Open(const StatKey& key, std::string_view stats) {
  auto payload = UnsealAs([&] { return "block of " + Describe(key); }, stats, kStatBlockVersion);
  if (!payload.ok()) return payload.status();
  BlockReader reader;
  reader.key_ = key;
  if (!reader.Parse(*payload)) return reader.Damaged("its content does not parse");
  return reader;
}

Status BlockReader::Damaged(std::string_view found) const {
  return {Code::kDataLoss, "read block of " + Describe(key_) + ": the checksum matches but " +
                               std::string(found) +
                               "; it was written wrongly; remove the run and report this"};
}

bool BlockReader::Parse(std::string_view payload) {
  ByteReader in(payload);
  const std::uint8_t kind = in.U8();
  const std::string_view digest = in.Raw(digest_.size());
  std::copy(digest.begin(), digest.end(), digest_.begin());
  size_ = in.Varint();
  sketch_width_ = in.Varint32();
  if (kind > 2 || size_ == 0 || size_ > kBlockRecordsMax || sketch_width_ > kSketchMax) in.Fail();
  if (!in.ok()) return false;
  kind_ = static_cast<Kind>(kind);
  if (kind_ == Kind::kAlias) {
    target_ = {
        .attempt = in.Varint32(), .rank = in.Varint32(), .step = in.Varint(), .activation = in.Varint32()};
    return in.done();
  }
  own_ = size_;
  if (kind_ == Kind::kRelative) {
    steps_back_ = in.Varint();
    if (steps_back_ == 0) in.Fail();
    ParseSame(in);
  }
  if (own_ == 0) return in.done();
  for (std::size_t column = 0; column < kColumnCount && in.ok(); ++column) {
    if (column == kHash || (column == kActivation && kind_ == Kind::kRelative)) continue;
    const std::uint8_t mode = in.U8();
    const bool needs_key = mode == kKeyFrame || mode == kExclusiveOr;
    const bool predicted = mode == kPredicted;
    if (mode >= kStoredModes || (needs_key && kind_ != Kind::kRelative) ||
        predicted != IsPredicted(static_cast<Column>(column)))
      in.Fail();
    columns_[column] = {mode, PackedColumn(in, own_)};
  }
  hashes_ = in.Raw(own_ * sizeof(std::uint64_t));
  return in.done();
}

void BlockReader::ParseSame(ByteReader& in) {
  const std::uint8_t how = in.U8();
  if (how > 2) in.Fail();
  all_same_ = how == 2;
  if (all_same_) own_ = 0;
  if (how != 1) return;
  same_ = in.Raw((size_ + 7) / 8);
  std::size_t same = 0;
  for (const char byte : same_)
    same += static_cast<std::size_t>(std::popcount(static_cast<unsigned char>(byte)));
  if (same >= size_ || same == 0) return in.Fail();
  if (size_ % 8 != 0 && static_cast<unsigned char>(same_.back()) >> (size_ % 8) != 0) in.Fail();
  own_ = size_ - same;
}

bool BlockReader::IsSame(std::size_t index) const {
  if (same_.empty()) return all_same_;
  return (static_cast<unsigned char>(same_[index / 8]) >> (index % 8) & 1) != 0;
}

std::size_t BlockReader::OwnIndex(std::size_t index) const {
  if (same_.empty()) return index;
  std::size_t same = 0;
  for (std::size_t byte = 0; byte < index / 8; ++byte) {
    same += static_cast<std::size_t>(std::popcount(static_cast<unsigned char>(same_[byte])));
  }
  for (std::size_t i = index / 8 * 8; i < index; ++i) same += IsSame(i) ? 1 : 0;
  return index - same;
}

// The own records' numbers, one after another. False: one is too large for its column.
template <typename IndexOf>
bool BlockReader::ReadColumn(Column column, bool all_finite, const IndexOf& index_of,
                             std::span<std::uint64_t> numbers, const BlockColumns* key_frame,
                             const BlockColumns& block) const {
  if (column == kHash) {
    for (std::size_t j = 0; j < numbers.size(); ++j) numbers[j] = HashAt(j);
    return true;
  }
  const StoredColumn& stored = columns_[column];
  stored.numbers.ReadAll(numbers);
  Restore(column, stored.mode, numbers, index_of, key_frame, block);
  if (IsReal(column) && !all_finite) {
    const auto flags = block.of(kFlags);
    for (std::size_t j = 0; j < numbers.size(); ++j) {
      if ((flags[index_of(j)] & kHasFinite) == 0) numbers[j] = 0;
    }
  }
  std::uint64_t bits = 0;
  for (const std::uint64_t number : numbers) bits |= number;
  return bits <= LimitOf(column);
}

// The others are there already, as in the key frame.
bool BlockReader::ReadScattered(Column column, bool all_finite, std::span<const std::uint16_t> own_index,
                                std::span<std::uint64_t> to, const BlockColumns* key_frame,
                                const BlockColumns& block) const {
  Numbers numbers;
  const auto own = std::span(numbers).first(own_);
  if (!ReadColumn(
          column, all_finite, [&](std::size_t j) { return own_index[j]; }, own, key_frame, block))
    return false;
  for (std::size_t j = 0; j < own_; ++j) to[own_index[j]] = own[j];
  return true;
}

std::uint64_t BlockReader::HashAt(std::size_t own_index) const {
  std::uint64_t hash = 0;
  std::memcpy(&hash, hashes_.data() + own_index * sizeof hash, sizeof hash);
  return std::endian::native == std::endian::little ? hash : __builtin_bswap64(hash);
}

Status BlockReader::ReadNumbers(const BlockColumns* key_frame, BlockColumns* block) const {
  assert(kind_ != Kind::kAlias && (kind_ == Kind::kRelative) == (key_frame != nullptr));
  if (key_frame != nullptr && (key_frame->size() != size_ || key_frame->sketch_width() != sketch_width_)) {
    return Damaged("its key frame has a different size");
  }
  block->Resize(size_, sketch_width_);
  std::array<std::uint16_t, kBlockRecordsMax> own_index;  // of own record j
  for (std::size_t i = 0, j = 0; i < size_; ++i) {
    if (!IsSame(i)) own_index[j++] = static_cast<std::uint16_t>(i);
  }
  bool all_finite = true;  // of the records that are stored here
  for (std::size_t c = 0; c < kColumnCount; ++c) {
    const auto column = static_cast<Column>(c);
    const auto to = block->of(column);
    const bool as_key_frame = own_ < size_ || column == kActivation;
    if (key_frame != nullptr && as_key_frame) std::ranges::copy(key_frame->of(column), to.begin());
    if (own_ == 0 || (column == kActivation && key_frame != nullptr)) continue;
    const bool read = own_ == size_
                          ? ReadColumn(
                                column, all_finite, [](std::size_t j) { return j; }, to, key_frame, *block)
                          : ReadScattered(column, all_finite, own_index, to, key_frame, *block);
    if (!read) return Damaged("a number in it is too large");
    if (column == kFlags) {
      const auto is_finite = [&](std::size_t i) { return (to[i] & kHasFinite) != 0; };
      for (std::size_t j = 0; j < own_; ++j) all_finite = all_finite && is_finite(own_index[j]);
    }
  }
  return Status::Ok();
}

namespace {

// Stored float32 sums, exactly.
STATCOLLECT_WIDE_LOOPS void Widen(const char* stored, std::size_t count, double* to) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, stored + i * sizeof bits, sizeof bits);
    if constexpr (std::endian::native == std::endian::big) bits = __builtin_bswap32(bits);
    to[i] = static_cast<double>(std::bit_cast<float>(bits));
  }
}

}  // namespace

Status BlockReader::ReadSums(std::optional<std::string_view> sums, const BlockColumns* key_frame,
                             BlockColumns* block) const {
  ByteReader in("");
  if (sums) {
    auto payload =
        UnsealAs([&] { return "sketches of block of " + Describe(key_); }, *sums, kStatBlockVersion);
    if (!payload.ok()) return payload.status();
    in = ByteReader(*payload);
  }
  const auto flags = block->of(kFlags);
  const bool any_wide = std::ranges::any_of(flags, [](std::uint64_t of) { return (of & kWideSketch) != 0; });
  const bool all_narrow = own_ == size_ && !any_wide;
  if (all_narrow) {
    const std::string_view bytes = in.Raw(block->sketch.size() * sizeof(float));
    if (in.ok()) Widen(bytes.data(), block->sketch.size(), block->sketch.data());
  }
  for (std::size_t i = 0; i < size_ && !all_narrow; ++i) {
    const auto to = block->sketch_of(i);
    if (IsSame(i)) {
      std::ranges::copy(key_frame->sketch_of(i), to.begin());
    } else if ((flags[i] & kWideSketch) != 0) {
      for (double& sum : to) sum = in.F64();
    } else {
      for (double& sum : to) sum = static_cast<double>(in.F32());
    }
  }
  block->samples.clear();
  std::size_t key_at = 0;
  for (std::size_t i = 0; i < size_; ++i) {
    const std::uint64_t count = block->of(kSamples)[i];
    const std::uint64_t there =
        IsSame(i) ? key_frame->samples.size() - key_at : in.remaining() / sizeof(double);
    if (count > there) in.Fail();
    if (!in.ok()) break;
    for (std::uint64_t s = 0; s < count; ++s) {
      block->samples.push_back(IsSame(i) ? key_frame->samples[key_at + s] : in.F64());
    }
    if (key_frame != nullptr)
      key_at = std::min<std::size_t>(key_at + key_frame->of(kSamples)[i], key_frame->samples.size());
  }
  return in.done() ? Status::Ok() : Damaged("its sketches or samples are missing or too many");
}

std::optional<std::size_t> BlockReader::Find(std::uint32_t activation) const {
  if (kind_ != Kind::kWhole) return std::nullopt;
  const StoredColumn& stored = columns_[kActivation];
  Numbers numbers;
  stored.numbers.ReadAll(std::span(numbers).first(size_));
  std::uint64_t previous = 0;
  for (std::size_t i = 0; i < size_; ++i) {
    previous = stored.mode == kNeighbour ? previous + UnZigZag(numbers[i]) : numbers[i];
    if (previous == activation) return i;
  }
  return std::nullopt;
}

std::uint64_t BlockReader::ReadOne(Column column, std::size_t own_index, const ColumnRecord& before,
                                   const ColumnRecord* key) const {
  const StoredColumn& stored = columns_[column];
  if (stored.mode == kNeighbour) {
    std::uint64_t value = 0;
    for (std::size_t j = 0; j <= own_index; ++j) value += UnZigZag(stored.numbers.At(j));
    return value;
  }
  const std::uint64_t number = stored.numbers.At(own_index);
  if (stored.mode == kKeyFrame) return (*key)[column] + UnZigZag(number);
  if (stored.mode == kExclusiveOr) return (*key)[column] ^ number;
  if (stored.mode == kPredicted) return UnZigZag(number) + Predict(column, KnownOf(before, key));
  return number;
}

ColumnRecord BlockReader::ReadRecord(std::size_t index, const ColumnRecord* key) const {
  assert(index < size_ && kind_ != Kind::kAlias && (kind_ == Kind::kRelative) == (key != nullptr));
  if (IsSame(index)) return *key;
  const std::size_t own = OwnIndex(index);
  ColumnRecord record{};
  for (std::size_t c = 0; c < kColumnCount; ++c) {
    const auto column = static_cast<Column>(c);
    if (column == kActivation && key != nullptr) {
      record[c] = (*key)[c];
    } else if (column == kHash) {
      record[c] = HashAt(own);
    } else if (!IsReal(column) || (record[kFlags] & kHasFinite) != 0) {
      record[c] = ReadOne(column, own, record, key);
    }
  }
  return record;
}

}  // namespace statcollect
