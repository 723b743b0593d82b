// Messages <-> plain records, one file of convert/ for each family of messages. Everything that
// comes from outside passes a FromWire function and is valid afterwards.
#ifndef STATCOLLECT_PROTO_CONVERT_H_
#define STATCOLLECT_PROTO_CONVERT_H_

#include <cstdint>
#include <span>
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
// Texts of people's own: configuration values, event texts and fields.
inline constexpr std::size_t kTextBytesMax = 64u << 10;
inline constexpr std::size_t kConfigEntriesMax = 4096;

v1::Hello ToWire(const SessionInfo& info, std::uint64_t first_unacked_seq);
// kInvalidArgument: run name, session id length, rank >= world_size, names in the configuration.
// kFailedPrecondition: protocol version (says which this build speaks).
Result<SessionInfo> FromWire(const v1::Hello& hello);

// Layouts that a session has defined before the batch at hand, by id: known[i].id == i. Both sides
// need them, because a record's element count and the width of its sketch follow from its layout,
// which an earlier batch may have defined.
using KnownLayouts = std::span<const Layout>;

// Serializes the records, computes the CRC. Preconditions: batch.records() > 0; every record's
// layout is in `batch` or `known`.
v1::Batch ToWire(const RecordBatch& batch, KnownLayouts known);
// Checks the CRC first, then parses, then validates: equal column lengths, record count == n,
// counts that add up to the layout's element count, known enumerations, names, shapes, steps that
// do not decrease, sketch width, sizes. Definitions must be dense; layouts also against `known` (a
// repeated one must be equal). kDataLoss for the CRC, kInvalidArgument for the rest, naming field
// and index. Activation ids are not looked up here: the session checks them against what it knows.
Result<RecordBatch> FromWire(const v1::Batch& batch, KnownLayouts known);

// Records without sequence numbers, as queries answer them; may be empty. Same rules as in a batch.
void ToWire(const RecordBatch& batch, KnownLayouts known, v1::Records* records);
Result<RecordBatch> FromWire(const v1::Records& records, KnownLayouts known);

v1::AgentCounters ToWire(const AgentCounters& counters);
AgentCounters FromWire(const v1::AgentCounters& counters);

}  // namespace statcollect

#endif  // STATCOLLECT_PROTO_CONVERT_H_
