// Collects the recorder's records into batches for the sink. A batch is due at the end of a step,
// when kBatchRecords wait, or when the oldest record has waited kBatchAge; short steps share a
// batch, so that two batches are at least kStepSpacing apart. Records stay in the recorder until
// the sink has room, so the recorder's bounds are the agent's bounds.
//
// The batcher adds one record of its own: the scalar `grad_norm` at the end of each step in which
// weight gradients were observed. It is the L2 norm of all of them (call 0; not finite if an
// element was not), computed from their statistics without another pass over the tensors. It is
// left out if records of the step were lost or the program logs a scalar of that name.
//
// Raw values leave at most a chunk's bytes a batch, before all other waiting records, so that
// neither waits for all of the other. An event `capture` follows the last chunk of a tensor.
//
// Invariants: (1) Records leave in the order in which they were handed over. Raw values are the
// exception: they leave before the end of their step or, before the first answer of a collector, as
// soon as it answers. (2) A definition goes into the first batch that uses it or an earlier one.
// (3) A batch of more than one record fits BatchSink::BatchBytesMax. Threads: only the batcher's
// own thread calls Poll; any thread may call the rest.
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
#include "agent/export/ring_watch.h"
#include "agent/staging/recorder.h"
#include "agent/staging/slot_filler.h"
#include "common/clock.h"

namespace statcollect {

class Batcher {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::milliseconds kBatchAge{200};
  static constexpr std::chrono::milliseconds kFillerInterval{2};
  // Each batch wakes half a dozen threads, down to the collector's disk, on cores that train.
  static constexpr std::chrono::milliseconds kStepSpacing{50};
  static constexpr std::chrono::milliseconds kLossReportInterval{1000};

  // `waker`: the one that the recorder wakes. `sketch`: the size of the slots' sketches. `filler`,
  // if not null, is polled every kFillerInterval while it has results outstanding; meanwhile the
  // end of a step does not make a batch due before kBatchAge. `watch`, if not null, sees every
  // record.
  Batcher(Recorder* recorder, BatchSink* sink, Ledger* ledger, Waker* waker, const Clock* clock,
          std::uint32_t sketch, SlotFiller* filler = nullptr, RingWatch* watch = nullptr);
  ~Batcher();

  // Makes at most one batch. Returns the latest time of the next call (TimePoint::max(): only when
  // woken).
  TimePoint Poll();

  void Start();  // calls Poll in a thread of its own, until Stop
  // Makes everything that waits due now.
  void Flush();
  // Flushes, reports the losses, and ends the thread when nothing is left or at the deadline.
  // Idempotent.
  void Stop(TimePoint deadline);

 private:
  struct Builder;

  TimePoint Round();
  bool Empty();
  // When what waits is due.
  TimePoint DueAt(TimePoint now);
  // Queues an event about losses not yet reported, if one is due. Returns when the next one is due.
  TimePoint ReportLosses(TimePoint now);
  bool Assemble(Builder* builder);
  bool TakeSide(Builder* builder);
  bool TakeSlot(Builder* builder);
  // False if the batch has no room for it.
  bool AddTensor(const ObservedTensor& tensor, Builder* builder);
  void WatchStep(std::uint64_t step);
  void AddToNorm(const ObservedTensor& tensor);
  // Adds the unsent definitions up to these ids; false if they and `bytes` do not fit.
  bool Define(std::uint32_t activation, std::uint32_t layout, std::size_t bytes, Builder* builder);
  void TakeCaptures(Builder* builder);
  bool TakeCapture(Builder* builder);  // false if the batch has no room for it
  void RefuseCaptures();
  // Adds `grad_norm` of `step` (micro-batch 0). Call before the end of the step is added.
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
  RingWatch* const watch_;  // null: there is no ring

  bool filling_ = false;  // the filler has results outstanding

  std::optional<TimePoint> oldest_;  // when the oldest waiting record was noticed
  std::optional<TimePoint> last_batch_;
  std::uint32_t activations_sent_ = 0, layouts_sent_ = 0;
  std::uint64_t last_step_ = 0;
  std::map<std::string, std::uint64_t> reported_;  // losses, by cause
  std::deque<EventRecord> reports_;
  // The norm of this step's weight gradients.
  std::vector<bool> is_gradient_;       // by activation
  std::optional<double> norm_squared_;  // empty: no weight gradient yet
  std::uint64_t lost_before_ = 0;       // records lost until the end of the last step
  bool program_logs_norm_ = false;
  std::optional<TimePoint> last_report_;

  bool flushing_ = false;  // from a flush until everything is sent

  std::atomic<bool> flush_{false};
  std::atomic<bool> closing_{false};
  std::atomic<TimePoint> stop_at_{TimePoint::max()};
  std::thread thread_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_EXPORT_BATCHER_H_
