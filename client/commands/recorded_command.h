// The command of a training, kept with its run so that it can be started again.
#ifndef STATCOLLECT_CLIENT_COMMANDS_RECORDED_COMMAND_H_
#define STATCOLLECT_CLIENT_COMMANDS_RECORDED_COMMAND_H_

#include <map>
#include <string>

#include "client/commands/training.h"
#include "common/status.h"

namespace statcollect::client {

using RunConfig = std::map<std::string, std::string>;

// The settings that a run was recorded with.
Result<RunConfig> ConfigOf(Session& session, const std::string& run);

// Settings of the run that Train adds: `recording.command`, a list in JSON, with the variables that
// the user gave it, and `recording.folder`. Empty where the command is no text or longer than
// settings are.
RunConfig CommandSettings(const Training& training);

// What was started to record the run, with its folder. kFailedPrecondition: it is not known, or
// cannot be started again; says why, and what to do.
Result<Training> RecordedTraining(const std::string& run, const RunConfig& config);

// Gives both trainings the variables that affect numbers (env.*) and differ between their runs, as
// they were recorded; all others are statctl's own. Errors as above.
Status RestoreVariables(const RunConfig& config_a, const RunConfig& config_b, Training& a,
                        Training& b);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_RECORDED_COMMAND_H_
