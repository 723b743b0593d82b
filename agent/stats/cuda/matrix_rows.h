// Parameters of the kernel that computes statistics of a matrix's rows (rows.h), and how it cuts
// them (kernels_matrix_rows.cu).
//
// A row is cut where the logical row has blocks of the hash (2 KiB), of which it has the first and
// the last perhaps in part. A warp takes a block at a time, four vectors a lane; a row of more than
// kWarpRowBlocks blocks has all warps of a thread block, others one. So the order of summation
// depends on dtype, first component and number of components alone.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_MATRIX_ROWS_H_
#define STATCOLLECT_AGENT_STATS_CUDA_MATRIX_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "agent/stats/cuda/layout.h"
#include "agent/stats/row_sums.h"

namespace statcollect::stats::cuda {

// What a row gives: host memory that the device can write. Written once by the device, ready last.
struct alignas(64) RowRecord {
  std::uint64_t ready;  // the launch's ticket, once everything else is there
  std::uint64_t hash;
  float l2;
  float sketch[kRowSums];
};

inline constexpr int kRowsWarps = 8;  // of a thread block
inline constexpr int kRowsThreads = kRowsWarps * kWarpLanes;
inline constexpr std::uint64_t kRowBlockBytes = std::uint64_t{4} * kHashWords;
inline constexpr std::uint64_t kWarpRowBlocks = 32;

struct RowLaunch {
  const KernelTables* tables = nullptr;           // kKernelTables, in device memory
  const unsigned char* data = nullptr;            // of row 0
  std::int64_t row_bytes = 0, element_bytes = 0;  // from each to the next
  const std::int64_t* index = nullptr;  // of the rows, in memory of AllocateOnHost; null: all
  std::uint32_t rows = 0;
  std::uint32_t parts = 1;       // components of an element
  std::uint64_t components = 0;  // of a row
  std::uint64_t first = 0;       // in the logical row, of component 0
  RowRecord* records = nullptr;  // one a row
  std::uint64_t ticket = 0;
};

// The blocks that a row has a part of: [begin, end).
struct RowBlocks {
  std::uint64_t begin, end;

  STATCOLLECT_FINGERPRINT_HD RowBlocks(const RowLaunch& launch, int component_bytes)
      : begin(launch.first * static_cast<unsigned>(component_bytes) / kRowBlockBytes),
        end(((launch.first + launch.components) * static_cast<unsigned>(component_bytes) +
             kRowBlockBytes - 1) /
            kRowBlockBytes) {}
  // Warps that share the row.
  STATCOLLECT_FINGERPRINT_HD std::uint32_t warps() const {
    return end - begin > kWarpRowBlocks ? kRowsWarps : 1;
  }
};

// What a warp hands to the first one of its row.
struct RowParts {
  std::uint64_t hash;
  double squares;
  double sums[kRowSums];
  std::uint64_t not_finite;
};
inline constexpr std::size_t kRowsSharedBytes = kRowsWarps * sizeof(RowParts);

// Thread blocks of a launch.
inline std::uint32_t RowsGrid(const RowLaunch& launch, int component_bytes) {
  const std::uint32_t rows_each = kRowsWarps / RowBlocks(launch, component_bytes).warps();
  return (launch.rows + rows_each - 1) / rows_each;
}

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_MATRIX_ROWS_H_
