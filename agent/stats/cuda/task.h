// What a launch works on: tensors cut into units, units into pieces; and how results of units
// combine.
//
// UNITS. A unit is 1, 2, 4, ... consecutive pieces (the smallest power of two that leaves at most
// kUnitsMax units), reduced one after the other by one warp. Units are the leaves of a tree in
// which each node combines up to 32 children in index order: the warp that finishes the last child
// of a node combines it, so that nobody waits. Which warp does what depends on the launch; what is
// computed depends on dtype and number of components alone.
//
// SCRATCH of a tensor, in device memory: a ticket counter for each inner node, all zero between
// launches; totals and sketch sums of all nodes but the root.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_TASK_H_
#define STATCOLLECT_AGENT_STATS_CUDA_TASK_H_

#include <cstddef>
#include <cstdint>

#include "agent/stats/accumulate.h"
#include "agent/stats/cuda/totals.h"

namespace statcollect::stats::cuda {

inline constexpr std::uint32_t kUnitsMax = 16384;
inline constexpr std::uint32_t kNodeChildren = 32;
inline constexpr int kLevelsMax = 4;  // of the tree: 16384, 512, 16, 1
inline constexpr int kTaskDims = 12;  // after neighbours that lie behind each other are joined

STATCOLLECT_HD constexpr std::uint64_t DivideUp(std::uint64_t a, std::uint64_t b) {
  return (a + b - 1) / b;
}

// Pieces of a unit of a tensor of so many pieces.
STATCOLLECT_HD constexpr std::uint64_t UnitPieces(std::uint64_t pieces) {
  std::uint64_t unit = 1;
  while (DivideUp(pieces, unit) > kUnitsMax) unit *= 2;
  return unit;
}

// Nodes of the tree, level by level: level 0 are the units, the last level is the root.
struct Tree {
  int levels = 0;
  std::uint32_t nodes[kLevelsMax] = {};
  std::uint32_t first[kLevelsMax] =
      {};  // number of the level's first node, all levels numbered through

  explicit Tree(std::uint32_t units) {
    std::uint32_t sum = 0;
    for (std::uint32_t n = units;; n = (n + kNodeChildren - 1) / kNodeChildren) {
      nodes[levels] = n;
      first[levels] = sum;
      sum += n;
      ++levels;
      if (n == 1) break;
    }
  }
  std::uint32_t size() const { return first[levels - 1] + 1; }
};

struct Scratch {
  std::uint32_t* tickets = nullptr;  // of node i at i - (number of units); none for units
  Totals* totals = nullptr;          // of node i
  double* sums = nullptr;            // of node i at i * width
};

// Bytes of scratch for tensors of up to so many units with sketches of `width` sums. Tickets come
// first, in a place of their own: they are 0 for every tensor that uses the scratch.
inline constexpr std::size_t kTicketBytes =
    (kUnitsMax / (kNodeChildren - 1) + kLevelsMax + 63) / 64 * 64 * sizeof(std::uint32_t);
inline std::size_t ScratchBytes(std::uint32_t units, std::uint32_t width) {
  return kTicketBytes + Tree(units).size() * (sizeof(Totals) + width * sizeof(double));
}
inline Scratch ScratchAt(unsigned char* memory, std::uint32_t units) {
  Scratch scratch;
  scratch.tickets = reinterpret_cast<std::uint32_t*>(memory);
  scratch.totals = reinterpret_cast<Totals*>(memory + kTicketBytes);
  scratch.sums = reinterpret_cast<double*>(scratch.totals + Tree(units).size());
  return scratch;
}

// The same for several tensors of one launch: their nodes lie behind each other, and they share the
// tickets.
class SharedScratch {
 public:
  static constexpr std::uint32_t kTickets = kTicketBytes / sizeof(std::uint32_t);

  // Whether a tensor of so many units has room beside those before it. Memory of
  // ScratchBytes(kUnitsMax, width).
  bool Fits(std::uint32_t units) const {
    const Tree tree(units);
    return nodes_ + tree.size() <= Tree(kUnitsMax).size() &&
           tickets_ + tree.size() - units <= kTickets;
  }
  // Precondition: Fits(units).
  void Add(std::uint32_t units) {
    const Tree tree(units);
    nodes_ += tree.size();
    tickets_ += tree.size() - units;
  }
  // Of a tensor that was added when `before` was what had been added; `this` has all of them.
  Scratch At(unsigned char* memory, const SharedScratch& before, std::uint32_t width) const {
    Scratch scratch;
    scratch.tickets = reinterpret_cast<std::uint32_t*>(memory) + before.tickets_;
    Totals* const totals = reinterpret_cast<Totals*>(memory + kTicketBytes);
    scratch.totals = totals + before.nodes_;
    scratch.sums = reinterpret_cast<double*>(totals + nodes_) + std::size_t{before.nodes_} * width;
    return scratch;
  }

 private:
  std::uint32_t nodes_ = 0, tickets_ = 0;
};

// Where a result goes: host memory that the device can write. Written once by the device, ready
// last.
struct alignas(64) Record {
  std::uint64_t ready;  // the launch's ticket, once everything else is there
  std::uint64_t
      launch;          // in a log of replays (replay.h): which captured launch it is of, 0: a mark
  std::uint64_t step;  // there, too: the replay's step; of a mark, its number
  std::uint64_t reserved[5];
  Totals totals;
  double sums[kSketchSums];  // first `width` hold; of totals.moments.level
};

// What replays of captured graphs are told, and the log that they write: see replay.h. In device
// memory.
struct ReplayControl {
  std::uint64_t step = 0;
  std::uint64_t wanted = 0;  // 0: nothing is computed
};
struct ReplayLog {
  std::uint64_t taken = 0;  // rows
  Record* rows = nullptr;   // in host memory, as are the samples: `samples_each` a row
  double* samples = nullptr;
  std::uint64_t size = 0, samples_each = 0;
};
// Parameters of a mark.
struct Mark {
  ReplayControl* control = nullptr;
  ReplayLog* log = nullptr;
  ReplayControl now;         // what the control becomes
  std::uint64_t number = 0;  // of the row that tells of the mark; 0: none
};

// One tensor of a launch.
struct Task {
  const unsigned char* data = nullptr;  // component 0
  std::uint64_t components = 0;
  std::uint64_t pieces = 0;
  std::uint32_t units = 0;  // at least 1, also of an empty tensor
  std::uint32_t unit_pieces = 0;
  std::uint32_t first_unit = 0;  // of this tensor in the launch
  std::int32_t dims = 0;         // 0: the components lie one after the other from `data`
  std::int64_t sizes[kTaskDims] = {},
               stride_bytes[kTaskDims] = {};  // of components; outermost first
  Scratch scratch;                            // unused if units == 1
  Record* record = nullptr;
  std::uint64_t ticket = 0;  // what `ready` becomes; of a captured launch, its number
  double* samples =
      nullptr;  // where the first components go, host memory too (captured: the device's)
  std::uint32_t sample_count = 0;  // at most as many as the tensor has
  // Of a shard: the words of index_map.h, in device memory. Null: whole, or the launch's own words
  // hold.
  const std::uint64_t* map = nullptr;
  // Of a captured launch: the stream's latched control, and where results go instead of `record`.
  const ReplayControl* replay = nullptr;
  ReplayLog* log = nullptr;
};

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_TASK_H_
