// Writes the spill file for the exporter: makes it when it is needed, frees its acknowledged
// beginning, leaves the disk alone for a while after a failure, and says once what went wrong.
//
// Threads: the one that submits; after it has ended, that of Finish. The exporter's mutex is not
// held.
#ifndef STATCOLLECT_AGENT_EXPORT_SPILL_WRITER_H_
#define STATCOLLECT_AGENT_EXPORT_SPILL_WRITER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "agent/export/log_limiter.h"
#include "agent/export/spill_file.h"
#include "agent/export/spill_queue.h"
#include "common/status.h"

namespace statcollect {

class SpillWriter {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  // Receives what is also logged, to be recorded in the run. May be empty.
  using OnEvent = std::function<void(const char* kind, const std::string& text)>;

  // `file` may be null if spilling is off; then nothing else is called.
  SpillWriter(SpillFile* file, LogLimiter* log, OnEvent on_event)
      : file_(file), log_(log), on_event_(std::move(on_event)) {}

  // Not before this: the disk has just failed.
  TimePoint retry_at() const { return retry_at_; }
  bool Resting() const { return std::chrono::steady_clock::now() < retry_at_; }
  // Whether so many bytes fit. Says once that they do not.
  bool HasRoom(std::size_t bytes);

  // Adds the batches at the end of the file, which begins with record `first_seq` if it does not
  // exist yet. `spans` is where they are. After a failure these are fewer: the file keeps what was
  // written before it.
  Status Append(std::uint64_t first_seq, const std::vector<SpillQueue::Batch>& batches,
                std::vector<FileSpan>* spans);
  // Says that batches wait in the file, which is new, because of the collector.
  void TellNew(const std::string& collector) const;
  // After a failed Append: rests, and says so once.
  void TellFailed(const Status& failure);

  // Writes the mark and frees what is before it, if it is `required` or enough is freed. If a
  // required mark cannot be written, hides the file: nobody may send it later, with wrong numbers.
  void Mark(const spill::Mark& mark, bool required);
  // Deletes the file: the collector has all of it.
  void Remove();

 private:
  void Tell(const char* kind, const std::string& text) const;

  SpillFile* const file_;
  LogLimiter* const log_;
  const OnEvent on_event_;
  TimePoint retry_at_{};
  std::uint64_t freed_before_ = 0;  // offset in the file
  bool full_told_ = false, failure_told_ = false;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_EXPORT_SPILL_WRITER_H_
