// Cuts one stream's statistics into blocks and encodes them: relative to a key frame of the stream
// if possible, and also as an alias if the store already has an equal block.
#ifndef STATCOLLECT_SERVER_STORE_CODEC_STAT_ENCODER_H_
#define STATCOLLECT_SERVER_STORE_CODEC_STAT_ENCODER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/records.h"
#include "server/store/codec/stat_block.h"
#include "server/store/key.h"

namespace statcollect {

// Records of activations [n * 256, (n + 1) * 256) of a step share a block if they arrive together.
inline constexpr std::uint32_t kActivationsShift = 8;

struct EncodedStatBlock {
  StatKey key;
  BlockDigest digest{};
  std::size_t records = 0;
  EncodedBlock own;
  std::optional<StatKey> twin;  // an equal block in the store
  std::string alias;            // referring to the twin
  bool worth_listing = false;   // large enough that an alias of it would save space
};

// Not thread-safe. A block may refer to an earlier one of the same encoder, so its blocks must be
// stored in the order in which they were made, and none after one that could not be stored.
class StatEncoder {
 public:
  struct Options {
    // Finds an equal block; must be cheap. May be empty.
    std::function<std::optional<StatKey>(const BlockDigest&)> find_twin;
    // Memory of all encoders' key frames, and its limit, beyond which blocks stand alone. Null: no
    // key frames.
    std::atomic<std::size_t>* key_frame_bytes = nullptr;
    std::size_t key_frame_bytes_max = std::size_t{256} << 20;
  };

  StatEncoder(std::uint32_t attempt, std::uint32_t rank, Options options);
  ~StatEncoder();
  StatEncoder(const StatEncoder&) = delete;
  StatEncoder& operator=(const StatEncoder&) = delete;

  // Steps must not decrease. Appends to `blocks`.
  void Encode(const StatColumns& columns, std::vector<EncodedStatBlock>* blocks);

 private:
  struct KeyFrame {
    std::uint64_t step = 0;
    int uses = 0;
    int misses = 0;  // consecutive blocks that it did not fit
    BlockColumns block;
  };

  void EncodeStep(const StatColumns& columns, std::uint32_t first, std::uint32_t end,
                  std::span<const std::size_t> sample_at, std::vector<EncodedStatBlock>* blocks);
  EncodedStatBlock EncodeOne(BlockColumns block, std::uint64_t step);
  void Keep(std::uint32_t activation, std::uint64_t step, BlockColumns block);

  const std::uint32_t attempt_, rank_;
  const Options options_;
  std::map<std::uint32_t, KeyFrame> key_frames_;  // by the block's lowest activation
  std::size_t kept_bytes_ = 0;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CODEC_STAT_ENCODER_H_
