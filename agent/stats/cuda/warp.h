// A warp as the engine's arithmetic sees it, on the device and on the host. What a warp computes is written
// once, as phases: ForEach runs a phase for every lane, the other functions move values between lanes. On the
// device a thread runs its own lane and `Lanes` is its register; on the host ForEach is a loop and `Lanes` an
// array, so that the very same code and order of operations can be tested without a GPU.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_WARP_H_
#define STATCOLLECT_AGENT_STATS_CUDA_WARP_H_

#include <atomic>
#include <cstdint>

#if defined(__CUDACC__)
#define STATCOLLECT_WARP __device__ __forceinline__
#define STATCOLLECT_PRAGMA(text) _Pragma(#text)
#define STATCOLLECT_UNROLL STATCOLLECT_PRAGMA(unroll)
#define STATCOLLECT_UNROLL_BY(count) STATCOLLECT_PRAGMA(unroll count)
#else
#define STATCOLLECT_WARP inline
#define STATCOLLECT_UNROLL
#define STATCOLLECT_UNROLL_BY(count)
#endif

namespace statcollect::stats::cuda {

inline constexpr int kWarpLanes = 32;

#if defined(__CUDACC__)

template <typename T>
struct DeviceLanes {
  T value;
  __device__ __forceinline__ T& operator[](int) { return value; }
  __device__ __forceinline__ const T& operator[](int) const { return value; }
};

// Precondition of all but ForEach: the whole warp calls.
struct DeviceWarp {
  template <typename T>
  using Lanes = DeviceLanes<T>;
  static constexpr unsigned kAll = 0xffffffffu;

  template <typename F>
  __device__ __forceinline__ static void ForEach(F&& function) {
    function(static_cast<int>(threadIdx.x % kWarpLanes));
  }
  // Each lane gets the value of lane `source`.
  template <typename T>
  __device__ __forceinline__ static Lanes<T> Gather(const Lanes<T>& values, const Lanes<int>& source) {
    return {__shfl_sync(kAll, values.value, source.value)};
  }
  // Of the lanes whose numbers differ in the bits of `mask`.
  template <typename T>
  __device__ __forceinline__ static Lanes<T> Exchange(const Lanes<T>& values, int mask) {
    return {__shfl_xor_sync(kAll, values.value, mask)};
  }
  __device__ __forceinline__ static std::uint32_t Sum(const Lanes<std::uint32_t>& values) {
    return __reduce_add_sync(kAll, values.value);
  }
  __device__ __forceinline__ static std::int32_t Min(const Lanes<std::int32_t>& values) {
    return __reduce_min_sync(kAll, values.value);
  }
  __device__ __forceinline__ static std::int32_t Max(const Lanes<std::int32_t>& values) {
    return __reduce_max_sync(kAll, values.value);
  }
  // What lanes wrote to memory before is seen by all lanes after.
  __device__ __forceinline__ static void Sync() { __syncwarp(kAll); }
  // A value that is the same in all lanes, from any of them.
  template <typename T>
  __device__ __forceinline__ static T Any(const Lanes<T>& values) {
    return values.value;
  }
};

#else

template <typename T>
struct HostLanes {
  T values[kWarpLanes];
  T& operator[](int lane) { return values[lane]; }
  const T& operator[](int lane) const { return values[lane]; }
};

struct HostWarp {
  template <typename T>
  using Lanes = HostLanes<T>;

  template <typename F>
  static void ForEach(F&& function) {
    for (int lane = 0; lane < kWarpLanes; ++lane) function(lane);
  }
  template <typename T>
  static Lanes<T> Gather(const Lanes<T>& values, const Lanes<int>& source) {
    Lanes<T> out;
    for (int lane = 0; lane < kWarpLanes; ++lane) out[lane] = values[source[lane] % kWarpLanes];
    return out;
  }
  template <typename T>
  static Lanes<T> Exchange(const Lanes<T>& values, int mask) {
    Lanes<T> out;
    for (int lane = 0; lane < kWarpLanes; ++lane) out[lane] = values[lane ^ mask];
    return out;
  }
  static std::uint32_t Sum(const Lanes<std::uint32_t>& values) {
    std::uint32_t sum = 0;
    for (const std::uint32_t value : values.values) sum += value;
    return sum;
  }
  static std::int32_t Min(const Lanes<std::int32_t>& values) {
    std::int32_t min = values[0];
    for (const std::int32_t value : values.values) min = value < min ? value : min;
    return min;
  }
  static std::int32_t Max(const Lanes<std::int32_t>& values) {
    std::int32_t max = values[0];
    for (const std::int32_t value : values.values) max = value > max ? value : max;
    return max;
  }
  static void Sync() { std::atomic_signal_fence(std::memory_order_seq_cst); }
  template <typename T>
  static T Any(const Lanes<T>& values) {
    return values[kWarpLanes - 1];
  }
};

#endif

// Sum over the lanes, in the order of a butterfly; every lane gets the same bits, as a + b is b + a.
template <typename Warp, typename T>
STATCOLLECT_WARP void SumOverLanes(typename Warp::template Lanes<T>& values) {
  STATCOLLECT_UNROLL
  for (int mask = kWarpLanes / 2; mask > 0; mask /= 2) {
    const auto other = Warp::template Exchange<T>(values, mask);
    Warp::ForEach([&](int lane) { values[lane] += other[lane]; });
  }
}

template <typename Warp>
STATCOLLECT_WARP double MinOverLanes(typename Warp::template Lanes<double>& values) {
  STATCOLLECT_UNROLL
  for (int mask = kWarpLanes / 2; mask > 0; mask /= 2) {
    const auto other = Warp::template Exchange<double>(values, mask);
    Warp::ForEach([&](int lane) { values[lane] = other[lane] < values[lane] ? other[lane] : values[lane]; });
  }
  return Warp::Any(values);
}

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_WARP_H_
