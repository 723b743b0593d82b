// Collects what the recorder holds into batches and gives them to the sink: at a step's end (but short steps
// share a batch: not within kStepSpacing of the last one), when kBatchRecords wait, or when the oldest has
// waited kBatchAge. Nothing is taken out of the recorder before
// the sink has room for it, so that the recorder's bounds are the agent's bounds.
//
// It adds one record of its own: at the end of a step in which weight gradients were observed the scalar
// `grad_norm`, the L2 norm of them all (call 0; not finite if an element was not), unless records were lost
// in that step or the program logs a scalar of that name itself. So it costs no pass over the tensors, on any
// device.
//
// Raw values of tensors leave a chunk a batch, before everything else that waits, so that neither waits for
// all of the other. With the last chunk of a tensor comes an event, `capture`.
//
// Invariants: (1) Records leave in the order in which they were handed over, but for raw values, which leave
// before the end of their step, or, until a collector has answered for the first time, whenever it has. (2) A
// definition goes into the first batch that uses it or an earlier one. (3) A batch that holds more than one
// record fits BatchSink::BatchBytesMax. Threads: Poll from the batcher's own; the rest from any.
#ifndef STATCOLLECT_AGENT_EXPORT_BATCHER_H_
#define STATCOLLECT_AGENT_EXPORT_BATCHER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "agent/export/batch_sink.h"
#include "agent/staging/recorder.h"
#include "agent/staging/slot_filler.h"
#include "common/clock.h"

namespace statcollect {

class Batcher {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::milliseconds kBatchAge{200};
  static constexpr std::chrono::milliseconds kFillerInterval{2};
  // A batch wakes half a dozen threads down to the disk of the collector, on cores that train.
  static constexpr std::chrono::milliseconds kStepSpacing{50};
  static constexpr std::chrono::milliseconds kLossReportInterval{1000};

  // `waker` is the one that the recorder wakes. `sketch` as in the recorder's slots. `filler`, if not null,
  // is polled every kFillerInterval while it has something to come; a step's end is then no reason to send
  // before kBatchAge.
  Batcher(Recorder* recorder, BatchSink* sink, Ledger* ledger, Waker* waker, const Clock* clock,
          std::uint32_t sketch, SlotFiller* filler = nullptr);
  ~Batcher();

  // One round: makes at most one batch. Returns when to call again, at the latest (TimePoint::max(): when
  // woken).
  TimePoint Poll();

  void Start();  // Poll in a thread of its own, until Stop
  // Asks for everything that waits to be sent without regard to age.
  void Flush();
  // Flushes, reports the losses, and ends the thread once nothing is left or at the deadline. Idempotent.
  void Stop(TimePoint deadline);

 private:
  struct Builder;

  TimePoint Round();
  bool Empty();
  // When what waits is due.
  TimePoint DueAt(TimePoint now);
  // Makes an event of the losses not yet reported, if it is time. Returns when it will be.
  TimePoint ReportLosses(TimePoint now);
  bool Assemble(Builder* builder);
  bool TakeSide(Builder* builder);
  bool TakeSlot(Builder* builder);
  // False: there is no room for it.
  bool AddTensor(const ObservedTensor& tensor, Builder* builder);
  void AddToNorm(const ObservedTensor& tensor);
  // Adds the definitions up to these that were not sent yet, if they and `bytes` fit.
  bool Define(std::uint32_t activation, std::uint32_t layout, std::size_t bytes, Builder* builder);
  void TakeCapture(Builder* builder);
  void RefuseCaptures();
  // Before the end of `step` is added; `micro_batch` 0.
  void AddNorm(std::uint64_t step, Builder* builder);
  void Discard();
  void Run();

  Recorder* const recorder_;
  BatchSink* const sink_;
  Ledger* const ledger_;
  Waker* const waker_;
  const Clock* const clock_;
  const std::uint32_t sketch_;
  SlotFiller* const filler_;

  bool filling_ = false;  // the filler has something to come

  std::optional<TimePoint> oldest_;  // when the oldest waiting record was noticed
  std::optional<TimePoint> last_batch_;
  std::uint32_t activations_sent_ = 0, layouts_sent_ = 0;
  std::uint64_t last_step_ = 0;
  std::map<std::string, std::uint64_t> reported_;  // losses, by cause
  std::deque<EventRecord> reports_;
  // The norm of this step's weight gradients.
  std::vector<bool> is_gradient_;       // by activation
  std::optional<double> norm_squared_;  // nothing: none yet
  std::uint64_t lost_before_ = 0;       // records lost until the end of the last step
  bool program_logs_norm_ = false;
  std::optional<TimePoint> last_report_;

  bool flushing_ = false;  // a flush was asked for, and not everything is sent yet

  std::atomic<bool> flush_{false};
  std::atomic<bool> closing_{false};
  std::atomic<TimePoint> stop_at_{TimePoint::max()};
  std::thread thread_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_EXPORT_BATCHER_H_
