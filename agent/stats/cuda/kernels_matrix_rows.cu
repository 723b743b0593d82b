// The kernel that computes statistics of a matrix's rows: see matrix_rows.h.
#include <cmath>
#include <cstdint>

#include "agent/stats/cuda/components.h"
#include "agent/stats/cuda/device.h"
#include "agent/stats/cuda/fingerprint_rows.h"
#include "agent/stats/cuda/kernels.h"
#include "agent/stats/cuda/matrix_rows.h"
#include "agent/stats/cuda/reduce.h"

namespace statcollect::stats::cuda {
namespace {

inline constexpr int kSteps = kHashRows;  // vectors of a lane in a block

template <typename C>
inline constexpr int kBlockComponents = static_cast<int>(kRowBlockBytes) / C::kBytes;
template <typename C>
inline constexpr int kSignBlocks = kBlockComponents<C> / 64;  // mixes of signs in a block
// Sums that a lane's vectors add to: 32 vectors are whole rounds of the sums, so these stay the
// same.
template <typename C>
inline constexpr int kLaneSums = kVectorComponents<C> < kRowSums ? kVectorComponents<C> : kRowSums;

// One row, as a warp reads it.
struct RowView {
  const unsigned char* data;  // of component 0
  bool in_vectors;            // blocks begin at vectors, and components lie side by side
};

template <typename C>
STATCOLLECT_WARP RowView ViewOf(const RowLaunch& launch, std::uint32_t row) {
  const std::int64_t number = launch.index == nullptr ? row : launch.index[row];
  const unsigned char* const data = launch.data + number * launch.row_bytes;
  const auto origin = reinterpret_cast<std::uintptr_t>(data) - launch.first * C::kBytes;
  const bool contiguous =
      launch.element_bytes == static_cast<std::int64_t>(launch.parts) * C::kBytes;
  return {data, contiguous && origin % kVectorBytes == 0};
}

// The vector that begins with component `first` of the row, which may lie before it, component by
// component; missing ones are 0.
template <typename C>
STATCOLLECT_CALL Vector GatherFromRow(const RowLaunch& launch, const unsigned char* data,
                                      std::int64_t first) {
  using Unsigned = typename UnsignedOf<C::kBytes>::Type;
  Vector vector = {{0, 0, 0, 0}};
  auto* const out = reinterpret_cast<unsigned char*>(&vector);
  const auto components = static_cast<std::int64_t>(launch.components);
  const std::int64_t parts = launch.parts;
  STATCOLLECT_UNROLL_BY(1)
  for (int j = 0; j < kVectorComponents<C>; ++j) {
    const std::int64_t c = first + j;
    if (c < 0 || c >= components) continue;
    const std::int64_t element = c / parts;
    const auto bits = *reinterpret_cast<const Unsigned*>(data + element * launch.element_bytes +
                                                         (c - element * parts) * C::kBytes);
    memcpy(out + j * C::kBytes, &bits, C::kBytes);
  }
  return vector;
}

// This lane's vectors of the block that begins with component `first` of the row.
template <typename C>
STATCOLLECT_WARP void LoadBlock(const RowLaunch& launch, const RowView& row, std::int64_t first,
                                Vector* vectors) {
  constexpr int kAtOnce = kWarpLanes * kVectorComponents<C>;
  const auto components = static_cast<std::int64_t>(launch.components);
  const std::int64_t own = first + Lane() * kVectorComponents<C>;
  if (row.in_vectors && first >= 0 && first + kBlockComponents<C> <= components) {
    const unsigned char* const from = row.data + own * C::kBytes;
    STATCOLLECT_UNROLL
    for (int step = 0; step < kSteps; ++step)
      vectors[step] = *reinterpret_cast<const Vector*>(from + step * (kWarpLanes * kVectorBytes));
    return;
  }
  STATCOLLECT_UNROLL_BY(1)
  for (int step = 0; step < kSteps; ++step) {
    const std::int64_t at = own + step * kAtOnce;
    if (row.in_vectors && at >= 0 && at + kVectorComponents<C> <= components) {
      vectors[step] = *reinterpret_cast<const Vector*>(row.data + at * C::kBytes);
    } else {
      vectors[step] = GatherFromRow<C>(launch, row.data, at);
    }
  }
}

// A block's mixes: each lane computes one, others fetch it.
template <typename C>
struct BlockMixes {
  std::uint64_t own, factor;

  STATCOLLECT_WARP explicit BlockMixes(std::uint64_t block) {
    const auto lane = static_cast<unsigned>(Lane());
    const bool of_signs = lane < kSignBlocks<C>;
    own = SplitMix(of_signs ? kRowSketchSeed : kBlockSeed,
                   of_signs ? block * kSignBlocks<C> + lane : block);
    factor = kSignBlocks<C> < kWarpLanes ? FromLane(own, kWarpLanes - 1) | 1 : BlockFactor(block);
  }
  // Of this lane's vector in a step: bit j is set if component j has the sign minus.
  STATCOLLECT_WARP std::uint32_t SignsAt(int step) const {
    const int component = (step * kWarpLanes + Lane()) * kVectorComponents<C>;
    return static_cast<std::uint32_t>(RowSignsOf(FromLane(own, component / 64)) >>
                                      (component % 64));
  }
};

template <typename C>
struct LaneRow {
  std::uint64_t hash = 0;
  double squares = 0;
  double sums[kLaneSums<C>] = {};
  bool finite = true;

  STATCOLLECT_WARP void Add(const Vector& vector, std::uint32_t signs) {
    STATCOLLECT_UNROLL
    for (int j = 0; j < kVectorComponents<C>; ++j) {
      const auto value = C::Value(vector, j);
      double x = static_cast<double>(value);
      if constexpr (!C::kAlwaysInRange) {
        const bool counts = fabs(value) < __builtin_huge_val();
        if (!counts) x = 0;
        finite = finite && counts;
      }
      squares = fma(x, x, squares);
      const auto bits = BitsAs<std::uint64_t>(x) ^ static_cast<std::uint64_t>((signs >> j) & 1u)
                                                       << 63;
      sums[j % kLaneSums<C>] += BitsAs<double>(bits);
    }
  }
};

// Adds the sums of the lanes; each of these ends with one.
template <int kCount>
STATCOLLECT_WARP double AddOverLanes(double* sums) {
  int mask = kWarpLanes / 2;
  STATCOLLECT_UNROLL
  for (int held = kCount; held > 1; held /= 2, mask /= 2) {
    const bool upper = (Lane() & mask) != 0;
    STATCOLLECT_UNROLL
    for (int i = 0; i < held / 2; ++i) {
      const double sent = upper ? sums[i] : sums[i + held / 2];
      sums[i] = (upper ? sums[i + held / 2] : sums[i]) + Exchanged(sent, mask);
    }
  }
  STATCOLLECT_UNROLL
  for (; mask >= kRowSums / kCount; mask /= 2) sums[0] += Exchanged(sums[0], mask);
  return sums[0];
}

// Which of the row's sums a lane has then; -1: one that another lane has, too.
template <int kCount>
STATCOLLECT_WARP int SumOfLane() {
  constexpr int kRounds = kRowSums / kCount;  // lanes of neighbours with different sums
  constexpr int kGroups = kWarpLanes / kCount;
  if ((Lane() % kGroups) / kRounds != 0) return -1;
  // The upper bits chose the half of what was left.
  return Lane() % kRounds * kCount + Lane() / kGroups;
}

template <typename C>
STATCOLLECT_WARP LaneRow<C> ReduceBlocks(const RowLaunch& launch, const RowView& row,
                                         std::uint64_t begin, std::uint64_t end,
                                         std::uint32_t warps) {
  const LaneKeys keys = KeysOf(*launch.tables);
  LaneRow<C> sums;
  for (std::uint64_t block = begin; block < end; block += warps) {
    Vector vectors[kSteps];
    LoadBlock<C>(launch, row,
                 static_cast<std::int64_t>(block * kBlockComponents<C>) -
                     static_cast<std::int64_t>(launch.first),
                 vectors);
    const BlockMixes<C> mixes(block);
    std::uint64_t hash = 0;
    STATCOLLECT_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const Vector vector = C::Clean(vectors[step]);
      AddToHash(vector, keys.rows[step], hash);
      sums.Add(vector, mixes.SignsAt(step));
    }
    sums.hash += hash * mixes.factor;
  }
  return sums;
}

// Writes what a warp has, added over its lanes.
template <typename C>
STATCOLLECT_WARP void KeepParts(LaneRow<C>& sums, RowParts* parts) {
  const std::uint64_t hash = SumOverLanes(sums.hash);
  const double squares = SumOverLanes(sums.squares);
  const bool finite = __all_sync(kAllLanes, sums.finite);
  const double sum = AddOverLanes<kLaneSums<C>>(sums.sums);
  const int number = SumOfLane<kLaneSums<C>>();
  if (number >= 0) parts->sums[number] = sum;
  if (Lane() != 0) return;
  parts->hash = hash;
  parts->squares = squares;
  parts->not_finite = finite ? 0 : 1;
}

// One warp adds what `warps` warps have kept, in their order, and hands the row to the host.
template <typename C>
STATCOLLECT_WARP void Publish(const RowLaunch& launch, const RowView& row, const RowParts* parts,
                              std::uint32_t warps, RowRecord* record) {
  const int lane = Lane();
  if (lane < kRowSums) {
    double sum = parts[0].sums[lane];
    for (std::uint32_t w = 1; w < warps; ++w) sum += parts[w].sums[lane];
    record->sketch[lane] = RowFloat(sum);
  }
  __syncwarp();
  if (lane != 0) return;
  RowParts all = parts[0];
  for (std::uint32_t w = 1; w < warps; ++w) {
    all.hash += parts[w].hash;
    all.squares += parts[w].squares;
    all.not_finite |= parts[w].not_finite;
  }
  record->hash = all.hash;
  record->l2 = all.not_finite != 0 ? __builtin_nanf("") : RowFloat(sqrt(all.squares));
  if (launch.first == 0 && launch.components == 1) {
    const Vector only = C::Clean(GatherFromRow<C>(launch, row.data, 0));
    record->sketch[0] = RowFloat(static_cast<double>(C::Value(only, 0)));
  }
  FenceForHost();  // of what the warp has written
  StoreForHost(&record->ready, launch.ticket);
}

template <typename C>
__global__ void __launch_bounds__(kRowsThreads, 2)
    ReduceMatrixRows(const __grid_constant__ RowLaunch launch) {
  const std::uint32_t warp = threadIdx.x / kWarpLanes;
  const RowBlocks blocks(launch, C::kBytes);
  const std::uint32_t warps = blocks.warps();
  const std::uint32_t row = warps == 1 ? blockIdx.x * kRowsWarps + warp : blockIdx.x;
  if (row >= launch.rows) return;  // a whole warp, of rows that have one each
  auto* const parts = reinterpret_cast<RowParts*>(BlockMemory());
  const RowView view = ViewOf<C>(launch, row);
  LaneRow<C> sums =
      ReduceBlocks<C>(launch, view, blocks.begin + (warps == 1 ? 0 : warp), blocks.end, warps);
  KeepParts<C>(sums, parts + warp);
  if (warps == 1) {
    __syncwarp();
  } else {
    __syncthreads();
    if (warp != 0) return;
  }
  Publish<C>(launch, view, parts + warp, warps, launch.records + row);
}

template <typename C>
const void* Address() {
  return reinterpret_cast<const void*>(&ReduceMatrixRows<C>);
}

}  // namespace

const void* RowKernelOf(DType dtype) {
  const void* kernel = nullptr;
  WithComponent(dtype, [&](auto component) { kernel = Address<decltype(component)>(); });
  return kernel;
}

}  // namespace statcollect::stats::cuda
