// Records of tokens whose rows a GPU computes: between the recorder and the row engine. A record
// waits in its place among the others until its rows have come.
#ifndef STATCOLLECT_AGENT_CUDA_TOKEN_ROWS_H_
#define STATCOLLECT_AGENT_CUDA_TOKEN_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "agent/staging/recorder.h"
#include "agent/stats/cuda/row_engine.h"
#include "agent/stats/stats.h"
#include "common/clock.h"
#include "common/records.h"
#include "common/status.h"

namespace statcollect {

// Threads: Record from any; Poll from the batcher's; Abandon once the batcher has stopped.
class CudaTokenRows final {
 public:
  // `recorder` and `clock` outlive it.
  CudaTokenRows(std::unique_ptr<stats::cuda::CudaApi> api, Recorder* recorder, const Clock* clock)
      : recorder_(recorder), clock_(clock), engine_(std::move(api)) {}

  // Records the tokens; their statistics are those of the matrix's rows, in their order or in that
  // of `index` (null: none). Errors (nothing is recorded): as RowEngine::Check and LogTokens. What
  // fails later is counted as lost. Precondition: ValidateRows(rows, record.first_column) is OK,
  // and every index below the number of rows.
  Status Record(const TokenRecord& record, std::optional<std::uint64_t> step,
                const stats::CpuTensor& rows, const std::int64_t* index, int device, void* stream);

  // Completes the records whose rows have come; returns how many launches are on their way. Never
  // waits.
  std::size_t Poll() noexcept;
  // Forgets what is on its way; the recorder counts it. Poll is not called afterwards.
  void Abandon() { engine_.Abandon(); }

 private:
  Recorder* const recorder_;
  const Clock* const clock_;
  stats::cuda::RowEngine engine_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_CUDA_TOKEN_ROWS_H_
