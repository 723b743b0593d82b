// How statctl runs a command that trains, so that it records without knowing of statcollect.
#ifndef STATCOLLECT_CLIENT_COMMANDS_TRAINING_H_
#define STATCOLLECT_CLIENT_COMMANDS_TRAINING_H_

#include <optional>
#include <string>
#include <vector>

#include "client/commands/child_process.h"
#include "client/commands/session.h"
#include "common/status.h"
#include "statcollect/v1/query.pb.h"

namespace statcollect::client {

struct Training {
  std::string run;                   // without the suffix of a twin
  std::vector<std::string> command;  // found in PATH
  std::string perturb;               // STATAGENT_PERTURB; empty: no noise
  std::string steps;                 // to record; empty: as the program has it
  std::string if_exists;             // empty: as the program has it
  std::optional<std::uint64_t> stop_after;  // so many steps
  bool instrument = true;                   // without a line: docs/run.md
  Variables environment;                    // of the user, for this training
};

// Runs it to its end, with everything that it needs to record to the session's collector. Errors of Collector::Locate and RunChild.
Result<ChildEnd> Train(Session& session, const Training& training, ChildOutput output);

// Why a command of this kind cannot be instrumented, as "python -I ignores PYTHONPATH"; empty if nothing is known.
std::string WhyNotInstrumented(const std::vector<std::string>& command);

// Nothing if there is no such run.
Result<std::optional<v1::RunSummary>> FindRun(Session& session, const std::string& run);

// "python train.py --lr 3e-4", as a shell takes it.
std::string CommandText(const std::vector<std::string>& command);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_TRAINING_H_
