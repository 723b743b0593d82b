// Statistics of a logical tensor in one step from the records of the ranks that hold it.
#ifndef STATCOLLECT_SERVER_QUERY_LOGICAL_MERGE_PARTS_H_
#define STATCOLLECT_SERVER_QUERY_LOGICAL_MERGE_PARTS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/records.h"

namespace statcollect::query {

// What one rank recorded. Points into what was read.
struct Part {
  std::uint32_t rank = 0;
  std::uint32_t micro_batch = 0, call = 0;
  const Layout* layout = nullptr;
  const TensorStats* stats = nullptr;
  std::span<const double> sketch;
  std::uint32_t order = 0, stage = 0;
};

enum class Tiling : std::uint8_t {
  kWhole,
  kIncomplete,   // parts are missing
  kConflicting,  // parts overlap, or do not agree about the shape or into how many pieces the batch
                 // is cut
};

// How the parts of a tensor go together: the same in every step in which the same ranks record the
// same layouts.
struct MergePlan {
  struct Key {
    std::uint32_t rank = 0, micro_batch = 0, call = 0;
    const Layout* layout = nullptr;
    bool operator==(const Key&) const = default;
  };
  struct Replica {
    std::uint32_t part = 0, of = 0;
  };

  std::vector<Key> parts;              // that it was made for
  std::vector<std::uint32_t> counted;  // indexes of the parts that add up
  std::vector<Replica> replicas;       // and of those that repeat one of them
  Layout layout;           // dtype, global shape, and what is absent; everything unless whole
  bool has_sketch = true;  // hash and sketch need every element's place
  Tiling tiling = Tiling::kWhole;
  bool nothing = false;  // a set without entries on any rank: as if it had not been recorded
  std::string problem;   // what is missing or contradicts; empty if whole
};

// Parts without a placement are replicas of the whole; the caller has checked that. If the tensor
// has several pieces (data-parallel ranks, micro-batches), whose order is not known because they
// are not boxes of one batch, hash, sketch and everything that grows with the number of samples are
// absent: extremes, mean and deviation remain, of single numbers the mean. Pieces with an unordered
// dimension add up to a larger set instead, with everything. Precondition: at least one part. Cost:
// the square of the number of different places. `sums`: counts and norms of the pieces are kept, as
// of a tensor of one dimension; not for comparing with runs that may have had other batches.
MergePlan MakePlan(std::span<const Part> parts, bool sums = false);

// Whether the plan was made for such parts.
bool Fits(const MergePlan& plan, std::span<const Part> parts);

// Adds up the parts of a plan that is whole, otherwise nothing: counts, extremes and hash are
// exact, moments and sketch to rounding. Appends the sketch to `sketch`; false, and nothing is
// appended, if there is none, because the plan has none or not all parts have sums of one width.
// `differing`: gets the ranks whose replica is not the first one's.
bool Merge(const MergePlan& plan, std::span<const Part> parts, TensorStats* stats,
           std::vector<double>* sketch, std::vector<std::uint32_t>* differing);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_LOGICAL_MERGE_PARTS_H_
