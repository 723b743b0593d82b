#include "agent/export/log_limiter.h"

#include <poll.h>
#include <unistd.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "common/names.h"

namespace statcollect {
namespace {

constexpr std::size_t kLineBytesMax = 1000;
constexpr std::size_t kLossesBytesMax = 800;

constexpr std::size_t kLineBytesMost = 4096;  // PIPE_BUF
constexpr std::size_t kWaitingMax = 8;

// Training never waits for standard error. Lines that it does not take at once are written before
// the next one, or at the end; beyond kWaitingMax the oldest is lost.
class StandardError {
 public:
  ~StandardError() { WriteWaiting(); }

  void Write(const std::string& line) {
    std::string whole = "statagent: " + line;
    if (whole.size() >= kLineBytesMost) whole.resize(kLineBytesMost - 1);
    waiting_.push_back(whole + "\n");
    if (waiting_.size() > kWaitingMax) waiting_.pop_front();
    WriteWaiting();
  }

 private:
  // Not through stdio, whose lock another thread may hold for as long as it is stuck in a write. A
  // pipe that is ready takes so few bytes at once.
  void WriteWaiting() {
    for (; !waiting_.empty(); waiting_.pop_front()) {
      pollfd error{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
      if (poll(&error, 1, 0) != 1 || error.revents != POLLOUT) return;
      (void)!write(STDERR_FILENO, waiting_.front().data(), waiting_.front().size());
    }
  }
  std::deque<std::string> waiting_;
};

LogLimiter::Sink ToStandardError() {
  return [out = std::make_shared<StandardError>()](const std::string& line) { out->Write(line); };
}

}  // namespace

std::optional<LogLevel> ParseLogLevel(std::string_view text) {
  if (text == "off") return LogLevel::kOff;
  if (text == "error") return LogLevel::kError;
  if (text == "warning" || text.empty()) return LogLevel::kWarning;
  if (text == "info") return LogLevel::kInfo;
  return std::nullopt;
}

LogLimiter::LogLimiter(const Clock* clock, Sink sink, LogLevel level)
    : clock_(clock), sink_(sink ? std::move(sink) : ToStandardError()), level_(level) {}

void LogLimiter::LogOnce(std::string_view text, LogLevel level) {
  MutexLock lock(mutex_);
  if (level <= level_) sink_(Printable(text, kLineBytesMax));
}

void LogLimiter::Log(std::string_view text, LogLevel level) {
  MutexLock lock(mutex_);
  if (level > level_) return;
  if (last_ && clock_->Now() - *last_ < kInterval) {
    ++suppressed_;
    return;
  }
  WriteLocked(text);
}

void LogLimiter::LogLoss(std::string_view text) {
  MutexLock lock(mutex_);
  if (level_ < LogLevel::kError) return;
  if (!last_ || clock_->Now() - *last_ >= kInterval) return WriteLocked(text);
  if (losses_.size() < kLossesBytesMax) {
    losses_ += losses_.empty() ? "" : "; ";
    losses_ += text;
  } else {
    ++suppressed_;
  }
}

void LogLimiter::FlushLosses() {
  MutexLock lock(mutex_);
  if (!losses_.empty()) WriteLocked(std::exchange(losses_, {}));
}

void LogLimiter::LogFinal(std::string_view text) {
  MutexLock lock(mutex_);
  if (level_ < LogLevel::kError) return;
  if (std::exchange(final_written_, true)) return;
  WriteLocked(text);
}

void LogLimiter::WriteLocked(std::string_view text) {
  std::string line = Printable(text, kLineBytesMax);
  if (!losses_.empty())
    line += " (before that: " + Printable(std::exchange(losses_, {}), kLineBytesMax) + ")";
  if (suppressed_ > 0) line += " (" + std::to_string(suppressed_) + " earlier messages not shown)";
  suppressed_ = 0;
  last_ = clock_->Now();
  sink_(line);
}

}  // namespace statcollect
