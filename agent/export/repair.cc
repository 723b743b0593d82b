#include "agent/export/repair.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "agent/export/wire.h"
#include "common/clock.h"

namespace statcollect {
namespace {

// Definitions in one batch that repeats them; each takes some hundred bytes.
constexpr std::uint32_t kRepeatedMax = 2048;

template <typename Defs>
void Extend(Defs* to, Defs from) {
  std::move(from.begin(), from.end(), std::back_inserter(*to));
}

EventRecord Tell(const Loss& loss) {
  const std::string count = std::to_string(loss.records);
  return {.kind = "records_dropped",
          .step = loss.step,
          .unix_nanos = SystemClock().UnixNanos(),
          .text = count + " records were lost in transit: " + loss.cause,
          .fields = {{"cause", loss.cause}, {"count", count}}};
}

}  // namespace

std::size_t RepairSize(const Definitions* definitions, const DefinitionCounts& counts) {
  if (definitions == nullptr) return 1;
  const std::uint32_t most = std::max(counts.activations, counts.layouts);
  return std::max<std::size_t>(1, (std::size_t{most} + kRepeatedMax - 1) / kRepeatedMax);
}

std::vector<EncodedBatch> MakeRepair(const Definitions* definitions, const DefinitionCounts& counts,
                                     const Loss& loss) {
  std::vector<EncodedBatch> batches(RepairSize(definitions, counts));
  DefinitionCounts from;
  for (EncodedBatch& encoded : batches) {
    RecordBatch batch;
    if (loss.records > 0 && &encoded == &batches.front()) {
      batch.events.push_back(Tell(loss));
    } else {
      batch.events.push_back(
          {.kind = "definitions_repeated", .step = loss.step, .text = "after a loss"});
    }
    encoded.records = 1;
    encoded.before = from;
    if (definitions != nullptr) {
      const std::uint32_t activations =
          std::min(counts.activations, from.activations + kRepeatedMax);
      const std::uint32_t layouts = std::min(counts.layouts, from.layouts + kRepeatedMax);
      if (activations > from.activations)
        Extend(&batch.activations, definitions->Activations(from.activations, activations - 1));
      if (layouts > from.layouts)
        Extend(&batch.layouts, definitions->Layouts(from.layouts, layouts - 1));
      from = {activations, layouts};
    }
    encoded.after = from;
    encoded.bytes = wire::EncodeRecords(batch, {});
  }
  return batches;
}

}  // namespace statcollect
