// The hashes of a whole step, merged without its other numbers.
#ifndef STATCOLLECT_SERVER_QUERY_LOGICAL_STEP_SHAPE_H_
#define STATCOLLECT_SERVER_QUERY_LOGICAL_STEP_SHAPE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/records.h"
#include "server/store/hash_columns.h"
#include "server/store/run_reader.h"

namespace statcollect::query {

// What a step's records are, apart from their values: which tensors each rank recorded, in which
// layouts and order.
struct StepRecords {
  struct Block {
    std::uint32_t member = 0, records = 0, sketch_width = 0;
    bool operator==(const Block&) const = default;
  };
  std::vector<Block> blocks;
  std::vector<std::uint32_t> activation, layout, order;  // of all blocks, one after another
  bool operator==(const StepRecords&) const = default;
};

// The records of a step and their hashes, of all ranks.
struct StepHashes {
  StepRecords records;
  std::vector<std::uint64_t> hash;

  void Add(std::uint32_t member, const HashColumns& block);
  void Clear();
};

// The merged tensors of a step are two blocks: those with sketches, and those without.
inline constexpr std::size_t kMergedBlocks = 2;
using MergedHeads =
    std::array<BlockHead, kMergedBlocks>;  // of a block that is not there: no records

// The head of a merged block as far as its values do not matter; its digest is of everything else.
BlockHead HeadWithoutValues(std::uint64_t step, const StatColumns& block);
// The digest of a block with such a head.
BlockDigest DigestWith(const BlockHead& head, std::span<const std::uint64_t> hashes);

// How the hashes of a step's records add up to those of its logical tensors: the same for all steps
// with the same records. Immutable.
class StepShape {
 public:
  static constexpr std::uint32_t kNotMerged = ~std::uint32_t{0};

  // `to`: by record, the merged tensor that its hash is added to, or kNotMerged; merged tensors are
  // numbered through the blocks. `replicas`: pairs of records that should have the same hash.
  // `heads`: without values.
  using Pairs = std::vector<std::pair<std::uint32_t, std::uint32_t>>;
  StepShape(StepRecords records, std::vector<std::uint32_t> to, Pairs replicas,
            const MergedHeads& heads)
      : records_(std::move(records)),
        to_(std::move(to)),
        replicas_(std::move(replicas)),
        heads_(heads) {}

  bool IsOf(const StepHashes& step) const { return step.records == records_; }
  // For a step of this shape. Empty if replicas differ; whoever reads the whole step reports that.
  std::optional<MergedHeads> Merge(std::uint64_t number, const StepHashes& step) const;

 private:
  const StepRecords records_;
  const std::vector<std::uint32_t> to_;
  const Pairs replicas_;
  const MergedHeads heads_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_LOGICAL_STEP_SHAPE_H_
