// What the store keeps of an attempt and of each of its ranks. An attempt has a numeric id that is
// part of every key and is never reused.
#ifndef STATCOLLECT_SERVER_STORE_ATTEMPT_H_
#define STATCOLLECT_SERVER_STORE_ATTEMPT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/records.h"

namespace statcollect {

using AttemptId = std::uint32_t;

// One launch of a run.
struct AttemptMeta {
  AttemptId id = 0;          // unique in the store, from 1
  std::uint32_t number = 0;  // within the run, from 1
  std::string run;
  std::string launch;
  std::uint32_t world_size = 0;
  std::int64_t start_unix_nanos = 0;  // collector's clock at the first hello
  bool operator==(const AttemptMeta&) const = default;
};

// One rank of an attempt: its session, watermark and tallies. Rewritten atomically with each
// append.
struct RankMeta {
  SessionInfo info;
  std::uint64_t durable_seq = 0;  // watermark
  std::uint64_t records = 0;      // stored, of all kinds
  std::uint64_t stat_records = 0;
  std::uint64_t steps = 0;                             // distinct steps with statistics
  std::optional<std::uint64_t> first_step, last_step;  // of statistics, scalars and step ends
  std::map<std::string, std::uint64_t> dropped;        // reported by the agent
  std::int64_t last_write_unix_nanos = 0;
  bool finished = false;             // it said goodbye
  std::uint32_t ranks_expected = 0;  // of its launch, as its hello said; 0: all of the world
};

// Summary of a stored attempt, for retention and status.
struct AttemptTally {
  AttemptMeta meta;
  std::uint32_t ranks = 0;
  std::uint32_t ranks_expected = 0;  // as its ranks say
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;                       // on disk, approximate
  std::map<std::string, std::uint64_t> dropped;  // reported by the agents, by cause
  std::int64_t last_write_unix_nanos = 0;        // the start, if nothing was written
  bool finished = false;  // every rank of the launch that records said goodbye
  bool kept = false;      // its run is exempt from retention
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ATTEMPT_H_
