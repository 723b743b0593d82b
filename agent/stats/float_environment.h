// The floating-point environment that the statistics are defined in.
#ifndef STATCOLLECT_AGENT_STATS_FLOAT_ENVIRONMENT_H_
#define STATCOLLECT_AGENT_STATS_FLOAT_ENVIRONMENT_H_

#if defined(__x86_64__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace statcollect::stats {

// Rounding to nearest, subnormals kept, no traps: the trainer may have set anything
// (torch.set_flush_denormal, -ffast-math).
class DefaultFloatEnvironment {
 public:
#if defined(__x86_64__)
  // Only the vector unit computes here; saving the x87 unit too would cost more than a small
  // tensor.
  DefaultFloatEnvironment() noexcept : saved_(_mm_getcsr()) { _mm_setcsr(kDefault); }
  ~DefaultFloatEnvironment() { _mm_setcsr(saved_); }
#else
  DefaultFloatEnvironment() noexcept {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }
#endif
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr unsigned kDefault = 0x1f80;  // all exceptions masked, none raised
  const unsigned saved_;
#else
  std::fenv_t saved_;
#endif
};

}  // namespace statcollect::stats

#endif  // STATCOLLECT_AGENT_STATS_FLOAT_ENVIRONMENT_H_
