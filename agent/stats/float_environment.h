// The floating-point environment that the statistics are defined in.
#ifndef STATCOLLECT_AGENT_STATS_FLOAT_ENVIRONMENT_H_
#define STATCOLLECT_AGENT_STATS_FLOAT_ENVIRONMENT_H_

#include <cfenv>

namespace statcollect::stats {

// Rounding to nearest, subnormals kept, no traps: the trainer may have set anything
// (torch.set_flush_denormal, -ffast-math).
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() noexcept {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t saved_;
};

}  // namespace statcollect::stats

#endif  // STATCOLLECT_AGENT_STATS_FLOAT_ENVIRONMENT_H_
