// Recordings of trainings that a command needs: made, or taken from last time.
#ifndef STATCOLLECT_CLIENT_COMMANDS_RECORDINGS_H_
#define STATCOLLECT_CLIENT_COMMANDS_RECORDINGS_H_

#include <string>

#include "client/commands/session.h"
#include "client/commands/training.h"
#include "common/status.h"

namespace statcollect::client {

struct Recording {
  std::string which;  // "A", in front of each remark and error
  Training training;
  bool mark = false;   // keep what it depends on, so that it can be taken again
  bool reuse = false;  // take it if that has not changed; implies mark
  bool show = false;   // the output of the training
};

// Records it and says so on standard error. Replaces a run of that name and removes its twins,
// whose noise says nothing about a new recording. Errors as Record has them.
Status Obtain(Session& session, Recording recording);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_RECORDINGS_H_
