// STATCOLLECT_WIDE_LOOPS before a function compiles it for wide vector registers as well; the best
// version for the processor is selected at program start. For loops whose results do not depend on
// it: over integers, or over real numbers in a file that is compiled without contraction of a * b +
// c.
#ifndef STATCOLLECT_COMMON_WIDE_LOOPS_H_
#define STATCOLLECT_COMMON_WIDE_LOOPS_H_

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define STATCOLLECT_WIDE_LOOPS \
  __attribute__((target_clones("arch=x86-64-v4", "avx2", "default"), optimize("O3")))
#else
#define STATCOLLECT_WIDE_LOOPS
#endif

#endif  // STATCOLLECT_COMMON_WIDE_LOOPS_H_
