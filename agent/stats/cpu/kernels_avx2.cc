#define STATCOLLECT_STATS_KERNELS kAvx2Kernels
#include "agent/stats/cpu/kernels.inc"
