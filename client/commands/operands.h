// Files and folders in the place of runs: dumps of other tools, spill files, goldens.
#ifndef STATCOLLECT_CLIENT_COMMANDS_OPERANDS_H_
#define STATCOLLECT_CLIENT_COMMANDS_OPERANDS_H_

#include <functional>

#include "client/commands/commands.h"
#include "client/commands/session.h"

namespace statcollect::client {

// Whether a run to compare is a path: it has a "/", or ends as the files of goldens and spills do.
bool IsPath(const std::string& operand);

bool IsGoldenFile(const std::string& operand);

// Loads both operands, files or folders, into a collector of its own in a temporary folder, and
// calls `compare` with a session on that and the names of the runs. Nothing is left behind, and the
// files stay as they are. Returns the code of `compare`, or kExitNoAnswer with a message.
int WithFiles(Session& session, const DiffOptions& options,
              const std::function<int(Session&, const DiffOptions&)>& compare);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_OPERANDS_H_
