// Reads blocks of statistics together with what they refer to: key frames and the targets of aliases.
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
#include "server/store/codec/stat_block.h"
#include "server/store/key.h"
#include "server/store/rocksdb/util.h"

namespace statcollect {

// Values of one family by key, cheapest if keys grow. Sees the store as it was when the cursor was made.
class Cursor {
 public:
  Cursor(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family);
  // Valid until the next call. Nothing if there is no such key, or on failure (see status).
  std::optional<std::string_view> Get(const std::string& key);
  rocksdb::Status status() const { return it_->status(); }

 private:
  std::unique_ptr<rocksdb::Iterator> it_;
};

// Not thread-safe. Keeps the key frames that it met last.
class BlockSource {
 public:
  BlockSource(rocksdb::DB& db, const StatFamilies& families);

  // The block stored under `key`. `sketches`: with sketches and samples. kDataLoss names the key.
  Status Read(const StatKey& key, const BlockReader& stored, bool sketches, BlockColumns* block);
  // One record of it, without its sketch; nothing if the block does not have the activation.
  Result<std::optional<ColumnRecord>> ReadRecord(const StatKey& key, std::string_view stats,
                                                 std::uint32_t activation);

  std::uint64_t bytes_read() const { return bytes_read_; }

 private:
  struct KeyFrame {
    std::uint64_t step = 0;
    bool sketches = false;
    BlockColumns block;
  };
  // A block that is no alias.
  struct Resolved {
    StatKey key;
    std::unique_ptr<std::string> bytes;  // what the reader points into, if it was fetched here
    BlockReader reader;
  };

  // Precondition: `stored` is an alias.
  Result<Resolved> Resolve(const StatKey& key, const BlockReader& stored);
  Result<Resolved> Reread(const StatKey& key, const Status& why);
  Result<std::string> Fetch(const StatKey& key, const std::string& for_what);
  // Of a block that is no alias.
  Status ReadResolved(const StatKey& key, const BlockReader& reader, bool sketches, BlockColumns* block);
  Result<KeyFrame*> FindKeyFrame(const StatKey& key, const BlockReader& reader, bool sketches);

  rocksdb::DB& db_;
  const StatFamilies families_;
  Cursor stats_, sketches_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, KeyFrame>
      key_frames_;  // attempt, rank, activation
  std::uint64_t bytes_read_ = 0;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_BLOCK_SOURCE_H_
