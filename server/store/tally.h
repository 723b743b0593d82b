// Sums the states of ranks up to the tally of their attempt, for any store's census.
#ifndef STATCOLLECT_SERVER_STORE_TALLY_H_
#define STATCOLLECT_SERVER_STORE_TALLY_H_

#include <algorithm>
#include <utility>

#include "server/store/store.h"

namespace statcollect {

inline AttemptTally EmptyTally(AttemptMeta attempt) {
  AttemptTally tally{.meta = std::move(attempt), .finished = true};
  tally.last_write_unix_nanos = tally.meta.start_unix_nanos;
  return tally;
}

inline void AddRank(const RankMeta& rank, AttemptTally* tally) {
  ++tally->ranks;
  tally->records += rank.records;
  for (const auto& [cause, count] : rank.dropped) tally->dropped[cause] += count;
  tally->last_write_unix_nanos = std::max(tally->last_write_unix_nanos, rank.last_write_unix_nanos);
  tally->finished = tally->finished && rank.finished;
}

// Adds the ranks of another tally of the attempt.
inline void AddTally(const AttemptTally& other, AttemptTally* tally) {
  tally->ranks += other.ranks;
  tally->records += other.records;
  tally->bytes += other.bytes;
  for (const auto& [cause, count] : other.dropped) tally->dropped[cause] += count;
  tally->last_write_unix_nanos = std::max(tally->last_write_unix_nanos, other.last_write_unix_nanos);
  tally->finished = tally->finished && other.finished;
}

// After all ranks were added.
inline void FinishTally(AttemptTally* tally) {
  tally->finished = tally->finished && tally->ranks >= tally->meta.world_size;
}

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_TALLY_H_
