// Goldens: a run saved as a file, loaded into any collector, and the verdict of a comparison with
// one.
#ifndef STATCOLLECT_CLIENT_COMMANDS_GOLDEN_H_
#define STATCOLLECT_CLIENT_COMMANDS_GOLDEN_H_

#include <string>

#include "client/commands/session.h"
#include "common/status.h"
#include "statcollect/v1/query.pb.h"

namespace statcollect::client {

// Loads the file as a run of the collector, unless it is there already, and returns the run's name:
// that given, else one which depends on the file's bytes only. Errors name the file.
Result<std::string> LoadGolden(Session& session, const std::string& path,
                               const std::string& name = {});

// What a comparison with a golden says.
struct GoldenVerdict {
  std::string word;  // "SAME", "DRIFTED", "CHANGED", "NO ANSWER"
  std::string text;  // the rest of the sentence
};
// Asks for the configuration of both runs where the tensors differ within tolerance.
GoldenVerdict JudgeGolden(Session& session, const v1::DiffReport& report, const std::string& file);

// One test case as JUnit's XML: a failure if the run changed, an error if there was no answer.
struct JunitCase {
  std::string name, verdict, details;
  bool failed = false, error = false;
};
Status WriteJunit(const std::string& path, const JunitCase& of);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_GOLDEN_H_
