// Statistics of an array in a file, as the agent computes them: the one place of the client that
// uses its engine.
#ifndef STATCOLLECT_CLIENT_FORMATS_ARRAY_STATS_H_
#define STATCOLLECT_CLIENT_FORMATS_ARRAY_STATS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "client/formats/source.h"
#include "common/records.h"
#include "common/status.h"

namespace statcollect::client::formats {

// The sums of a sketch that importers compute: the agent's default.
inline constexpr std::size_t kSketchSums = 16;

// How the elements lie in the file.
struct StoredArray {
  DType dtype = DType::kUnspecified;  // kUnspecified: of a type without statistics, such as texts
  std::string dtype_text;             // as in the file: "<f4"
  bool big_endian = false;
  std::vector<std::int64_t> shape;
  std::uint64_t elements = 0;         // of the shape
  std::vector<std::int64_t> strides;  // in elements, none negative; empty: row by row
  std::uint64_t stored = 0;           // elements in the file: with strides, all that they reach
  bool ends_file = true;              // nothing follows them
};

// Statistics of the elements that come next in the file. `as`: the array's dtype, or kBf16 for
// float32 numbers that are bfloat16's, or kBool for bytes that are 0 or 1 (kFailedPrecondition if
// one is not). `sketch` has 0, 16, 32 or 64 sums and is overwritten. kInvalidArgument: fewer
// elements than that, or more in a file that they end. Memory: 4 MiB; with strides, all that is
// stored, of which as of the elements at most 4 GiB are taken, and never more than the file has.
Result<TensorStats> ReadStats(ByteSource& file, const StoredArray& array, DType as,
                              std::span<double> sketch);

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_CLIENT_FORMATS_ARRAY_STATS_H_
