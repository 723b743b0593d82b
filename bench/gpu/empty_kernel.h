// The cheapest launch there is, to compare with.
#ifndef STATCOLLECT_BENCH_GPU_EMPTY_KERNEL_H_
#define STATCOLLECT_BENCH_GPU_EMPTY_KERNEL_H_

// Enqueues a kernel of one block that does nothing, in the default stream.
void LaunchEmptyKernel();

#endif  // STATCOLLECT_BENCH_GPU_EMPTY_KERNEL_H_
