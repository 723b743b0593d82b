// The file STORE_ID of a data directory: which store it holds, and since which restore. Format:
// "statcollect identity <id, 32 hexadecimal digits> <epoch, decimal>". In a checkpoint the epoch is
// 0: whoever opens it first, wherever it was copied to, chooses a new one.
#ifndef STATCOLLECT_SERVER_STORE_IDENTITY_FILE_H_
#define STATCOLLECT_SERVER_STORE_IDENTITY_FILE_H_

#include <string>

#include "common/records.h"
#include "common/status.h"

namespace statcollect {

// The identity of the store in the directory, which its caller has locked. Makes it, durably, if
// there is none yet, or none since a restore. A damaged file is replaced by a new identity: agents
// then treat the store as one that they have not met, which loses nothing. kUnavailable: the file
// cannot be read or written.
Result<StoreIdentity> OpenIdentityFile(const std::string& directory);
// The same store after it has lost records: the id stays, the epoch is new.
Result<StoreIdentity> RenewIdentityFile(const std::string& directory);
// Writes the file of a checkpoint of this store.
Status WriteCheckpointIdentity(const std::string& directory, const StoreIdentity& of);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_IDENTITY_FILE_H_
