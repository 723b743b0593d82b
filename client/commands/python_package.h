// Programs of the wheel's Python package statcollect, run in the foreground.
#ifndef STATCOLLECT_CLIENT_COMMANDS_PYTHON_PACKAGE_H_
#define STATCOLLECT_CLIENT_COMMANDS_PYTHON_PACKAGE_H_

#include <string>
#include <vector>

#include "client/commands/session.h"

namespace statcollect::client {

// Runs `python -m statcollect WORDS...` with the package beside this program, and returns its exit
// code. Its environment has the collector as STATCTL_COLLECTOR, with token, project and
// certificates, and the words end with --statctl PATH and, where it can be known, --http URL. The
// collector is in use until the program has ended, so that one of statctl's own lives as long. If
// none answers, the program starts all the same, and says so when it is asked. Nothing is imported
// from the working directory.
int RunPackage(Session& session, const std::vector<std::string>& words);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_PYTHON_PACKAGE_H_
