#define STATCOLLECT_STATS_KERNELS kBaselineKernels
#include "agent/stats/cpu/kernels.inc"
