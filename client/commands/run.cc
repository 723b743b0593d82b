// statctl run: records a training that does not know of statcollect.
#include <optional>
#include <string>

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/commands/training.h"
#include "common/names.h"
#include "common/step_set.h"
#include "common/twin_name.h"

namespace statcollect::client {
namespace {

// The noise as STATAGENT_PERTURB takes it, and the run's own name.
struct Recorded {
  std::string run, perturb;
};

Result<Recorded> Check(const RunOptions& options) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(options.run));
  if (const auto base = BaseOfTwin(options.run); !base.empty())
    return Status(Code::kInvalidArgument,
                  fmt::format("'{}' is the name of a twin; expected that of the run, '{}', with --perturb",
                              options.run, base));
  if (const auto steps = StepSet::Parse(options.steps); !steps.ok()) return steps.status();
  if (!options.seed) return Recorded{.run = options.run};
  Recorded twin{.run = TwinName(options.run, 1, *options.seed), .perturb = fmt::format("1,{}", *options.seed)};
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(twin.run));
  return twin;
}

// A program that went well would otherwise seem to be recorded.
void RemarkOnNothing(Session& session, const RunOptions& options, const std::string& run) {
  const std::string why = WhyNotInstrumented(options.command);
  session.Remark(fmt::format(
      "statctl: run '{}': nothing was recorded: {}; add statagent.init() and statagent.watch(model, "
      "optimizer=optimizer) to the script (docs/run.md)",
      run, why.empty() ? "no PyTorch training was seen" : why + ", so that a script has to call statagent itself"));
}

}  // namespace

int RunTraining(Session& session, const RunOptions& options) {
  const std::string attempted = "run " + Printable(options.run);
  const Collector::Task task(session.collector());  // Ctrl-C is the program's: statctl ends behind it
  const auto recorded = Check(options);
  if (!recorded.ok()) return session.Fail(attempted, recorded.status());
  const auto before = FindRun(session, recorded->run);
  if (!before.ok()) return session.Fail(attempted, before.status());
  if (*before && options.if_exists == "error")
    return session.Fail(attempted,
                        {Code::kAlreadyExists,
                         fmt::format("run '{}' exists, with {} steps; expected a new name; choose another, or "
                                     "--if-exists replace, or append to go on with it",
                                     recorded->run, FormatCount((*before)->steps()))});
  const auto end = Train(session,
                         {.run = options.run,
                          .command = options.command,
                          .perturb = recorded->perturb,
                          .steps = options.steps,
                          .if_exists = options.if_exists,
                          .instrument = options.watch == "auto"},
                         ChildOutput::kAsIs);
  if (!end.ok()) return session.Fail(attempted, end.status());
  const auto after = FindRun(session, recorded->run);
  if (after.ok() && !*after) RemarkOnNothing(session, options, recorded->run);
  return end->code;
}

}  // namespace statcollect::client
