#include "agent/stats/cpu/kernels.h"

#include <initializer_list>

namespace statcollect::stats {

extern const CpuKernels kBaselineKernels;
#if defined(STATCOLLECT_STATS_X86_KERNELS)
extern const CpuKernels kAvx2Kernels, kAvx512Kernels;
#endif

const CpuKernels* KernelsFor(InstructionSet set) {
#if defined(STATCOLLECT_STATS_X86_KERNELS)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  if (set == InstructionSet::kAvx2) return avx2 ? &kAvx2Kernels : nullptr;
  if (set == InstructionSet::kAvx512) {
    const bool supported = avx2 && __builtin_cpu_supports("avx512f") &&
                           __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return supported ? &kAvx512Kernels : nullptr;
  }
#endif
  return set == InstructionSet::kBaseline ? &kBaselineKernels : nullptr;
}

const CpuKernels& BestKernels() {
  static const CpuKernels* const best = [] {
    for (const InstructionSet set : {InstructionSet::kAvx512, InstructionSet::kAvx2}) {
      if (const CpuKernels* kernels = KernelsFor(set)) return kernels;
    }
    return &kBaselineKernels;
  }();
  return *best;
}

ReadAheadOf BestReadAhead(std::size_t component_bytes) {
  // Measured on a Sapphire Rapids in steps of at most a quarter of a block, and on a Zen 4;
  // elsewhere as measured on a Zen 5. A Zen 4 has 24 misses of its first cache under way at most,
  // which is 11 GB/s at its memory's latency; those of its second cache are others, and it has more
  // of them.
  constexpr ReadAheadOf kAnywhere = {12288}, kIntelWords = {7680}, kIntelHalves = {6144},
                        kZen4 = {24576, true};
#if defined(STATCOLLECT_STATS_X86_KERNELS)
  static const bool intel = __builtin_cpu_is("intel"), zen4 = __builtin_cpu_is("amdfam19h");
  if (zen4) return kZen4;
  if (intel && component_bytes == 4) return kIntelWords;
  if (intel && component_bytes == 2) return kIntelHalves;
#else
  static_cast<void>(component_bytes);
#endif
  return kAnywhere;
}

}  // namespace statcollect::stats
