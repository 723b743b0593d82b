// What a training depends on beside its data: whether a recording of it is still valid.
#ifndef STATCOLLECT_CLIENT_COMMANDS_CODE_STATE_H_
#define STATCOLLECT_CLIENT_COMMANDS_CODE_STATE_H_

#include <string>

#include "client/commands/training.h"

namespace statcollect::client {

// A fingerprint, as 64 hexadecimal digits, of the training's command, options and environment, of
// the working directory, and of the code: the commit, the differences from it and the files that
// git does not know, but for the data folder; and the Python files below the working directory and
// below the folders of the scripts that the command names (of 20,000 entries of a folder each).
// Cost: git status, and reading what it lists. Data sets and installed packages are not part of it.
std::string CodeState(const Training& training, const std::string& data_folder);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_CODE_STATE_H_
