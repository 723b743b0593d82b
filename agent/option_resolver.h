// Resolves and checks the agent's options: the program's value wins, then STATAGENT_<NAME>, then
// the default.
#ifndef STATCOLLECT_AGENT_OPTION_RESOLVER_H_
#define STATCOLLECT_AGENT_OPTION_RESOLVER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "agent/export/log_limiter.h"
#include "agent/export/spill_file.h"
#include "agent/export/transport.h"
#include "agent/launch_environment.h"
#include "agent/staging/exponent_spec.h"
#include "agent/staging/ring_spec.h"
#include "common/capture_spec.h"
#include "common/status.h"
#include "common/step_set.h"
#include "common/types.h"
#include "statagent/options.h"

namespace statcollect {

struct ResolvedOptions {
  bool disabled = false;  // STATAGENT_DISABLE; all other members are then meaningless
  std::string run;
  std::string collector = "127.0.0.1:7433";
  std::string token_file;  // absolute; empty: no token
  std::string project;     // empty: the token's, or the default one
  IfExists if_exists = IfExists::kError;
  std::map<std::string, std::string> config;
  bool required = false;
  LaunchOptions launch;
  StepSet steps;
  LogLevel log = LogLevel::kWarning;
  std::vector<CaptureSpec> captures;
  std::vector<ExponentSpec> exponents;
  RingSpec ring;
  std::uint32_t sketch = 16;
  std::uint32_t samples = 0;
  std::size_t buffer_records_max = 32768;
  std::uint32_t threads = 1;
  std::chrono::milliseconds connect_timeout{3000};
  SpillOptions spill;
  TlsOptions tls;
};

// kInvalidArgument names the option or variable and says what was expected.
Result<ResolvedOptions> ResolveOptions(const statagent::Options& options, const GetEnv& getenv);

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_OPTION_RESOLVER_H_
