// The ranks that this process writes; chain.h has the rules.
#ifndef STATCOLLECT_SERVER_STORE_CLICKHOUSE_CLAIMS_H_
#define STATCOLLECT_SERVER_STORE_CLICKHOUSE_CLAIMS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "common/status.h"
#include "common/thread_annotations.h"
#include "server/store/attempt.h"
#include "server/store/clickhouse/engine.h"
#include "server/store/clickhouse/rank_rows.h"
#include "server/store/clickhouse/schema.h"
#include "server/store/clickhouse/small_writes.h"

namespace statcollect {

// Threads: any; one at a time for one rank.
class Claims {
 public:
  using Place = std::pair<AttemptId, std::uint32_t>;
  // Borrows them.
  Claims(Engine& engine, RankReads& reads, SmallWrites& writes)
      : engine_(engine), reads_(reads), writes_(writes) {}

  // What is stored of the rank. Remembers its newest epoch, so that a claim need not ask for it.
  Result<RankRows> Read(const Place& place);
  // Takes the rank over, under a new epoch. What is stored of it is final from now on, and is
  // returned. kUnavailable: somebody else does so at this moment.
  Result<RankRows> Claim(const Place& place);
  // Takes the rank over from a writer that has not finished, without becoming its writer. False:
  // the rank has no state.
  Result<bool> End(const Place& place);
  // For the rank's next batch, which ends with record `seq`. Claims the rank if this process has
  // not.
  Result<RowStamp> NextStamp(const Place& place, std::uint64_t seq);
  // Call when the outcome of a write is unknown: the rank's next write gets another epoch.
  void Forget(const Place& place);

  // Call after a write. kAborted: another collector has taken over one of the ranks, or its attempt
  // was removed; what was written may not count.
  Status Check(const std::set<Place>& places);

 private:
  struct Held {
    std::uint64_t epoch = 0, n = 0, cut = 0, parent = 0;
  };
  static constexpr std::size_t kSeenMax = std::size_t{1} << 16;

  Result<RankRows> WriteFence(const Place& place, std::uint64_t* epoch);
  Status WriteState(const Place& place, const RowStamp& stamp, const std::string& value);
  std::uint64_t NewestSeen(const Place& place);
  void See(const Place& place, std::uint64_t newest_epoch);

  Engine& engine_;
  RankReads& reads_;
  SmallWrites& writes_;
  Mutex mutex_;  // not held while the engine is asked
  std::map<Place, Held> held_ STATCOLLECT_GUARDED_BY(mutex_);
  // The newest epoch of a rank when it was last read: a guess, which the next claim checks.
  std::map<Place, std::uint64_t> seen_ STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CLICKHOUSE_CLAIMS_H_
