// Removes attempts in two parts: a small write that hides them, and the deletion of their data.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_REMOVE_ATTEMPTS_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_REMOVE_ATTEMPTS_H_

#include <functional>
#include <span>
#include <vector>

#include "common/status.h"
#include "server/store/attempt.h"
#include "server/store/live_attempts.h"
#include "server/store/rocksdb/aliases.h"
#include "server/store/rocksdb/recovery.h"

namespace statcollect {

// As Store::RetireAttempts. Called with the store's catalogue mutex held. Waits for an append under
// way.
Status HideAttempts(RecoverableDatabase& store, Aliases& aliases, LiveAttempts& live,
                    std::span<const AttemptId> ids);

// As Store::PurgeRetired; returns the attempts whose data was deleted. Called by one thread at a
// time. Takes no lock that appends or the catalogue need. Reclaimer frees their files.
Result<std::vector<AttemptId>> DeleteHidden(RecoverableDatabase& store, Aliases& aliases,
                                            const std::function<bool()>& stopped);

// Attempts that are hidden and still have data, ascending.
Result<std::vector<AttemptId>> HiddenAttempts(const Database& database);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_REMOVE_ATTEMPTS_H_
