// Messages <-> plain records. Everything that comes from outside passes a FromWire function here and is valid afterwards.
#ifndef STATCOLLECT_PROTO_CONVERT_H_
#define STATCOLLECT_PROTO_CONVERT_H_

#include <cstdint>
#include <string>

#include "common/records.h"
#include "common/status.h"
#include "statcollect/v1/ingest.pb.h"
#include "statcollect/v1/stats.pb.h"

namespace statcollect {

inline constexpr std::uint32_t kProtocolVersion = 1;
inline constexpr std::uint32_t kMessageBytesMax = 4u << 20;
inline constexpr std::uint32_t kWindowBatchesMax = 8;
inline constexpr std::uint32_t kWindowBytesMax = 16u << 20;
inline constexpr std::uint32_t kBatchRecordsMax = 65536;

v1::Hello ToWire(const SessionInfo& info, std::uint64_t first_unacked_seq);
// kInvalidArgument: run name, session id length, rank >= world_size, names in the configuration. kFailedPrecondition: protocol
// version (says which this build speaks).
Result<SessionInfo> FromWire(const v1::Hello& hello);

// Serializes the records, computes the CRC. Precondition: batch.records() > 0.
v1::Batch ToWire(const RecordBatch& batch);
// Checks the CRC first, then parses, then validates: equal column lengths, record count == n, counts that fit numel, ids that are
// plausible (dense), known enumerations, names, steps that do not decrease, sketch width, sizes. kDataLoss for the CRC,
// kInvalidArgument for the rest, naming field and index. Definitions and ids are only checked within the batch; the session
// checks them against what it already knows.
Result<RecordBatch> FromWire(const v1::Batch& batch);

v1::AgentCounters ToWire(const AgentCounters& counters);
AgentCounters FromWire(const v1::AgentCounters& counters);

}  // namespace statcollect

#endif  // STATCOLLECT_PROTO_CONVERT_H_
