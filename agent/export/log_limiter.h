// Writes the agent's lines to standard error, at most one a minute, because the agent is a guest in
// the process. Suppressed lines are counted, and the next line says how many there were. Threads:
// any.
#ifndef STATCOLLECT_AGENT_EXPORT_LOG_LIMITER_H_
#define STATCOLLECT_AGENT_EXPORT_LOG_LIMITER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/thread_annotations.h"

namespace statcollect {

// Which lines are written, each level with those before it. kError: lost records, and the end of a
// session. kWarning: what a user may want to change.
enum class LogLevel { kOff, kError, kWarning, kInfo };

// Reads "off", "error", "warning" or "info"; "" is kWarning. nullopt for any other text.
std::optional<LogLevel> ParseLogLevel(std::string_view text);

class LogLimiter {
 public:
  using Sink = std::function<void(const std::string& line)>;
  static constexpr std::chrono::seconds kInterval{60};

  // The default sink writes "statagent: <line>\n" to standard error in one call. It never waits: a
  // line that the pipe does not take at once is tried again before the next line, and at the end.
  explicit LogLimiter(const Clock* clock, Sink sink = {}, LogLevel level = LogLevel::kWarning);

  // Nothing is written, held back or counted above the limiter's level.
  void Log(std::string_view text, LogLevel level = LogLevel::kWarning);
  // For lines that occur once. Not limited to one a minute.
  void LogOnce(std::string_view text, LogLevel level = LogLevel::kInfo);
  // For lost records. Never suppressed: a line that comes too soon is appended to the next one, or
  // written by FlushLosses.
  void LogLoss(std::string_view text);
  // At the agent's end: writes what LogLoss still holds back. Not limited to one a minute.
  void FlushLosses();
  // For fatal errors. Not limited to one a minute; only the first call writes.
  void LogFinal(std::string_view text);

 private:
  void WriteLocked(std::string_view text) STATCOLLECT_REQUIRES(mutex_);

  const Clock* const clock_;
  const Sink sink_;
  const LogLevel level_;
  Mutex mutex_;
  std::optional<std::chrono::steady_clock::time_point> last_ STATCOLLECT_GUARDED_BY(mutex_);
  std::uint64_t suppressed_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  std::string losses_ STATCOLLECT_GUARDED_BY(mutex_);  // held back
  bool final_written_ STATCOLLECT_GUARDED_BY(mutex_) = false;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_EXPORT_LOG_LIMITER_H_
