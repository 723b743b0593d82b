// How statctl runs a command that trains, so that it records without knowing of statcollect.
#ifndef STATCOLLECT_CLIENT_COMMANDS_TRAINING_H_
#define STATCOLLECT_CLIENT_COMMANDS_TRAINING_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/commands/child_process.h"
#include "client/commands/session.h"
#include "client/commands/training_notes.h"
#include "common/status.h"
#include "statcollect/v1/query.pb.h"

namespace statcollect::client {

// Of a twin: up to so many units in the last place.
struct Noise {
  std::uint64_t ulps = 1, seed = 1;
  bool once = false;  // in the loaded weights only
};

struct Training {
  std::string run;                          // without the suffix of a twin
  std::vector<std::string> command;         // found in PATH
  std::string folder;                       // in which it runs; empty: statctl's own
  std::optional<Noise> noise;               // a twin
  std::string steps;                        // to record; empty: as the program has it
  std::string if_exists;                    // empty: as the program has it
  std::optional<std::uint64_t> stop_after;  // so many steps
  bool instrument = true;                   // without a line: docs/run.md
  Variables environment;                    // of the user, for this training
};

struct Trained {
  ChildEnd end;
  TrainingNotes notes;
  std::optional<v1::RunSummary> before;  // the run, as an earlier command has left it
};
// Runs it to its end, with everything that it needs to record to the session's collector. kKept: a
// line says how far it is, if standard error is a terminal. kFailedPrecondition: the collector
// takes no records; errors of Collector::Locate and RunChild.
Result<Trained> Train(Session& session, const Training& training, ChildOutput output);

// The run as it is now; nothing if the command has recorded none of it: what an earlier one has
// left is not this one's.
Result<std::optional<v1::RunSummary>> RecordedBy(Session& session, const Training& training,
                                                 const Trained& trained);

// The name under which it is stored: that of a twin, if there is noise.
std::string RunNameOf(const Training& training);

struct Recorded {
  v1::RunSummary summary;
  double seconds = 0;
};
// Runs it as Train does. `show`: its output goes to standard error, else a line there says how far
// it is. kUnknown: it ended with an exit code, whose output has been shown; kNotFound: it recorded
// nothing; kCancelled.
Result<Recorded> Record(Session& session, const Training& training, bool show);

// Adds settings of the run to those that the user gives in STATAGENT_CONFIG. False if these cannot
// be read: nothing is added, and the agent says why.
bool AddSettings(const std::map<std::string, std::string>& settings, Variables& environment);

// Why a command that has ended recorded nothing, and what to do.
std::string WhyNothing(const std::vector<std::string>& command, const Trained& trained);
// That processes have trained as the same rank, of which one is recorded; empty if none have.
// `ranks`: of the run.
std::string WhyNotAll(const TrainingNotes& notes, std::uint32_t ranks);

// Nothing if there is no such run.
Result<std::optional<v1::RunSummary>> FindRun(Session& session, const std::string& run);

// "python train.py --lr 3e-4", as a shell takes it.
std::string CommandText(const std::vector<std::string>& command);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_TRAINING_H_
