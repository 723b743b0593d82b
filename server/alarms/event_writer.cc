#include "server/alarms/event_writer.h"

#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "common/names.h"

namespace statcollect::alarms {
namespace {

constexpr std::size_t kUnwrittenMax = 10'000;

const char* SeverityOf(const Finding& finding) {
  switch (finding.sort) {
    case Finding::Sort::kAlarm:
      return "alarm";
    case Finding::Sort::kNote:
      return "note";
    case Finding::Sort::kCleared:
      return "cleared";
  }
  return "";
}

}  // namespace

std::uint64_t EventNumber(const Finding& finding) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::string_view part :
       {std::string_view(finding.kind), Name(finding.rule), std::string_view(finding.subject)}) {
    for (const char c : part) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    hash = (hash ^ 0xff) * 0x100000001b3u;
  }
  return hash >> 1;
}

void EventWriter::Add(const AttemptMeta& attempt, std::uint32_t rank, Finding finding,
                      std::int64_t unix_nanos) {
  if (unwritten_.size() >= kUnwrittenMax) {
    options_.log("alarms: too many events wait to be stored; the oldest is dropped");
    unwritten_.pop_front();
  }
  const std::uint64_t number = EventNumber(finding);
  EventRecord event{.kind = std::move(finding.kind),
                    .step = finding.step,
                    .unix_nanos = unix_nanos,
                    .text = std::move(finding.text),
                    .fields = std::move(finding.fields),
                    .from_collector = true};
  event.fields["severity"] = SeverityOf(finding);
  event.fields["rule"] = Name(finding.rule);
  event.fields["subject"] = finding.subject;
  unwritten_.push_back({.attempt = attempt,
                        .event = {.rank = rank, .number = number, .event = std::move(event)},
                        .rule = finding.rule,
                        .alarm = finding.sort == Finding::Sort::kAlarm});
}

void EventWriter::Write() {
  while (!unwritten_.empty()) {
    const AttemptId attempt = unwritten_.front().attempt.id;
    std::vector<CollectorEvent> events;
    for (const Unwritten& one : unwritten_) {
      if (one.attempt.id != attempt) break;
      events.push_back(one.event);
    }
    const Status written = store_.PutEvents(attempt, events);
    if (!written.ok() && written.code() != Code::kNotFound) return;
    for (std::size_t n = events.size(); n > 0; --n) {
      if (written.ok()) Announce(unwritten_.front());
      unwritten_.pop_front();
    }
  }
}

void EventWriter::Announce(const Unwritten& written) {
  const FeedEvent event{.run = written.attempt.run,
                        .attempt = written.attempt.number,
                        .rank = written.event.rank,
                        .event = written.event.event};
  if (options_.feed != nullptr) options_.feed->Publish(event);
  if (!written.alarm) return;
  raised_[static_cast<std::size_t>(written.rule)].fetch_add(1, std::memory_order_relaxed);
  options_.log(fmt::format("alarm: run '{}' rank {} {}: {}", event.run, event.rank,
                           event.event.kind, Printable(event.event.text, 400)));
  if (options_.notify) options_.notify(event);
}

}  // namespace statcollect::alarms
