// Stored form of a block of statistics: consecutive records of one step, column by column, in two values: the
// statistics, and the sketches and samples. docs/storage-format.md has the layout.
//
// A block is whole, or relative to an earlier whole block of the same activations (its key frame), or an
// alias of a block with the same content elsewhere in the store.
#ifndef STATCOLLECT_SERVER_STORE_CODEC_STAT_BLOCK_H_
#define STATCOLLECT_SERVER_STORE_CODEC_STAT_BLOCK_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/records.h"
#include "common/status.h"
#include "server/store/codec/block_columns.h"
#include "server/store/codec/packed_column.h"
#include "server/store/key.h"

namespace statcollect {

inline constexpr std::uint8_t kStatBlockVersion = 2;

struct EncodedBlock {
  std::string stats;  // sealed
  std::string sums;   // sealed sketches and samples; empty if there are none or the key frame has them
};

EncodedBlock EncodeBlock(const BlockColumns& block, const BlockDigest& digest);
// Precondition: IsKeyFrameFor(key_frame, block); the key frame is `steps_back` >= 1 steps before.
EncodedBlock EncodeBlock(const BlockColumns& block, const BlockDigest& digest, const BlockColumns& key_frame,
                         std::uint64_t steps_back);
// `target` is a block with the same digest that is not an alias.
std::string EncodeAlias(const BlockDigest& digest, std::size_t size, std::uint32_t sketch_width,
                        const StatKey& target);

// The same activations in the same order, and sketches of the same width.
bool IsKeyFrameFor(const BlockColumns& key_frame, const BlockColumns& block);

// A stored block. Points into the bytes on which it was opened. Lengths in them are not trusted.
class BlockReader {
 public:
  enum class Kind : std::uint8_t { kWhole = 0, kRelative = 1, kAlias = 2 };

  // kDataLoss: wrong checksum or content that does not parse; kFailedPrecondition: a newer version. `key`
  // names the block in messages.
  static Result<BlockReader> Open(const StatKey& key, std::string_view stats);

  Kind kind() const { return kind_; }
  const BlockDigest& digest() const { return digest_; }
  std::size_t size() const { return size_; }                    // records
  std::uint32_t sketch_width() const { return sketch_width_; }  // sums per record
  std::uint64_t steps_back() const { return steps_back_; }      // kRelative: to the key frame
  const StatKey& target() const { return target_; }             // kAlias

  // Everything except sketches and samples. `key_frame`: for a kRelative block, as read by ReadNumbers;
  // otherwise null. Not for an alias.
  Status ReadNumbers(const BlockColumns* key_frame, BlockColumns* block) const;
  // Sketches and samples of a block after ReadNumbers. `sums`: sealed; empty if there is no such value.
  Status ReadSums(std::optional<std::string_view> sums, const BlockColumns* key_frame,
                  BlockColumns* block) const;

  // Reads one record without the others. Find gives the index of an activation in this block or, if it is
  // kRelative, in its key frame.
  std::optional<std::size_t> Find(std::uint32_t activation) const;
  ColumnRecord ReadRecord(std::size_t index, const ColumnRecord* key) const;

 private:
  struct StoredColumn {
    std::uint8_t mode = 0;
    PackedColumn numbers;
  };

  bool Parse(std::string_view payload);
  void ParseSame(ByteReader& in);
  bool IsSame(std::size_t index) const;
  std::size_t OwnIndex(std::size_t index) const;      // among the records that differ from the key frame
  std::uint64_t HashAt(std::size_t own_index) const;  // precondition: own_index < own_
  template <typename IndexOf>
  bool ReadColumn(Column column, bool all_finite, const IndexOf& index_of, std::span<std::uint64_t> numbers,
                  const BlockColumns* key_frame, const BlockColumns& block) const;
  bool ReadScattered(Column column, bool all_finite, std::span<const std::uint16_t> own_index,
                     std::span<std::uint64_t> to, const BlockColumns* key_frame,
                     const BlockColumns& block) const;
  std::uint64_t ReadOne(Column column, std::size_t own_index, const ColumnRecord& before,
                        const ColumnRecord* key) const;
  Status Damaged(std::string_view found) const;

  StatKey key_;
  Kind kind_ = Kind::kWhole;
  BlockDigest digest_{};
  std::size_t size_ = 0, own_ = 0;  // records; those that differ from the key frame
  std::uint32_t sketch_width_ = 0;
  std::uint64_t steps_back_ = 0;
  StatKey target_;
  bool all_same_ = false;
  std::string_view same_;  // one bit per record; empty: none or all
  std::array<StoredColumn, kColumnCount> columns_;
  std::string_view hashes_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CODEC_STAT_BLOCK_H_
