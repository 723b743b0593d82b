// Tiles of the heat map of two runs, for a page that zooms and pans. docs/http.md describes their
// bytes.
#ifndef STATCOLLECT_SERVER_API_HEAT_TILES_H_
#define STATCOLLECT_SERVER_API_HEAT_TILES_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "common/project.h"
#include "common/status.h"
#include "common/thread_annotations.h"
#include "server/query/query.h"
#include "statcollect/v1/query.pb.h"

namespace statcollect::api {

// Keeps the maps that were asked for last, at their finest resolution. A map is made by one diff of
// the runs; while a run is live, only the steps that were not complete are compared again, and
// everything once more when it has ended.
//
// Thread-safe. One call at a time makes a map; others for the same map wait for it, as long as they
// are not stopped.
class HeatTiles {
 public:
  static constexpr std::uint32_t kSide = 512;  // columns and rows of a tile

  // How long a map counts as new before its runs are looked at again. Of a live one, so many times
  // what making it took, by two threads as a rule: 2 % of a core.
  struct Freshness {
    std::chrono::milliseconds least{1'000}, most{60'000};
    int times = 100;
  };

  // Borrows the engine.
  explicit HeatTiles(const query::QueryEngine& engine) : HeatTiles(engine, Freshness{}) {}
  HeatTiles(const query::QueryEngine& engine, const Freshness& freshness)
      : engine_(engine), freshness_(freshness) {}

  // The bytes of one tile. Errors as for a diff; kOutOfRange: there is no such tile.
  Result<std::string> Get(const v1::GetHeatMapRequest& request, const std::stop_token& stop,
                          const std::string& project = std::string(kDefaultProject));
  // What a map of the run (named with its project) depends on, besides its records, has changed.
  void Forget(const std::string& run);

 private:
  // What tells whether a run has changed.
  struct Version {
    std::uint32_t attempts = 0;
    std::int64_t start_unix_nanos = 0;
    std::uint64_t records = 0;
    bool running = false;
    std::uint64_t settled_step = 0;
    bool IsSameLaunch(const Version& other) const {
      return attempts == other.attempts && start_unix_nanos == other.start_unix_nanos;
    }
    bool operator==(const Version&) const = default;
  };
  struct Grid {
    query::HeatMap map;
    Version a, b;
  };
  struct Entry {
    std::shared_ptr<const Grid> grid;  // null: not made yet
    std::chrono::steady_clock::time_point fresh_until{};
    std::uint64_t used = 0;    // the greatest was used last
    std::string run_a, run_b;  // with their project
    bool busy = false, stale = false;
  };
  using Key = std::string;

  Result<std::shared_ptr<const Grid>> GridOf(const Key& key, const std::string& project,
                                             const query::DiffRequest& request,
                                             const std::stop_token& stop);
  static Result<std::shared_ptr<const Grid>> Make(const query::QueryEngine& engine,
                                                  const query::DiffRequest& request,
                                                  const std::shared_ptr<const Grid>& old,
                                                  const std::stop_token& stop);
  static Result<Version> VersionOf(const query::QueryEngine& engine, const std::string& run,
                                   const std::stop_token& stop);
  void EvictLocked() STATCOLLECT_REQUIRES(mutex_);

  const query::QueryEngine& engine_;
  const Freshness freshness_;
  Mutex mutex_;  // guards everything below
  ConditionVariable made_;
  std::map<Key, Entry> entries_ STATCOLLECT_GUARDED_BY(mutex_);
  std::uint64_t uses_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
};

}  // namespace statcollect::api

#endif  // STATCOLLECT_SERVER_API_HEAT_TILES_H_
