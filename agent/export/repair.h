// What a collector is sent in place of records that it will never get: an event that tells how many
// are lost, and the definitions that the lost batches may have contained.
#ifndef STATCOLLECT_AGENT_EXPORT_REPAIR_H_
#define STATCOLLECT_AGENT_EXPORT_REPAIR_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "agent/export/encoded_batch.h"
#include "agent/staging/registry.h"

namespace statcollect {

struct Loss {
  std::string cause;
  std::uint64_t records = 0;  // 0: nothing is lost, the definitions are only repeated
  std::uint64_t step = 0;     // in which the loss was found
};

// Batches of one record each, without numbers, that send the first `counts` definitions again.
// `definitions` may be null; then there is one batch, without any.
std::vector<EncodedBatch> MakeRepair(const Definitions* definitions, const DefinitionCounts& counts,
                                     const Loss& loss);
// How many batches that makes.
std::size_t RepairSize(const Definitions* definitions, const DefinitionCounts& counts);

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_EXPORT_REPAIR_H_
