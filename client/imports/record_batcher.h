// Turns one rank's observations into batches of a session: interns activations and layouts, numbers
// the order of execution, and keeps batches within the protocol's limits.
#ifndef STATCOLLECT_CLIENT_IMPORTS_RECORD_BATCHER_H_
#define STATCOLLECT_CLIENT_IMPORTS_RECORD_BATCHER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "client/formats/observation.h"
#include "client/rpc/ingest_sender.h"
#include "common/clock.h"
#include "common/records.h"

namespace statcollect::client {

class RecordBatcher final : public formats::ObservationSink {
 public:
  // `skipped` counts repeated identities of a step. `progress` is called after every record. All
  // arguments must outlive it.
  RecordBatcher(BatchOutput& output, formats::Tally& tally, const Clock& clock,
                std::function<void()> progress);

  // Sends what is pending.
  Status Flush();

  std::uint64_t records() const { return records_; }
  std::uint64_t steps() const { return steps_; }
  std::optional<std::uint64_t> first_step() const { return first_step_; }
  std::optional<std::uint64_t> last_step() const { return last_step_; }

 private:
  using LayoutKey =
      std::tuple<DType, std::vector<std::int64_t>, std::uint32_t, std::uint32_t, HashKind>;
  struct KeyHash {
    std::size_t operator()(const TensorKey& key) const;
  };

  Status DoTake(formats::Observation observation) override;
  Status DoTakeScalar(ScalarRecord scalar) override;
  Status DoEndStep(std::uint64_t step) override;
  Result<std::uint32_t> Intern(const TensorDef& def);
  Result<std::uint32_t> Intern(const Layout& layout);
  Status EnterStep(std::uint64_t step);

  BatchOutput& output_;
  formats::Tally& tally_;
  const Clock& clock_;
  const std::function<void()> progress_;

  std::unordered_map<TensorKey, std::uint32_t, KeyHash> activations_;
  std::map<LayoutKey, std::uint32_t> layouts_;
  std::vector<std::uint64_t> seen_in_;  // by activation: its last step + 1
  RecordBatch batch_;
  std::size_t batch_bytes_ = 0;  // approximate
  std::optional<std::uint64_t> first_step_, last_step_;
  std::uint32_t order_ = 0, micro_batches_ = 0;
  std::uint64_t records_ = 0, steps_ = 0;
};

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_IMPORTS_RECORD_BATCHER_H_
