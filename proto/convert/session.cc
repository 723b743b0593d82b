#include "proto/convert.h"

#include <algorithm>
#include <string>

#include "common/names.h"
#include "common/rank_set.h"
#include "proto/convert/checks.h"

namespace statcollect {
namespace {

constexpr std::size_t kSessionIdBytes = std::tuple_size_v<SessionId>;

}  // namespace

v1::Hello ToWire(const SessionInfo& info, std::uint64_t first_unacked_seq) {
  v1::Hello hello;
  hello.set_protocol_version(kProtocolVersion);
  hello.set_run(info.run);
  hello.set_session_id(info.session.data(), info.session.size());
  hello.set_first_unacked_seq(first_unacked_seq);
  hello.set_rank(info.rank);
  hello.set_local_rank(info.local_rank);
  hello.set_world_size(info.world_size);
  hello.set_host(info.host);
  hello.set_pid(info.pid);
  hello.set_start_unix_nanos(info.start_unix_nanos);
  hello.set_launch(info.launch);
  hello.set_if_exists(static_cast<v1::IfExists>(info.if_exists));
  hello.set_agent_version(info.agent_version);
  hello.mutable_config()->insert(info.config.begin(), info.config.end());
  hello.set_attempt_start_unix_nanos(info.attempt_start_unix_nanos);
  hello.set_ranks(info.ranks);
  return hello;
}

Result<SessionInfo> FromWire(const v1::Hello& hello) {
  if (hello.protocol_version() != kProtocolVersion) {
    return Status(Code::kFailedPrecondition,
                  "hello: protocol version is " + std::to_string(hello.protocol_version()) +
                      "; this build speaks " + std::to_string(kProtocolVersion) +
                      "; use agent and collector of matching releases");
  }
  STATCOLLECT_RETURN_IF_ERROR(convert::Within("hello", ValidateRunName(hello.run())));
  if (hello.session_id().size() != kSessionIdBytes) {
    return convert::Invalid("hello: session_id has " + std::to_string(hello.session_id().size()) +
                            " bytes; expected 16");
  }
  if (hello.first_unacked_seq() == 0)
    return convert::Invalid("hello: first_unacked_seq is 0; sequence numbers start at 1");
  if (hello.rank() >= hello.world_size()) {
    return convert::Invalid("hello: rank is " + std::to_string(hello.rank()) + " of world_size " +
                            std::to_string(hello.world_size()) + "; expected rank < world_size");
  }
  const auto ranks = RankSet::Parse(hello.ranks(), hello.world_size());
  if (!ranks.ok()) return convert::Within("hello", ranks.status());
  if (!ranks->Contains(hello.rank())) {
    return convert::Invalid("hello: rank " + std::to_string(hello.rank()) +
                            " is not among the ranks that record, '" + ranks->Text() +
                            "'; expected a rank that does");
  }
  if (hello.if_exists() < 0 || hello.if_exists() >= kIfExistsCount) {
    return convert::Invalid("hello: if_exists is " + std::to_string(hello.if_exists()) +
                            "; expected 0.." + std::to_string(kIfExistsCount - 1));
  }
  STATCOLLECT_RETURN_IF_ERROR(
      convert::Within("hello", convert::CheckOptionalName("host", hello.host())));
  STATCOLLECT_RETURN_IF_ERROR(
      convert::Within("hello", convert::CheckOptionalName("launch", hello.launch())));
  STATCOLLECT_RETURN_IF_ERROR(
      convert::Within("hello", convert::CheckOptionalName("agent version", hello.agent_version())));
  STATCOLLECT_RETURN_IF_ERROR(
      convert::Within("hello", convert::CheckTextMap("configuration key", hello.config())));

  SessionInfo info;
  info.run = hello.run();
  std::copy(hello.session_id().begin(), hello.session_id().end(), info.session.begin());
  info.launch = hello.launch();
  const bool unspecified = hello.if_exists() == v1::IF_EXISTS_UNSPECIFIED;
  info.if_exists = unspecified ? IfExists::kError : static_cast<IfExists>(hello.if_exists());
  info.rank = hello.rank();
  info.local_rank = hello.local_rank();
  info.world_size = hello.world_size();
  info.host = hello.host();
  info.pid = hello.pid();
  info.start_unix_nanos = hello.start_unix_nanos();
  info.agent_version = hello.agent_version();
  info.config = convert::CopyMap(hello.config());
  info.attempt_start_unix_nanos = hello.attempt_start_unix_nanos();
  info.ranks = ranks->Text();
  return info;
}

v1::AgentCounters ToWire(const AgentCounters& counters) {
  v1::AgentCounters wire;
  wire.set_produced(counters.produced);
  wire.set_acked(counters.acked);
  wire.set_pending(counters.pending);
  wire.mutable_dropped()->insert(counters.dropped_by_cause.begin(),
                                 counters.dropped_by_cause.end());
  wire.set_unused(counters.unused);
  return wire;
}

AgentCounters FromWire(const v1::AgentCounters& wire) {
  AgentCounters counters;
  counters.produced = wire.produced();
  counters.acked = wire.acked();
  counters.pending = wire.pending();
  counters.dropped_by_cause = {wire.dropped().begin(), wire.dropped().end()};
  counters.unused = wire.unused();
  return counters;
}

}  // namespace statcollect
