#define STATCOLLECT_STATS_KERNELS kAvx512Kernels
#include "agent/stats/cpu/kernels.inc"
