// Reads blocks of statistics and the blocks to which they refer: key frames and targets of aliases.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_BLOCK_SOURCE_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_BLOCK_SOURCE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include <rocksdb/db.h>

#include "common/status.h"
#include "server/store/codec/block_reader.h"
#include "server/store/key.h"
#include "server/store/rocksdb/util.h"

namespace statcollect {

// Reads values of one family by key, cheapest with increasing keys. Sees the store as of the
// cursor's creation.
class Cursor {
 public:
  Cursor(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family);
  // Valid until the next call. Empty if there is no such key, or on failure (see status).
  std::optional<std::string_view> Get(const std::string& key);
  rocksdb::Status status() const { return it_->status(); }

 private:
  std::unique_ptr<rocksdb::Iterator> it_;
};

enum class BlockParts : std::uint8_t {
  kHashes,    // kHashColumns
  kNorms,     // the numbers before kL1
  kNumbers,   // all but sketches and samples
  kCompared,  // all but kL1
  kAll,
};

// Not thread-safe. Caches the last key frames.
class BlockSource {
 public:
  BlockSource(rocksdb::DB& db, const StatFamilies& families);

  // The block stored under `key`. kDataLoss names the key.
  Status Read(const StatKey& key, const BlockReader& stored, BlockParts parts, BlockColumns* block);
  // The same without a copy if the block is cached; valid until the next call. `other`: receives it
  // otherwise.
  Result<const BlockColumns*> ReadInPlace(const StatKey& key, const BlockReader& stored,
                                          BlockParts parts, BlockColumns* other);
  // One record of it, without its sketch; empty if the block does not have the activation. Cheapest
  // for one activation in ascending steps: the record of the last key frame is remembered.
  Result<std::optional<ColumnRecord>> ReadRecord(const StatKey& key, std::string_view stats,
                                                 std::uint32_t activation);

  std::uint64_t bytes_read() const { return bytes_read_; }

 private:
  struct KeyFrame {
    std::uint64_t step = 0;
    BlockParts parts = BlockParts::kNumbers;
    BlockColumns block;
  };
  // attempt, rank, activation
  using Place = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;
  // A block that is not an alias.
  struct Resolved {
    StatKey key;
    std::unique_ptr<std::string> bytes;  // holds the reader's bytes, if they were fetched here
    BlockReader reader;
  };

  // One activation's record in a block that stands alone.
  struct KeyRecord {
    StatKey key;
    std::uint32_t activation = 0;
    std::size_t size = 0;              // of the block
    std::optional<std::size_t> index;  // empty: the block does not have the activation
    ColumnRecord record{};
  };

  // Precondition: `stored` is an alias.
  Result<Resolved> Resolve(const StatKey& key, const BlockReader& stored);
  Result<Resolved> Reread(const StatKey& key, const Status& why);
  Result<std::string> Fetch(const StatKey& key, const std::string& for_what);
  // For a block that is not an alias.
  Status ReadResolved(const StatKey& key, const BlockReader& reader, BlockParts parts,
                      BlockColumns* block);
  Result<KeyFrame*> FindKeyFrame(const StatKey& key, const BlockReader& reader, BlockParts parts);
  // Of a block that stands alone, at `key`.
  Result<KeyFrame*> KeepKeyFrame(const StatKey& key, const BlockReader& whole, BlockParts parts);
  Result<const KeyRecord*> FindKeyRecord(const StatKey& key, const BlockReader& reader,
                                         std::uint32_t activation);
  Result<const KeyRecord*> RememberRecord(const StatKey& key, const BlockReader& whole,
                                          std::uint32_t activation);
  // The key frame's bytes, at `at`; the block at `key` is relative to it.
  Result<BlockReader> OpenKeyFrame(const StatKey& key, const StatKey& at, std::string* bytes);

  rocksdb::DB& db_;
  const StatFamilies families_;
  Cursor stats_, sketches_;
  std::map<Place, KeyFrame> key_frames_;
  std::optional<KeyRecord> key_record_;
  std::uint64_t bytes_read_ = 0;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_BLOCK_SOURCE_H_
