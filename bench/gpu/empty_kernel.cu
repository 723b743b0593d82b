#include "empty_kernel.h"

static __global__ void Empty() {}

void LaunchEmptyKernel() { Empty<<<1, 128>>>(); }
