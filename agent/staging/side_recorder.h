// Records other than tensors: scalars, events, memory, densities, token records and settings. Each
// is checked and queued after everything recorded before it. Threads: any.
#ifndef STATCOLLECT_AGENT_STAGING_SIDE_RECORDER_H_
#define STATCOLLECT_AGENT_STAGING_SIDE_RECORDER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "agent/staging/staging_state.h"
#include "common/records.h"
#include "common/status.h"

namespace statcollect {

class SideRecorder {
 public:
  static constexpr std::size_t kEventTextBytesMax = 16u << 10;
  static constexpr std::size_t kEventFieldBytesMax = 4u << 10;
  static constexpr std::size_t kEventFieldsMax = 64;
  static constexpr std::size_t kAddedSettingsMax = 4000;
  static constexpr std::size_t kSettingBytesMax = 16u << 10;

  // `state` outlives it.
  explicit SideRecorder(StagingState* state) : state_(*state) {}

  // `step`: by default the current one. An earlier step is accepted; a later one is
  // kInvalidArgument.
  Status LogScalar(std::string_view name, double value, std::uint32_t micro_batch,
                   std::optional<std::uint64_t> step = std::nullopt);
  Status LogEvent(std::string_view kind, std::string_view text,
                  const std::map<std::string, std::string>& fields,
                  std::optional<std::uint64_t> step = std::nullopt);
  // Records in the current step; `record.step` is ignored. kInvalidArgument: names, bits, negative
  // bytes.
  Status LogMemory(MemoryRecord record);
  // `step` as LogScalar. kInvalidArgument: the name, more valid elements than there are.
  Status LogDensity(DensityRecord record, std::optional<std::uint64_t> step = std::nullopt);
  // `step` as LogScalar. More than kTokenRowsMax rows become several records. kInvalidArgument: the
  // tap's name. With `awaited` their statistics are still missing: compute(begin, count, number)
  // has to see to it that CompleteTokens or LoseTokens is called for the record of each such part,
  // at once or later. It is not called for parts that are lost already.
  using ComputeTokens =
      std::function<void(std::size_t begin, std::size_t count, std::uint64_t number)>;
  Status LogTokens(const TokenRecord& record, std::optional<std::uint64_t> step = std::nullopt,
                   const ComputeTokens& compute = nullptr);
  // fill(i, stats) for each row i of an awaited record. For the batcher's thread.
  void CompleteTokens(std::uint64_t number,
                      const std::function<void(std::size_t row, RowStats* stats)>& fill);
  // An awaited record is lost for this cause. Threads: any.
  void LoseTokens(std::uint64_t number, std::string_view cause);
  // Adds settings that became known after the start. kResourceExhausted: more than
  // kAddedSettingsMax names in all; settings before the failing one are recorded.
  Status AddConfig(const std::map<std::string, std::string>& settings);

 private:
  // Pushes what make(step) returns, and wakes the batcher if necessary. `make` runs with the mutex
  // held.
  // `awaited`: as StagingState::PushLocked.
  template <typename Make>
  Status PushAt(std::string_view what, std::optional<std::uint64_t> step, const Make& make,
                std::uint64_t* awaited = nullptr);
  // Resolves `step` to the step to record in, or says why it is invalid.
  Result<std::uint64_t> StepLocked(std::string_view what, std::optional<std::uint64_t> step) const
      STATCOLLECT_REQUIRES(state_.mutex);

  StagingState& state_;
  std::set<std::string> settings_;  // names of AddConfig; guarded by the state's mutex
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_STAGING_SIDE_RECORDER_H_
