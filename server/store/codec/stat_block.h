// Stored form of a block of statistics: consecutive records of one step, column by column, in two
// values: the statistics, and the sketches and samples. docs/storage-format.md has the layout.
//
// A block is whole, or relative to an earlier whole block of the same activations (its key frame),
// or an alias of a block with the same content elsewhere in the store. BlockReader (block_reader.h)
// reads what is written here.
#ifndef STATCOLLECT_SERVER_STORE_CODEC_STAT_BLOCK_H_
#define STATCOLLECT_SERVER_STORE_CODEC_STAT_BLOCK_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "server/store/codec/block_columns.h"
#include "server/store/key.h"

namespace statcollect {

inline constexpr std::uint8_t kStatBlockVersion = 2;

struct EncodedBlock {
  std::string stats;  // sealed
  std::string
      sums;  // sealed sketches and samples; empty if there are none or the key frame has them
};

EncodedBlock EncodeBlock(const BlockColumns& block, const BlockDigest& digest);
// Precondition: IsKeyFrameFor(key_frame, block); the key frame is `steps_back` >= 1 steps before.
EncodedBlock EncodeBlock(const BlockColumns& block, const BlockDigest& digest,
                         const BlockColumns& key_frame, std::uint64_t steps_back);
// `target` is a block with the same digest that is not an alias.
std::string EncodeAlias(const BlockDigest& digest, std::size_t size, std::uint32_t sketch_width,
                        const StatKey& target);

// Whether both have the same activations in the same order, and sketches of the same width.
bool IsKeyFrameFor(const BlockColumns& key_frame, const BlockColumns& block);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CODEC_STAT_BLOCK_H_
