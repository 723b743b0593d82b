// What a training depends on beside its data: whether a recording of it is still valid.
#ifndef STATCOLLECT_CLIENT_COMMANDS_CODE_STATE_H_
#define STATCOLLECT_CLIENT_COMMANDS_CODE_STATE_H_

#include <string>

#include "client/commands/training.h"

namespace statcollect::client {

// A fingerprint, as 64 hexadecimal digits, of the training's command, options and environment, of
// the working directory, and of the code: the commit, the differences from it and the files that
// git does not know, but for the data folder. Outside of git: of the files that the command names.
// Cost: git status, and reading what it lists. Data sets are not part of it.
std::string CodeState(const Training& training, const std::string& data_folder);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_CODE_STATE_H_
