// Removes attempts with all their data.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_DROP_ATTEMPTS_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_DROP_ATTEMPTS_H_

#include <span>

#include "common/status.h"
#include "server/store/live_attempts.h"
#include "server/store/rocksdb/aliases.h"
#include "server/store/rocksdb/recovery.h"
#include "server/store/store.h"

namespace statcollect {

// Durable when it returns; unknown ids are ignored. Called with the store's catalogue mutex held. If it fails
// before anything was removed, the attempts are unchanged. Reclaimer frees their files.
Status RemoveAttempts(RecoverableDatabase& store, Aliases& aliases, LiveAttempts& live,
                      std::span<const AttemptId> ids);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_DROP_ATTEMPTS_H_
