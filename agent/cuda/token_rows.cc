#include "agent/cuda/token_rows.h"

#include <span>
#include <string_view>

#include "agent/staging/ledger.h"

namespace statcollect {
namespace {

std::string_view CauseOfLostRows(const Status& why) {
  switch (why.code()) {
    case Code::kResourceExhausted:
      return kDropBufferFull;
    case Code::kAborted:
      return kDropClosed;
    default:
      return kDropDeviceError;
  }
}

}  // namespace

Status CudaTokenRows::Record(const TokenRecord& record, std::optional<std::uint64_t> step,
                             const stats::CpuTensor& rows, const std::int64_t* index, int device,
                             void* stream) {
  static_assert(kTokenRowsMax <= stats::cuda::RowEngine::kRowsMax);
  STATCOLLECT_RETURN_IF_ERROR(engine_.Check(rows, device, stream));
  const auto compute = [&](std::size_t begin, std::size_t count, std::uint64_t number) {
    const stats::cuda::RowChoice choice{.index = index, .begin = begin, .count = count};
    const Status enqueued =
        engine_.Enqueue(rows, record.first_column, choice, device, stream, number);
    if (!enqueued.ok()) recorder_->log().LoseTokens(number, CauseOfLostRows(enqueued));
  };
  return recorder_->log().LogTokens(record, step, compute);
}

std::size_t CudaTokenRows::Poll() noexcept {
  using stats::cuda::RowRecord;
  const auto done = [this](std::uint64_t number, std::span<const RowRecord> rows,
                           const Status& status) {
    if (!status.ok()) return recorder_->log().LoseTokens(number, CauseOfLostRows(status));
    recorder_->log().CompleteTokens(number, [&](std::size_t row, RowStats* stats) {
      *stats = stats::cuda::ToRowStats(rows[row]);
    });
  };
  return engine_.Poll(clock_->Now(), done);
}

}  // namespace statcollect
