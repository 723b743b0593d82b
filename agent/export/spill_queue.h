// What waits behind the send window for room in it: batches in the spill file, then the one that
// has found room in neither.
//
//   window  <-  frames from read_at() to the end of the file  <-  held()
//
// Invariants: (1) nothing overtakes: a batch is held only after what is in the frames, and enters
// the window only from here, unless nothing is in the frames. (2) records() is the sum of the
// frames' records. (3) After RequireMark, marked() is false until a mark with the new numbers has
// been attempted; nothing may be sent before.
//
// It is bookkeeping: it touches no file. Not thread-safe: guarded by the exporter.
#ifndef STATCOLLECT_AGENT_EXPORT_SPILL_QUEUE_H_
#define STATCOLLECT_AGENT_EXPORT_SPILL_QUEUE_H_

#include <cstdint>
#include <memory>

#include "agent/export/encoded_batch.h"
#include "common/spill_format.h"

namespace statcollect {

class SpillQueue {
 public:
  using Batch = std::shared_ptr<const EncodedBatch>;

  bool empty() const { return records_ == 0 && held_ == nullptr; }
  // Forgets everything; returns how many records that loses.
  std::uint64_t Clear();

  // --- the batch that has found room in neither; nullptr: none
  const Batch& held() const { return held_; }
  // Precondition: none is held.
  void Hold(EncodedBatch batch);
  // Precondition: one is held, and nothing is in the frames.
  EncodedBatch TakeHeld();

  // --- the frames
  std::uint64_t records() const { return records_; }
  std::uint64_t read_at() const { return read_at_; }
  // The held batch has been written there, at the end of the file. No effect if it is not held any
  // more: everything was dropped meanwhile.
  void MoveToFile(const Batch& batch, const FileSpan& at);
  // The batch at read_at() has been read.
  void Pop(const EncodedBatch& batch);
  // The frame at read_at() is damaged, or everything from there if its head is damaged too (no
  // records). Returns how many records are lost.
  std::uint64_t Skip(const spill::FrameHead& frame);

  // --- the file's mark, which says where its rest begins and with which number
  void RequireMark() { ++marks_due_; }
  bool marked() const { return marks_done_ == marks_due_; }
  std::uint64_t marks_due() const { return marks_due_; }
  // Those that were due when the mark was made have been attempted.
  void MarksDone(std::uint64_t marks) { marks_done_ = marks; }

 private:
  Batch held_;
  std::uint64_t records_ = 0;
  std::uint64_t read_at_ = 0, end_ = 0;  // offsets in the file
  std::uint64_t marks_due_ = 0, marks_done_ = 0;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_EXPORT_SPILL_QUEUE_H_
