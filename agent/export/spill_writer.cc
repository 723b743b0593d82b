#include "agent/export/spill_writer.h"

#include <utility>

namespace statcollect {
namespace {

// After the file could not be written.
constexpr std::chrono::seconds kRetry{5};
// The file's acknowledged beginning is freed in steps of this size.
constexpr std::uint64_t kFreeBytes = 16u << 20;

}  // namespace

bool SpillWriter::HasRoom(std::size_t bytes) {
  if (file_->Fits(bytes)) return true;
  if (!std::exchange(full_told_, true)) {
    Tell("spill_full",
         "spill file " + file_->path() + " is full (" + std::to_string(file_->bytes_max() >> 20) +
             " MiB); further records are dropped and counted until the collector accepts some");
  }
  return false;
}

Status SpillWriter::Append(std::uint64_t first_seq, const std::vector<SpillQueue::Batch>& batches,
                           std::vector<FileSpan>* spans) {
  if (!file_->exists()) {
    freed_before_ = 0;
    STATCOLLECT_RETURN_IF_ERROR(file_->Create(first_seq));
  }
  for (const SpillQueue::Batch& batch : batches) {
    FileSpan at;
    STATCOLLECT_RETURN_IF_ERROR(file_->Append(*batch, &at));
    spans->push_back(at);
  }
  return Status::Ok();
}

void SpillWriter::TellNew(const std::string& collector) const {
  Tell("records_spilled", "the collector at " + collector +
                              " is unreachable or too slow: records wait in " + file_->path());
}

void SpillWriter::TellFailed(const Status& failure) {
  retry_at_ = std::chrono::steady_clock::now() + kRetry;
  if (std::exchange(failure_told_, true)) return;
  Tell("spill_failed",
       "cannot " + failure.message() +
           "; records that do not fit in memory are dropped and counted; the agent keeps "
           "trying");
}

void SpillWriter::Mark(const spill::Mark& mark, bool required) {
  if (!required && mark.offset < freed_before_ + kFreeBytes) return;
  if (const Status written = file_->Write(mark); !written.ok()) {
    log_->Log("cannot " + written.message());
    if (required) file_->Hide();
    return;
  }
  file_->FreeBefore(mark.offset);
  freed_before_ = mark.offset;
  full_told_ = false;
}

void SpillWriter::Remove() {
  file_->Remove();
  full_told_ = failure_told_ = false;
}

void SpillWriter::Tell(const char* kind, const std::string& text) const {
  log_->Log(text);
  if (on_event_) on_event_(kind, text);
}

}  // namespace statcollect
