// The part of statctl move import that sends spill files of agents.
#ifndef STATCOLLECT_CLIENT_COMMANDS_IMPORT_SPILL_H_
#define STATCOLLECT_CLIENT_COMMANDS_IMPORT_SPILL_H_

#include <string>

#include "client/commands/commands.h"

namespace statcollect::client {

// options.format is "spill", and path a spill file or a folder of them; run may be empty. Returns
// the exit code.
int ImportSpill(Session& session, const ImportOptions& options);

// Whether the path is a spill file or a ring, or a folder with one in it.
bool HoldsSpills(const std::string& path);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_IMPORT_SPILL_H_
