// Sums the states of ranks up to the tally of their attempt, for any store's census.
#ifndef STATCOLLECT_SERVER_STORE_TALLY_H_
#define STATCOLLECT_SERVER_STORE_TALLY_H_

#include <algorithm>
#include <utility>

#include "common/rank_set.h"
#include "server/store/attempt.h"

namespace statcollect {

// RankMeta::ranks_expected of a session.
inline std::uint32_t RanksExpected(const SessionInfo& info) {
  if (info.ranks.empty()) return 0;
  const auto ranks = RankSet::Parse(info.ranks, info.world_size);
  return ranks.ok() ? ranks->count() : 0;
}

// How many ranks of the rank's launch record.
inline std::uint32_t RanksExpected(const RankMeta& rank, const AttemptMeta& attempt) {
  return rank.ranks_expected == 0 ? attempt.world_size : rank.ranks_expected;
}

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
  tally->ranks_expected = std::max(tally->ranks_expected, RanksExpected(rank, tally->meta));
}

// Adds the ranks of another tally of the attempt.
inline void AddTally(const AttemptTally& other, AttemptTally* tally) {
  tally->ranks += other.ranks;
  tally->records += other.records;
  tally->bytes += other.bytes;
  for (const auto& [cause, count] : other.dropped) tally->dropped[cause] += count;
  tally->last_write_unix_nanos =
      std::max(tally->last_write_unix_nanos, other.last_write_unix_nanos);
  tally->finished = tally->finished && other.finished;
  tally->ranks_expected = std::max(tally->ranks_expected, other.ranks_expected);
}

// After all ranks were added.
inline void FinishTally(AttemptTally* tally) {
  tally->finished = tally->finished && tally->ranks > 0 && tally->ranks >= tally->ranks_expected;
}

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_TALLY_H_
