// Statistics of the rows of a matrix, one token each, and the keys of tokens.
//
// KEY. A token is known by what came before it: key(p) = mix(key(p - 1), id(p)), with
// key(-1) = kTokenKeyStart and mix as in fingerprint.h. So tokens with the same ids before them
// have the same key, however a program batches, pads or cuts them.
//
// A ROW of d components (complex elements have two):
//   l2      of the row, in float32; NaN if a component is not finite, infinite beyond float32
//   hash    as of a tensor with one dimension (fingerprint.h)
//   sketch  8 sums: component c, of those that are finite, goes to sum c % 8 with the sign of
//           RowMinus(c); added in float64, on the CPU in order of c. The squared norm of the sums
//           estimates that of the row. Sum 0 of a row of one component is its value, finite or not.
// A row may be a part of a longer one, from its component `first` on. What parts have adds up: hash
// exactly, sums and squares of l2 to rounding.
//
// Results are stored on disk: definitions must not change within kDefinition.
#ifndef STATCOLLECT_AGENT_STATS_ROWS_H_
#define STATCOLLECT_AGENT_STATS_ROWS_H_

#include <cstdint>
#include <span>

#include "agent/stats/fingerprint.h"
#include "agent/stats/row_sums.h"
#include "agent/stats/stats.h"
#include "common/records.h"
#include "common/status.h"

namespace statcollect::stats {

inline constexpr std::uint64_t kTokenKeyStart = 0x53544154544f4b45u;

constexpr std::uint64_t TokenKey(std::uint64_t before, std::uint64_t id) {
  return SplitMix(before, id);
}

static_assert(kRowSums == kRowSketch);

// kInvalidArgument: as Validate, or not of two dimensions, or more than 2^32 - 1 components of a
// row with those before it.
Status ValidateRows(const CpuTensor& rows, std::uint64_t first);

// Row i goes to out[i]; with an `index` row index[i], each below the number of rows. One pass over
// the matrix; memory: 8 bytes a component of a row. `workers` (may be null) share the rows.
// Precondition: ValidateRows is OK; as many in `out` as rows, or as in the index.
void ComputeRows(const CpuTensor& rows, std::uint64_t first, std::span<RowStats> out,
                 CpuWorkers* workers, const std::int64_t* index = nullptr);

}  // namespace statcollect::stats

#endif  // STATCOLLECT_AGENT_STATS_ROWS_H_
