#include "server/store/shared_clock.h"

#include <cstdlib>
#include <utility>

namespace statcollect {
namespace {

constexpr std::int64_t kToleranceNanos =
    std::chrono::duration_cast<std::chrono::nanoseconds>(SharedClock::kTolerance).count();

bool Agree(std::int64_t a, std::int64_t b) { return std::abs(a - b) <= kToleranceNanos; }

}  // namespace

SharedClock::SharedClock(FleetStore& store, const Clock& own,
                         std::function<void(const std::string&)> log,
                         std::chrono::milliseconds interval)
    : store_(store),
      own_(own),
      log_(std::move(log)),
      interval_(interval),
      unix_minus_steady_(own.UnixNanos() - Steady()) {
  Ask();
  thread_ = std::thread([this] {
    for (;;) {
      {
        MutexLock lock(mutex_);
        stop_.wait_until(mutex_, std::chrono::steady_clock::now() + interval_,
                         [this]() STATCOLLECT_REQUIRES(mutex_) { return stopping_; });
        if (stopping_) return;
      }
      Ask();
    }
  });
}

SharedClock::~SharedClock() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    stop_.notify_one();
  }
  thread_.join();
}

void SharedClock::Ask() {
  const std::int64_t before = Steady();
  const auto engine = store_.EngineUnixNanos();
  const std::int64_t after = Steady();
  // Without an answer, or with one that took so long that it says little, the last one stands.
  if (!engine.ok() || !*engine || after - before > kToleranceNanos) return;
  const std::int64_t by_engine = **engine - (before + after) / 2;
  const std::int64_t by_own = own_.UnixNanos() - Steady();
  if (Agree(by_own, by_engine))
    unix_minus_steady_ = by_own;
  else if (!Agree(unix_minus_steady_, by_engine))
    unix_minus_steady_ = by_engine;
  Report(Agree(by_own, by_engine) ? 0 : by_own - by_engine);
}

// Once, and again when it has changed.
void SharedClock::Report(std::int64_t own_ahead) {
  if (Agree(reported_.value_or(0), own_ahead)) return;
  reported_ = own_ahead;
  if (own_ahead == 0) return log_("clock: this machine's clock agrees with ClickHouse's again");
  const std::int64_t seconds = std::abs(own_ahead) / 1'000'000'000;
  log_("clock: this machine's clock is " + std::to_string(seconds) + " s " +
       (own_ahead > 0 ? "ahead of" : "behind") +
       " ClickHouse's; records are dated by ClickHouse's, as those of other collectors; set this "
       "clock");
}

}  // namespace statcollect
