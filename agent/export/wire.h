// The agent's half of proto/statcollect/v1/ingest.proto, encoded by hand, so that libstatagent.so
// contains no protobuf: torch and other libraries in the process bring their own protobuf and
// export its symbols. tests/agent/export/wire_test.cc compares this with the generated code, field
// by field.
#ifndef STATCOLLECT_AGENT_EXPORT_WIRE_H_
#define STATCOLLECT_AGENT_EXPORT_WIRE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "agent/export/encoded_batch.h"
#include "agent/export/transport.h"
#include "common/records.h"
#include "common/status.h"

namespace statcollect::wire {

inline constexpr std::uint32_t kProtocolVersion = 1;
inline constexpr const char* kStreamMethod = "/statcollect.v1.Ingest/Stream";

// Serialized AgentMessages.
std::string EncodeHello(const SessionInfo& session, std::uint64_t first_unacked_seq);
// `known`: the layouts of the session by id (known[i].id == i), including those of the batch. The
// width of a record's sketch follows from its dtype.
std::string EncodeRecords(const RecordBatch& batch,
                          std::span<const Layout> known);  // the message Records
std::string EncodeBatch(const EncodedBatch& batch);
std::string EncodeBatch(const RecordBatch& batch, std::span<const Layout> known);
std::string EncodeGoodbye(const AgentCounters& counters);

// A CollectorMessage: one of the three, or none (a message of a later version).
struct CollectorMessage {
  std::optional<Welcome> welcome;
  std::optional<std::uint64_t> ack;  // durable_seq
  std::optional<Directive> directive;
};
// kDataLoss if the bytes are not a CollectorMessage.
Result<CollectorMessage> Decode(std::string_view bytes);

}  // namespace statcollect::wire

#endif  // STATCOLLECT_AGENT_EXPORT_WIRE_H_
