// Where the exporter stands with the collector, and from where it may go where.
//
//   from         to           cause thread kWaiting     kConnecting  an attempt begins: a stream is
//   open                              sender kConnecting  kSending     the collector's welcome
//   transport kSending     kLeaving     everything is durable, or Finish gives up: the goodbye is
//   sent   sender an open one  kWaiting     the stream broke, or brought no welcome in time: try
//   again       sender an open one  kFailed      the session is refused or fenced, or the answers
//   are wrong       sender an open one  kEnded       Finish or Leave waits for nothing more sender
//   kWaiting     kEnded       the same, between two attempts or before the first sender
//
// "An open one" is kConnecting, kSending or kLeaving. kFailed and kEnded are final: the sender's
// thread ends.
#ifndef STATCOLLECT_AGENT_EXPORT_EXPORTER_STATE_H_
#define STATCOLLECT_AGENT_EXPORT_EXPORTER_STATE_H_

#include <array>
#include <string_view>

#include "common/status.h"

namespace statcollect {

enum class ExporterState { kWaiting, kConnecting, kSending, kLeaving, kFailed, kEnded };

std::string_view Name(ExporterState state);

struct ExporterTransition {
  ExporterState from, to;
  bool operator==(const ExporterTransition&) const = default;
};

inline constexpr std::array kExporterTransitions = [] {
  using enum ExporterState;
  return std::to_array<ExporterTransition>({
      {kWaiting, kConnecting},
      {kConnecting, kSending},
      {kSending, kLeaving},
      {kConnecting, kWaiting},
      {kSending, kWaiting},
      {kLeaving, kWaiting},
      {kConnecting, kFailed},
      {kSending, kFailed},
      {kLeaving, kFailed},
      {kConnecting, kEnded},
      {kSending, kEnded},
      {kLeaving, kEnded},
      {kWaiting, kEnded},
  });
}();

// Not thread-safe: guarded by the exporter.
class ExporterStates {
 public:
  ExporterState now() const { return now_; }
  bool over() const { return now_ == ExporterState::kFailed || now_ == ExporterState::kEnded; }
  bool welcomed() const {
    return now_ == ExporterState::kSending || now_ == ExporterState::kLeaving;
  }

  // kInternal: the table has no such transition, a bug of the exporter; the state is as before.
  Status Move(ExporterState to);

 private:
  ExporterState now_ = ExporterState::kWaiting;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_EXPORT_EXPORTER_STATE_H_
