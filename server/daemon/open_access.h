// The check of tokens, with the memory that there were some.
#ifndef STATCOLLECT_SERVER_DAEMON_OPEN_ACCESS_H_
#define STATCOLLECT_SERVER_DAEMON_OPEN_ACCESS_H_

#include <memory>

#include "common/clock.h"
#include "common/status.h"
#include "server/access/access.h"
#include "server/daemon/config.h"

namespace statcollect {

// Call it when the data directory is open. The directory remembers that calls needed tokens
// (FORMAT), and so do its checkpoints: without a file of tokens, kFailedPrecondition, because
// everybody would be let in. `clock` and `audit` must outlive what is returned.
Result<std::unique_ptr<access::AccessControl>> OpenAccess(const DaemonConfig& config,
                                                          const Clock& clock,
                                                          access::AuditLog& audit);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_DAEMON_OPEN_ACCESS_H_
