// Watches a rank's own records for what the ring (tensor_ring.h) is kept for: NaN or an overflow, a
// loss that is not finite or jumps, an update of twice its median. The rules are those of the
// collector's alarms, with their default thresholds (docs/alarms.md), applied here because the ring
// would have moved on before the collector's word came back.
//
// When a step has one of them, the steps of the ring are written as captures, and an event
// `ring_written` and a line on standard error say so. A cause writes again only once it has been
// away for a step; there are at most kWritesMax writes.
//
// Thread: the batcher's.
#ifndef STATCOLLECT_AGENT_EXPORT_RING_WATCH_H_
#define STATCOLLECT_AGENT_EXPORT_RING_WATCH_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/staging/recorder.h"
#include "common/clock.h"
#include "common/records.h"
#include "common/spike_rule.h"
#include "common/update_norm.h"

namespace statcollect {

class RingWatch {
 public:
  static constexpr int kWritesMax = 8;

  using Say = std::function<void(const std::string&)>;

  // They print a line: that the ring was written, and, once, what it keeps if that is not all.
  RingWatch(Recorder* recorder, const Clock* clock, Say written, Say kept)
      : recorder_(recorder),
        clock_(clock),
        say_written_(std::move(written)),
        say_kept_(std::move(kept)) {}

  // In the order of their ids, each before its first record.
  void Define(const TensorDef& def) { defs_.push_back(def); }
  // In the order of the records.
  void AddTensor(const ObservedTensor& tensor);
  void AddScalar(const ScalarRecord& scalar);
  // All records of the step have been added. The event to add to the run, if the ring was written.
  std::optional<EventRecord> EndStep(std::uint64_t step);

 private:
  void NoteNonfinite(const TensorDef& def, const ObservedTensor& tensor);
  void NoteUpdate();
  void SayKept();
  EventRecord Write(std::uint64_t step, const std::string& cause, const std::string& why);

  Recorder* const recorder_;
  const Clock* const clock_;
  const Say say_written_, say_kept_;

  std::vector<TensorDef> defs_;                // by id
  std::map<std::string, std::string> causes_;  // of the step at hand: name and sentence
  std::set<std::string> active_;               // of the step before
  std::vector<char> masks_;  // by activation: 0 not seen, 1 no mask, 2 has had -inf from the start
  std::map<std::string, SpikeRule> losses_;
  UpdateNorm update_;
  SpikeRule updates_;
  std::size_t updated_ = 0;  // weights that the median of updates_ sums
  bool kept_said_ = false;
  int writes_ = 0;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_EXPORT_RING_WATCH_H_
