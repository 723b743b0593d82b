// What the kernels use of CUDA beyond its keywords. Tests compile the kernels for the host, where
// tests/agent/stats/cuda/shim has the same functions: it is included before anything else and
// defines STATCOLLECT_CUDA_SHIM.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_DEVICE_H_
#define STATCOLLECT_AGENT_STATS_CUDA_DEVICE_H_

#include <cstdint>

// Functions of device code. Host code may use STATCOLLECT_WARP for what is plain arithmetic.
#if defined(__CUDACC__)
#define STATCOLLECT_WARP __device__ __forceinline__
#define STATCOLLECT_CALL __device__ __noinline__
#define STATCOLLECT_PRAGMA(text) _Pragma(#text)
#define STATCOLLECT_UNROLL STATCOLLECT_PRAGMA(unroll)
#define STATCOLLECT_UNROLL_BY(count) STATCOLLECT_PRAGMA(unroll count)
#else
#define STATCOLLECT_WARP inline
#define STATCOLLECT_CALL __attribute__((noinline))
#define STATCOLLECT_UNROLL
#define STATCOLLECT_UNROLL_BY(count)
#endif

namespace statcollect::stats::cuda {

inline constexpr int kWarpLanes = 32;

#if defined(__CUDACC__)

// --- copies from global to shared memory of which a thread does not wait for each

// Of 16 bytes, both aligned; what is behind the first `bytes` becomes 0.
STATCOLLECT_WARP void CopyAsync(void* to_shared, const void* from, int bytes) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to_shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes)
               : "memory");
}
// The same 16 bytes behind both addresses, without computing them.
template <int kOffset>
STATCOLLECT_WARP void CopyAsyncBehind(void* to_shared, const void* from) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to_shared));
  asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %2], 16;" ::"r"(address), "l"(from),
               "n"(kOffset)
               : "memory");
}
STATCOLLECT_WARP void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all of this thread's committed copies are there, for this thread.
STATCOLLECT_WARP void AwaitCopies() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

// The block's shared memory, as large as the launch asked for.
STATCOLLECT_WARP unsigned char* BlockMemory() {
  extern __shared__ __align__(16) unsigned char block_memory[];
  return block_memory;
}

// The same address. Tells the compiler that it lies there, which it cannot see across a call.
template <typename T>
STATCOLLECT_WARP T* InBlockMemory(T* address) {
  __builtin_assume(__isShared(address));
  return address;
}

// Writes for the host, which polls.
STATCOLLECT_WARP void StoreForHost(std::uint64_t* to, std::uint64_t value) {
  *reinterpret_cast<volatile std::uint64_t*>(to) = value;
}

#endif

#if defined(__CUDACC__) || defined(STATCOLLECT_CUDA_SHIM)

// --- the lanes of a warp. Precondition of all: the whole warp calls.

inline constexpr unsigned kAllLanes = 0xffffffffu;

STATCOLLECT_WARP int Lane() { return static_cast<int>(threadIdx.x % kWarpLanes); }

template <typename T>
STATCOLLECT_WARP T FromLane(T value, int source) {
  return __shfl_sync(kAllLanes, value, source);
}

// Of the lane whose number differs in the bits of `mask`.
template <typename T>
STATCOLLECT_WARP T Exchanged(T value, int mask) {
  return __shfl_xor_sync(kAllLanes, value, mask);
}

// In the order of a butterfly; every lane gets the same bits, as a + b is b + a.
template <typename T>
STATCOLLECT_WARP T SumOverLanes(T value) {
  STATCOLLECT_UNROLL
  for (int mask = kWarpLanes / 2; mask > 0; mask /= 2) value += Exchanged(value, mask);
  return value;
}

STATCOLLECT_WARP double MinOverLanes(double value) {
  STATCOLLECT_UNROLL
  for (int mask = kWarpLanes / 2; mask > 0; mask /= 2) {
    const double other = Exchanged(value, mask);
    value = other < value ? other : value;
  }
  return value;
}

// --- memory that others write, too

// What another multiprocessor wrote: its first-level cache is not this one's.
template <typename T>
STATCOLLECT_WARP T LoadFresh(const T* from) {
  return __ldcg(from);
}

STATCOLLECT_WARP std::uint64_t FetchAndAdd(std::uint64_t* counter, std::uint64_t value) {
  return atomicAdd(reinterpret_cast<unsigned long long*>(counter),
                   static_cast<unsigned long long>(value));
}

STATCOLLECT_WARP std::uint64_t FetchAndIncrement(std::uint64_t* counter) {
  return FetchAndAdd(counter, 1);
}

// What this thread wrote before is seen by the host before what it writes after.
STATCOLLECT_WARP void FenceForHost() { __threadfence_system(); }

#endif

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_DEVICE_H_
