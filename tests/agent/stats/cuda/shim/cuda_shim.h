// CUDA for a C++ compiler: the kernels' sources compile against it unchanged and run on the host.
// It is included before anything else (-include).
//
// A thread of a kernel is a fibre. Fibres of up to several blocks take turns in an order that a
// seed decides; they switch wherever one waits, and at random at every function of this file.
// Functions of a warp (__syncwarp, shuffles, votes, reductions) wait for all lanes of their mask,
// and fail if these meet at different functions. A copy of CopyAsync is made at once or only by
// AwaitCopies, at random; until then garbage is in its place. Under ThreadSanitizer each fibre is a
// thread to it: only barriers, and fences together with atomics, order what different threads do to
// memory. Shuffles do not.
#ifndef STATCOLLECT_TESTS_AGENT_STATS_CUDA_SHIM_CUDA_SHIM_H_
#define STATCOLLECT_TESTS_AGENT_STATS_CUDA_SHIM_CUDA_SHIM_H_

#define STATCOLLECT_CUDA_SHIM 1

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>

#define __global__
#define __launch_bounds__(...)
#define __grid_constant__

namespace cuda_shim {

struct Dim {
  unsigned x = 1;
};
// Of the running fibre.
struct Place {
  Dim thread, block, block_dim, grid_dim;
};
extern const Place* place;

// What a kernel did that a device would not survive: a deadlock, lanes at different functions, a
// copy that nobody waited for.
class KernelError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Grid {
  unsigned blocks = 1, threads = 1;
  std::size_t shared_bytes = 0;
};
// Runs a kernel to its end. Throws KernelError. Not from several threads at once.
void Run(const Grid& grid, const std::function<void()>& kernel);
template <typename... Parameters>
void Launch(void (*kernel)(Parameters...), const Grid& grid, Parameters... parameters) {
  Run(grid, [&] { kernel(parameters...); });
}
// The order of the next launches. Each launch has an order of its own.
void Seed(std::uint64_t seed);
// What the host does now and then while a kernel runs; empty: nothing.
void Meanwhile(std::function<void()> host);
// A number below `end`, from the same source.
unsigned Random(unsigned end);

enum class Meeting { kNone, kSyncWarp, kShuffle, kVote, kReduce, kSyncThreads };

// A point where another fibre may take over.
void MaySwitch();
std::uint64_t ShuffleBits(unsigned mask, std::uint64_t bits, unsigned source);
unsigned Vote(unsigned mask, bool value);
enum class Reduction { kAdd, kMin, kMax };
std::int64_t Reduce(unsigned mask, std::int64_t value, Reduction how);
void SyncWarp(unsigned mask);
int SyncThreadsOr(int value);
unsigned LaneOfWarp();
void BeforeAtomic();
void AfterAtomic(const void* at);
void Fence();

template <typename T>
T Shuffle(unsigned mask, T value, unsigned source) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = ShuffleBits(mask, bits, source);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

template <typename T>
T AtomicAdd(T* at, T value) {
  BeforeAtomic();
  const T before = __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
  AfterAtomic(at);
  return before;
}

}  // namespace cuda_shim

#define threadIdx (cuda_shim::place->thread)
#define blockIdx (cuda_shim::place->block)
#define blockDim (cuda_shim::place->block_dim)
#define gridDim (cuda_shim::place->grid_dim)

inline void __syncwarp(unsigned mask = 0xffffffffu) { cuda_shim::SyncWarp(mask); }
inline void __syncthreads() { (void)cuda_shim::SyncThreadsOr(0); }
inline int __syncthreads_or(int value) { return cuda_shim::SyncThreadsOr(value); }
template <typename T>
T __shfl_sync(unsigned mask, T value, int source) {
  return cuda_shim::Shuffle(mask, value, static_cast<unsigned>(source) % 32);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return cuda_shim::Shuffle(mask, value,
                            (cuda_shim::LaneOfWarp() ^ static_cast<unsigned>(lanes)) % 32);
}
inline unsigned __ballot_sync(unsigned mask, bool value) { return cuda_shim::Vote(mask, value); }
inline bool __any_sync(unsigned mask, bool value) { return cuda_shim::Vote(mask, value) != 0; }
inline bool __all_sync(unsigned mask, bool value) { return cuda_shim::Vote(mask, !value) == 0; }
inline unsigned __reduce_add_sync(unsigned mask, unsigned value) {
  return static_cast<unsigned>(cuda_shim::Reduce(mask, value, cuda_shim::Reduction::kAdd));
}
inline int __reduce_min_sync(unsigned mask, int value) {
  return static_cast<int>(cuda_shim::Reduce(mask, value, cuda_shim::Reduction::kMin));
}
inline int __reduce_max_sync(unsigned mask, int value) {
  return static_cast<int>(cuda_shim::Reduce(mask, value, cuda_shim::Reduction::kMax));
}
inline unsigned atomicAdd(unsigned* at, unsigned value) { return cuda_shim::AtomicAdd(at, value); }
inline unsigned long long atomicAdd(unsigned long long* at, unsigned long long value) {
  return cuda_shim::AtomicAdd(at, value);
}
inline void __threadfence() { cuda_shim::Fence(); }
inline void __threadfence_system() { cuda_shim::Fence(); }
template <typename T>
T __ldcg(const T* from) {
  cuda_shim::MaySwitch();
  return *from;
}

// What device.h writes in PTX.
namespace statcollect::stats::cuda {
void CopyAsync(void* to_shared, const void* from, int bytes);
template <int kOffset>
void CopyAsyncBehind(void* to_shared, const void* from) {
  CopyAsync(static_cast<unsigned char*>(to_shared) + kOffset,
            static_cast<const unsigned char*>(from) + kOffset, 16);
}
void CommitCopies();
void AwaitCopies();
unsigned char* BlockMemory();
template <typename T>
T* InBlockMemory(T* address) {
  return address;
}
void StoreForHost(std::uint64_t* to, std::uint64_t value);
}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_TESTS_AGENT_STATS_CUDA_SHIM_CUDA_SHIM_H_
