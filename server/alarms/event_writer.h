// Turns findings into events of the run: stores them, then hands them to followers and the webhook.
#ifndef STATCOLLECT_SERVER_ALARMS_EVENT_WRITER_H_
#define STATCOLLECT_SERVER_ALARMS_EVENT_WRITER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "server/alarms/finding.h"
#include "server/control/event_feed.h"
#include "server/store/record_writer.h"

namespace statcollect::alarms {

// The number under which a finding's event is stored. It is the same every time the finding is
// made.
std::uint64_t EventNumber(const Finding& finding);
// Identifies an event of one rank.
inline std::uint64_t EventId(std::uint64_t event_number, std::uint64_t step) {
  return event_number ^ step;
}

// Not thread-safe, except for raised().
class EventWriter {
 public:
  struct Options {
    EventFeed* feed = nullptr;                     // may be null; outlives this
    std::function<void(const FeedEvent&)> notify;  // of alarms; may be empty; must not block
    std::function<void(const std::string&)> log;
  };

  EventWriter(RecordWriter& store, Options options) : store_(store), options_(std::move(options)) {}

  // Queues the finding for the next Write. If too many wait, the oldest is dropped.
  void Add(const AttemptMeta& attempt, std::uint32_t rank, Finding finding,
           std::int64_t unix_nanos);
  // Stores the queued events. Events that the store does not accept wait for the next call; events
  // of removed attempts are dropped.
  void Write();
  bool empty() const { return unwritten_.empty(); }
  // Alarms that were stored. Thread-safe.
  std::uint64_t raised(AlarmRule rule) const {
    return raised_[static_cast<std::size_t>(rule)].load(std::memory_order_relaxed);
  }

 private:
  struct Unwritten {
    AttemptMeta attempt;
    CollectorEvent event;
    AlarmRule rule = AlarmRule::kNanFirstSeen;
    bool alarm = false;
  };

  void Announce(const Unwritten& written);

  RecordWriter& store_;
  const Options options_;
  std::deque<Unwritten> unwritten_;
  std::array<std::atomic<std::uint64_t>, kAlarmRuleCount> raised_{};
};

}  // namespace statcollect::alarms

#endif  // STATCOLLECT_SERVER_ALARMS_EVENT_WRITER_H_
