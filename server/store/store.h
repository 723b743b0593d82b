// The collector's storage, as an interface narrow enough for a different engine: append batches
// with their watermarks in one atomic write, scan a key range in order, read a point, drop.
//
// A caller takes the part that it needs: RunReader or RecordReader (reads), DocumentStore,
// RecordWriter, FleetStore. Only who manages whole runs, or passes the store on, takes a Store.
// Thread-safe, but each part of a FleetStore has only one committer that calls Append.
#ifndef STATCOLLECT_SERVER_STORE_STORE_H_
#define STATCOLLECT_SERVER_STORE_STORE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "server/store/attempt.h"
#include "server/store/document_store.h"
#include "server/store/fleet_store.h"
#include "server/store/record_writer.h"

namespace statcollect {

struct CheckpointReport {
  std::string directory;  // the resolved path
  std::uint64_t files = 0;
  std::uint64_t bytes = 0;  // of the files
  bool linked = false;      // its tables share disk space with the store (same file system)
};

class Store : public DocumentStore, public RecordWriter, public FleetStore {
 public:
  // --- catalogue
  // Durable when it returns. Assigns id and number. `wanted.number`: the number that the caller
  // expects, 0 for none; the attempt gets it or, if others are as high, the next one. A store that
  // several collectors share returns the attempt that another one has created meanwhile under that
  // number for the same launch.
  virtual Result<AttemptMeta> CreateAttempt(const AttemptMeta& wanted) = 0;
  // Removes the attempts, durable when it returns: no list or census has them, the names of their
  // runs are free, and what belongs to a run (kept, documents) is gone with its last attempt.
  // Unknown ids are ignored. Their data stays until PurgeRetired. A small write, whatever their
  // size; on failure nothing has changed.
  virtual Status RetireAttempts(std::span<const AttemptId> ids) = 0;
  // Deletes the data of all retired attempts, also of those that an earlier process retired. Blocks
  // that other attempts share with them stay right throughout. Running scans keep their snapshot.
  // May take minutes, and makes no other call wait, except another one of itself. `stopped` is
  // called again and again without locks that other calls need; true ends it with kCancelled. After
  // a failure the next call continues.
  virtual Status PurgeRetired(const std::function<bool()>& stopped) = 0;
  // Both, for callers that can wait.
  Status DropAttempts(std::span<const AttemptId> ids) {
    STATCOLLECT_RETURN_IF_ERROR(RetireAttempts(ids));
    return PurgeRetired([] { return false; });
  }
  // Every attempt, by run and number. Reads only the catalogue's small values.
  virtual Result<std::vector<AttemptTally>> Census() = 0;
  // Exempts a run from retention, or ends the exemption; durable when it returns. The exemption
  // ends when the run's last attempt is dropped. kNotFound: no such run.
  virtual Status KeepRun(const std::string& run, bool keep) = 0;
  Result<bool> IsKept(const std::string& run) {
    STATCOLLECT_ASSIGN_OR_RETURN(const auto census, Census());
    return std::any_of(census.begin(), census.end(), [&](const AttemptTally& tally) {
      return tally.kept && tally.meta.run == run;
    });
  }

  // --- a single collector with a single engine
  Result<std::optional<RankMeta>> ClaimRank(AttemptId attempt, std::uint32_t rank) override {
    return Rank(attempt, rank);
  }
  Store& part(std::size_t /*index*/) override { return *this; }

  // --- the store itself
  // Writes a consistent copy into an absent or empty directory (absolute path, outside the store):
  // a complete store with everything that was appended before the call. It appears completely or
  // not at all. Takes as long as copying the store if the directory is on a different file system.
  // kInvalidArgument: the directory; kResourceExhausted: no space.
  virtual Result<CheckpointReport> Checkpoint(const std::string& directory) = 0;
  // The process is about to end: failing writes are given up soon instead of delaying it. Any
  // thread.
  virtual void BeginStop() {}
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_STORE_H_
