#include "server/store/codec/block_reader.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>

#include "common/endian.h"
#include "common/wide_loops.h"
#include "server/store/byte_io.h"
#include "server/store/codec/predictions.h"
#include "server/store/codec/sealed.h"
#include "server/store/codec/stat_block.h"
#include "server/store/codec/stored_numbers.h"

namespace statcollect {
namespace {

STATCOLLECT_WIDE_LOOPS void AddDifferences(const std::uint64_t* from, std::size_t count,
                                           std::uint64_t* to) {
  for (std::size_t i = 0; i < count; ++i) to[i] = from[i] + UnZigZag(to[i]);
}
STATCOLLECT_WIDE_LOOPS void ExclusiveOr(const std::uint64_t* from, std::size_t count,
                                        std::uint64_t* to) {
  for (std::size_t i = 0; i < count; ++i) to[i] ^= from[i];
}
STATCOLLECT_WIDE_LOOPS std::uint64_t BitwiseOr(const std::uint64_t* numbers, std::size_t count) {
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < count; ++i) bits |= numbers[i];
  return bits;
}

constexpr char kTooLarge[] = "it contains a number that is too large";

// The numbers at `indexes`, or all of them if there are none; `gathered` may be used for them.
const std::uint64_t* Gather(std::span<const std::uint64_t> numbers,
                            std::span<const std::uint16_t> indexes, BlockNumbers& gathered) {
  if (indexes.empty()) return numbers.data();
  for (std::size_t j = 0; j < indexes.size(); ++j) gathered[j] = numbers[indexes[j]];
  return gathered.data();
}

// Stored numbers of the own records to values. `indexes`: the places of the own records in the
// block; empty: every record is its own.
void Restore(Column column, std::uint8_t mode, std::span<const std::uint16_t> indexes,
             const BlockColumns* key_frame, const BlockColumns& block,
             std::span<std::uint64_t> numbers) {
  BlockNumbers other;
  if (mode == kNeighbour) {
    std::uint64_t previous = 0;
    for (std::uint64_t& number : numbers) number = previous += UnZigZag(number);
  } else if (mode == kKeyFrame) {
    AddDifferences(Gather(key_frame->of(column), indexes, other), numbers.size(), numbers.data());
  } else if (mode == kExclusiveOr) {
    ExclusiveOr(Gather(key_frame->of(column), indexes, other), numbers.size(), numbers.data());
  } else if (mode == kPredicted) {
    PredictColumn(column, block, key_frame, indexes, std::span(other).first(numbers.size()));
    AddDifferences(other.data(), numbers.size(), numbers.data());
  }
}

STATCOLLECT_WIDE_LOOPS void LoadNumbers(const char* stored, std::size_t count, std::uint64_t* to) {
  for (std::size_t i = 0; i < count; ++i)
    to[i] = LoadLittleEndian<std::uint64_t>(stored + i * sizeof(std::uint64_t));
}

// Stored float32 sums, exactly.
STATCOLLECT_WIDE_LOOPS void Widen(const char* stored, std::size_t count, double* to) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto bits = LoadLittleEndian<std::uint32_t>(stored + i * sizeof(std::uint32_t));
    to[i] = static_cast<double>(std::bit_cast<float>(bits));
  }
}

}  // namespace

Result<BlockReader> BlockReader::Open(const StatKey& key, std::string_view stats) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto payload, UnsealAs([&] { return "block of " + Describe(key); },
                                                      stats, kStatBlockVersion));
  BlockReader reader;
  reader.key_ = key;
  if (!reader.Parse(payload)) return reader.Damaged("its content does not parse");
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
    target_ = {.attempt = in.Varint32(),
               .rank = in.Varint32(),
               .step = in.Varint(),
               .activation = in.Varint32()};
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
bool BlockReader::ReadColumn(Column column, bool all_finite, std::span<const std::uint16_t> indexes,
                             const BlockColumns* key_frame, const BlockColumns& block,
                             std::span<std::uint64_t> numbers) const {
  if (column == kHash) {
    LoadNumbers(hashes_.data(), numbers.size(), numbers.data());
    return true;
  }
  const StoredColumn& stored = columns_[column];
  stored.numbers.ReadAll(numbers);
  Restore(column, stored.mode, indexes, key_frame, block, numbers);
  if (IsReal(column) && !all_finite) {
    const auto flags = block.of(kFlags);
    for (std::size_t j = 0; j < numbers.size(); ++j) {
      if ((flags[indexes.empty() ? j : indexes[j]] & kHasFinite) == 0) numbers[j] = 0;
    }
  }
  return LimitOf(column) == kNoLimit ||
         BitwiseOr(numbers.data(), numbers.size()) <= LimitOf(column);
}

// The others are there already, as in the key frame.
bool BlockReader::ReadScattered(Column column, bool all_finite,
                                std::span<const std::uint16_t> indexes,
                                const BlockColumns* key_frame, const BlockColumns& block,
                                std::span<std::uint64_t> to) const {
  BlockNumbers numbers;
  const auto own = std::span(numbers).first(own_);
  if (!ReadColumn(column, all_finite, indexes, key_frame, block, own)) return false;
  for (std::size_t j = 0; j < own_; ++j) to[indexes[j]] = own[j];
  return true;
}

std::uint64_t BlockReader::HashAt(std::size_t own_index) const {
  return LoadLittleEndian<std::uint64_t>(hashes_.data() + own_index * sizeof(std::uint64_t));
}

// Whether all records are stored and have the same number, which no other column leads to.
bool BlockReader::IsFilled(Column column) const {
  const StoredColumn& stored = columns_[column];
  const bool read = column != kHash && (column != kActivation || kind_ == Kind::kWhole);
  return read && own_ == size_ && !IsReal(column) && stored.mode == kPlain &&
         stored.numbers.is_constant();
}

// `wanted`: which columns; with one that is predicted, those that it is predicted from.
template <typename IsWanted>
Status BlockReader::ReadColumns(const IsWanted& wanted, const BlockColumns* key_frame,
                                BlockColumns* block) const {
  assert(kind_ != Kind::kAlias && (kind_ == Kind::kRelative) == (key_frame != nullptr));
  if (key_frame != nullptr &&
      (key_frame->size() != size_ || key_frame->sketch_width() != sketch_width_)) {
    return Damaged("its key frame has a different size");
  }
  block->Resize(size_, sketch_width_);
  std::array<std::uint16_t, kBlockRecordsMax> own_index;  // of own record j, if there are others
  for (std::size_t i = 0, j = 0; i < size_ && own_ < size_; ++i) {
    if (!IsSame(i)) own_index[j++] = static_cast<std::uint16_t>(i);
  }
  bool all_finite = true;  // of the records that are stored here
  for (std::size_t c = 0; c < kColumnCount; ++c) {
    const auto column = static_cast<Column>(c);
    if (!wanted(column)) continue;
    if (IsFilled(column)) {
      const std::uint64_t number = columns_[column].numbers.At(0);
      if (number > LimitOf(column)) return Damaged(kTooLarge);
      block->Fill(column, number);
      if (column == kFlags) all_finite = (number & kHasFinite) != 0;
      continue;
    }
    const auto to = block->of(column);
    const bool as_key_frame = own_ < size_ || column == kActivation;
    if (key_frame != nullptr && as_key_frame) std::ranges::copy(key_frame->of(column), to.begin());
    if (own_ == 0 || (column == kActivation && key_frame != nullptr)) continue;
    const bool read = own_ == size_
                          ? ReadColumn(column, all_finite, {}, key_frame, *block, to)
                          : ReadScattered(column, all_finite, std::span(own_index).first(own_),
                                          key_frame, *block, to);
    if (!read) return Damaged(kTooLarge);
    if (column == kFlags) {
      for (std::size_t j = 0; j < own_; ++j)
        all_finite = all_finite & ((to[own_ < size_ ? own_index[j] : j] & kHasFinite) != 0);
    }
  }
  return Status::Ok();
}

Status BlockReader::ReadNumbers(const BlockColumns* key_frame, BlockColumns* block) const {
  return ReadColumns([](Column) { return true; }, key_frame, block);
}

Status BlockReader::ReadCompared(const BlockColumns* key_frame, BlockColumns* block) const {
  return ReadColumns([](Column column) { return column != kL1; }, key_frame, block);
}

Status BlockReader::ReadNorms(const BlockColumns* key_frame, BlockColumns* block) const {
  return ReadColumns([](Column column) { return column < kL1; }, key_frame, block);
}

Status BlockReader::ReadHashes(const BlockColumns* key_frame, BlockColumns* block) const {
  return ReadColumns(
      [](Column column) { return std::ranges::find(kHashColumns, column) != kHashColumns.end(); },
      key_frame, block);
}

bool BlockReader::StoresSums(const BlockColumns& block) const {
  const auto counts = block.of(kSamples);
  return own_ > 0 && (sketch_width_ > 0 || BitwiseOr(counts.data(), size_) != 0);
}

Status BlockReader::ReadSums(std::optional<std::string_view> sums, const BlockColumns* key_frame,
                             BlockColumns* block) const {
  ByteReader in("");
  if (sums) {
    STATCOLLECT_ASSIGN_OR_RETURN(
        auto payload, UnsealAs([&] { return "sketches of block of " + Describe(key_); }, *sums,
                               kStatBlockVersion));
    in = ByteReader(payload);
  }
  const BlockColumns& numbers = *block;
  const auto flags = numbers.of(kFlags);
  const bool any_wide = (BitwiseOr(flags.data(), size_) & kWideSketch) != 0;
  const bool all_narrow = own_ == size_ && !any_wide;
  if (all_narrow) {
    const std::string_view bytes = in.Raw(block->sketch.size() * sizeof(float));
    if (in.ok()) Widen(bytes.data(), block->sketch.size(), block->sketch.data());
  }
  for (std::size_t i = 0; i < size_ && !all_narrow && sketch_width_ > 0; ++i) {
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
  const auto counts = numbers.of(kSamples);
  const bool has_samples = BitwiseOr(counts.data(), size_) != 0;
  std::size_t key_at = 0;
  for (std::size_t i = 0; i < size_ && has_samples; ++i) {
    const std::uint64_t count = counts[i];
    const std::uint64_t there =
        IsSame(i) ? key_frame->samples.size() - key_at : in.remaining() / sizeof(double);
    if (count > there) in.Fail();
    if (!in.ok()) break;
    for (std::uint64_t s = 0; s < count; ++s) {
      block->samples.push_back(IsSame(i) ? key_frame->samples[key_at + s] : in.F64());
    }
    if (key_frame != nullptr)
      key_at =
          std::min<std::size_t>(key_at + key_frame->of(kSamples)[i], key_frame->samples.size());
  }
  return in.done() ? Status::Ok() : Damaged("its sketches or samples are missing or too many");
}

std::optional<std::size_t> BlockReader::Find(std::uint32_t activation) const {
  if (kind_ != Kind::kWhole) return std::nullopt;
  const StoredColumn& stored = columns_[kActivation];
  BlockNumbers numbers;
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
    BlockNumbers numbers;
    const auto all = std::span(numbers).first(own_);
    stored.numbers.ReadAll(all);
    std::uint64_t value = 0;
    for (const std::uint64_t number : all.first(own_index + 1)) value += UnZigZag(number);
    return value;
  }
  const std::uint64_t number = stored.numbers.At(own_index);
  if (stored.mode == kKeyFrame) return (*key)[column] + UnZigZag(number);
  if (stored.mode == kExclusiveOr) return (*key)[column] ^ number;
  if (stored.mode == kPredicted) return UnZigZag(number) + PredictOne(column, before, key);
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
