// The ranks that this process writes; chain.h has the rules.
#ifndef STATCOLLECT_SERVER_STORE_CLICKHOUSE_CLAIMS_H_
#define STATCOLLECT_SERVER_STORE_CLICKHOUSE_CLAIMS_H_

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "common/status.h"
#include "common/thread_annotations.h"
#include "server/store/clickhouse/engine.h"
#include "server/store/clickhouse/schema.h"
#include "server/store/clickhouse/small_writes.h"
#include "server/store/store.h"

namespace statcollect {

// Threads: any; one at a time for one rank.
class Claims {
 public:
  using Place = std::pair<AttemptId, std::uint32_t>;
  Claims(Engine& engine, SmallWrites& writes) : engine_(engine), writes_(writes) {}

  // Takes the rank over, under a new epoch. kUnavailable: somebody else does so at this moment.
  Status Claim(const Place& place);
  // Takes the rank over from a writer that has not finished, and does not write it. False: the rank has no state.
  Result<bool> End(const Place& place);
  // For the rank's next batch, which ends with record `seq`. Claims the rank if this process has not.
  Result<RowStamp> NextStamp(const Place& place, std::uint64_t seq);
  // The outcome of a write is unknown: what is written next to the rank is under another epoch.
  void Forget(const Place& place);

  // After a write. kAborted: one of the ranks has been taken over by another collector, or its attempt was removed;
  // what was written may not count.
  Status Check(const std::set<Place>& places);

 private:
  struct Held {
    std::uint64_t epoch = 0, n = 0, cut = 0, parent = 0;
  };
  Status WriteState(const Place& place, const RowStamp& stamp, std::string value);

  Engine& engine_;
  SmallWrites& writes_;
  Mutex mutex_;  // not held while the engine is asked
  std::map<Place, Held> held_ STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CLICKHOUSE_CLAIMS_H_
