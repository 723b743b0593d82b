// Stores blocks of equal content once; the others, in any run of the project, are aliases. They
// never cross projects: digests can be forged, and who writes a block must not learn from its size
// or time what others have.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_ALIASES_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_ALIASES_H_

#include <functional>
#include <optional>
#include <set>
#include <shared_mutex>
#include <span>
#include <utility>

#include <rocksdb/write_batch.h>

#include "common/status.h"
#include "common/thread_annotations.h"
#include "server/store/block_digest.h"
#include "server/store/codec/stat_encoder.h"
#include "server/store/key.h"
#include "server/store/live_attempts.h"
#include "server/store/rocksdb/recovery.h"

namespace statcollect {

// Invariant: the catalogue names every attempt (user) with aliases of blocks of a different one
// (owner), so that they are found when the owner is removed.
//
// Threads: any may call FindTwin. Put is called by one thread at a time, with the lock of
// HoldTargets held until the batch is written. RetireTargets is called by one thread at a time, and
// so is TakeOver, for attempts that are no targets any more; neither waits for the other.
class Aliases {
 public:
  // Borrows both.
  Aliases(RecoverableDatabase& database, LiveAttempts& live) : database_(database), live_(live) {}

  // An existing block of equal content that a new one of `user` may alias.
  std::optional<StatKey> FindTwin(const BlockDigest& digest, AttemptId user);

  // While the lock is held, no attempt ceases to be a target of aliases.
  std::shared_lock<std::shared_mutex> HoldTargets() { return std::shared_lock(targets_mutex_); }
  // Adds a block of `user` to the batch: as an alias if it has a twin that still exists, otherwise
  // in full. `pairs`: receives the owner and user of a new alias whose entry is in the batch.
  using Pairs = std::set<std::pair<AttemptId, AttemptId>>;
  void Put(const Database& database, rocksdb::WriteBatch& batch, const EncodedStatBlock& block,
           AttemptId user, Pairs* pairs);
  // The batch with the entries of these pairs has been written.
  void Note(const Pairs& pairs);

  // After it returns, no block becomes an alias of these attempts. Waits for HoldTargets.
  void RetireTargets(std::span<const AttemptId> ids);
  // Blocks of remaining attempts that are aliases of blocks of removed ones get their own content,
  // durably. A block that cannot be read is logged and skipped: reading it fails before and after.
  // `stopped` is checked at each block: kCancelled. kUnavailable: the database is to be opened
  // again. Both: what was done stays, and the next call continues.
  Status TakeOver(const Database& database, std::span<const AttemptId> going,
                  const std::function<bool()>& stopped);

  // The database has been opened again: nothing noted before is known to be written.
  void Forget();

 private:
  void PutPair(const Database& database, rocksdb::WriteBatch& batch, AttemptId owner,
               AttemptId user, Pairs* pairs);
  Status TakeOverFrom(const Database& database, AttemptId owner, AttemptId user,
                      const std::function<bool()>& stopped);

  RecoverableDatabase& database_;
  LiveAttempts& live_;
  // Held shared while a batch that may have aliases is written, and exclusively while attempts
  // cease to be targets.
  std::shared_mutex targets_mutex_;
  Mutex noted_mutex_;
  // Owner and user of aliases known to be in the catalogue.
  Pairs noted_ STATCOLLECT_GUARDED_BY(noted_mutex_);
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_ALIASES_H_
