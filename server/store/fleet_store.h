// What a store is beyond one engine with one collector: several collectors may write to it, and
// several engines, its parts, may hold it. The defaults are those of a single one.
//
// Who: ingest, and the clock (shared_clock.h). Thread-safe.
#ifndef STATCOLLECT_SERVER_STORE_FLEET_STORE_H_
#define STATCOLLECT_SERVER_STORE_FLEET_STORE_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "common/status.h"
#include "server/store/attempt.h"

namespace statcollect {

class Store;

class FleetStore {
 public:
  virtual ~FleetStore() = default;

  // Call before continuing an existing stream here. From now on, nothing that another collector on
  // the same store is still writing for the rank counts. Returns Rank's answer, which is then
  // final; with a single collector that is all it does.
  virtual Result<std::optional<RankMeta>> ClaimRank(AttemptId attempt, std::uint32_t rank) = 0;
  // Call before a newer attempt's stream begins. What another collector on the same store still
  // writes for the rank of this older attempt is neither acknowledged nor counted. False: the
  // attempt does not have the rank. With a single collector there is nothing to do: true.
  virtual Result<bool> EndRank(AttemptId /*attempt*/, std::uint32_t /*rank*/) { return true; }
  // The clock of an engine that several collectors share, in nanoseconds since the Unix epoch,
  // exact to a second. None: the store has none.
  virtual Result<std::optional<std::int64_t>> EngineUnixNanos() {
    return std::optional<std::int64_t>();
  }

  // --- parts that fail one by one
  // A store made of several engines has a part for each: the ranks of a part can be written and
  // read while others are down. Each part has a committer of its own, which calls the part's
  // Append, Recover and Usage. The catalogue is asked for at the store itself.
  virtual std::size_t parts() const { return 1; }
  virtual std::size_t PartOf(std::uint32_t /*rank*/) const { return 0; }
  virtual Store& part(std::size_t index) = 0;  // of a store without parts: itself
  // Hellos that a part serves at the same time; the others wait.
  virtual std::size_t hellos_at_once() const { return 16; }
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_FLEET_STORE_H_
