// The blocks that relative blocks of one rank refer to.
#ifndef STATCOLLECT_SERVER_STORE_CLICKHOUSE_KEY_FRAMES_H_
#define STATCOLLECT_SERVER_STORE_CLICKHOUSE_KEY_FRAMES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"
#include "server/store/clickhouse/chain.h"
#include "server/store/clickhouse/engine.h"
#include "server/store/codec/block_reader.h"
#include "server/store/key.h"

namespace statcollect {

struct BlockBytes {
  std::string_view stats;
  std::optional<std::string_view> sums;  // none: the block has none, or they were not asked for
};

// A block that is being read.
struct OpenBlock {
  StatKey key;
  BlockReader reader;
  BlockBytes bytes;
};

// Not thread-safe. Keeps the last frames, decoded.
class KeyFrames {
 public:
  explicit KeyFrames(Engine& engine) : engine_(engine) {}

  // Reads the frames that these blocks need and that are neither kept nor among them, in one
  // request. `chain`: of the blocks' rank. The bytes of `blocks` must stay until the next call.
  Status Prepare(const std::vector<OpenBlock>& blocks, const Chain& chain, bool sums);
  // The frame of a block that was prepared with `sums`.
  Result<const BlockColumns*> FrameOf(const OpenBlock& block, bool sums);
  std::uint64_t bytes_read() const { return bytes_read_; }

 private:
  struct Decoded {
    std::uint64_t step = 0;
    bool sums = false;
    BlockColumns block;
  };
  using Place = std::pair<std::uint64_t, std::uint64_t>;  // step, lowest activation

  bool IsKept(const Place& place, bool sums) const;

  Engine& engine_;
  std::map<std::uint64_t, Decoded> decoded_;  // by lowest activation
  std::map<Place, BlockBytes> near_;          // of the blocks at hand and what was fetched for them
  std::string fetched_;
  std::uint64_t bytes_read_ = 0;
};

// Stored blocks with the given keys, by step and lowest activation; the bytes point into `body`.
Result<std::map<std::pair<std::uint64_t, std::uint64_t>, BlockBytes>> ParseBlocks(
    const Engine& engine, const std::string& attempted, std::string_view body, const Chain& chain);
// The columns of the query whose answer ParseBlocks reads, with the place; conditions may be added.
std::string BlocksQuery(const Engine& engine, AttemptId attempt, std::uint32_t rank, bool sums);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CLICKHOUSE_KEY_FRAMES_H_
