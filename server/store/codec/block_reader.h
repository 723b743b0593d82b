// Reads the stored form of a block of statistics (stat_block.h), as a whole or one record of it.
#ifndef STATCOLLECT_SERVER_STORE_CODEC_BLOCK_READER_H_
#define STATCOLLECT_SERVER_STORE_CODEC_BLOCK_READER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "common/records.h"
#include "common/status.h"
#include "server/store/byte_io.h"
#include "server/store/codec/block_columns.h"
#include "server/store/codec/packed_column.h"
#include "server/store/key.h"

namespace statcollect {

// A stored block. Points into the bytes on which it was opened. Lengths in them are not trusted.
class BlockReader {
 public:
  enum class Kind : std::uint8_t { kWhole = 0, kRelative = 1, kAlias = 2 };

  // kDataLoss: wrong checksum or content that does not parse; kFailedPrecondition: a newer version.
  // `key` names the block in messages.
  static Result<BlockReader> Open(const StatKey& key, std::string_view stats);

  Kind kind() const { return kind_; }
  const BlockDigest& digest() const { return digest_; }
  std::size_t size() const { return size_; }                    // records
  std::uint32_t sketch_width() const { return sketch_width_; }  // sums per record
  std::uint64_t steps_back() const { return steps_back_; }      // kRelative: to the key frame
  const StatKey& target() const { return target_; }             // kAlias

  // Everything except sketches and samples. `key_frame`: for a kRelative block, as read by
  // ReadNumbers; otherwise null. Not for an alias.
  Status ReadNumbers(const BlockColumns* key_frame, BlockColumns* block) const;
  // Of the numbers all but kL1, which no comparison uses. Also with a key frame that was read like
  // this.
  Status ReadCompared(const BlockColumns* key_frame, BlockColumns* block) const;
  // Of the numbers those before kL1. Also with a key frame that was read like this.
  Status ReadNorms(const BlockColumns* key_frame, BlockColumns* block) const;
  // Of the numbers only kHashColumns.
  Status ReadHashes(const BlockColumns* key_frame, BlockColumns* block) const;
  // Whether a value of sketches and samples is stored for a block after ReadNumbers.
  bool StoresSums(const BlockColumns& block) const;
  // Sketches and samples of a block after ReadNumbers. `sums`: sealed; empty if there is no such
  // value.
  Status ReadSums(std::optional<std::string_view> sums, const BlockColumns* key_frame,
                  BlockColumns* block) const;

  // Reads one record without the others. Find gives the index of an activation in this block or, if
  // it is kRelative, in its key frame.
  std::optional<std::size_t> Find(std::uint32_t activation) const;
  ColumnRecord ReadRecord(std::size_t index, const ColumnRecord* key) const;

 private:
  struct StoredColumn {
    std::uint8_t mode = 0;
    PackedColumn numbers;
  };

  bool Parse(std::string_view payload);
  template <typename IsWanted>
  Status ReadColumns(const IsWanted& wanted, const BlockColumns* key_frame,
                     BlockColumns* block) const;
  void ParseSame(ByteReader& in);
  bool IsFilled(Column column) const;
  bool IsSame(std::size_t index) const;
  std::size_t OwnIndex(
      std::size_t index) const;  // among the records that differ from the key frame
  std::uint64_t HashAt(std::size_t own_index) const;  // precondition: own_index < own_
  bool ReadColumn(Column column, bool all_finite, std::span<const std::uint16_t> indexes,
                  const BlockColumns* key_frame, const BlockColumns& block,
                  std::span<std::uint64_t> numbers) const;
  bool ReadScattered(Column column, bool all_finite, std::span<const std::uint16_t> indexes,
                     const BlockColumns* key_frame, const BlockColumns& block,
                     std::span<std::uint64_t> to) const;
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

#endif  // STATCOLLECT_SERVER_STORE_CODEC_BLOCK_READER_H_
