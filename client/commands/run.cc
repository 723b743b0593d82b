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

Status Check(const RunOptions& options) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(options.run));
  if (const auto base = BaseOfTwin(options.run); !base.empty())
    return Status(
        Code::kInvalidArgument,
        fmt::format("'{}' is the name of a twin; expected that of the run, '{}', with --perturb",
                    options.run, base));
  return StepSet::Parse(options.steps).status();
}

// A program that went well would otherwise seem to be recorded.
void RemarkOnRest(Session& session, const Training& training, const Trained& trained) {
  const auto recorded = RecordedBy(session, training, trained);
  if (!recorded.ok()) return;
  const std::string why = *recorded
                              ? WhyNotAll(trained.notes, (*recorded)->ranks())
                              : "nothing was recorded: " + WhyNothing(training.command, trained);
  if (!why.empty()) session.Remark(fmt::format("statctl: run '{}': {}", RunNameOf(training), why));
}

}  // namespace

int RunTraining(Session& session, const RunOptions& options) {
  const std::string attempted = "run " + Printable(options.run);
  const Collector::Task task(
      session.collector());  // Ctrl-C is the program's: statctl ends behind it
  if (const Status fit = Check(options); !fit.ok()) return session.Fail(attempted, fit);
  const Training training{
      .run = options.run,
      .command = options.command,
      .noise = options.seed ? std::optional(Noise{.seed = *options.seed}) : std::nullopt,
      .steps = options.steps,
      .if_exists = options.if_exists,
      .instrument = options.watch == "auto"};
  const std::string run = RunNameOf(training);
  if (const Status fit = ValidateRunName(run); !fit.ok()) return session.Fail(attempted, fit);
  const auto before = FindRun(session, run);
  if (!before.ok()) return session.Fail(attempted, before.status());
  if (*before && options.if_exists == "error")
    return session.Fail(
        attempted,
        {Code::kAlreadyExists,
         fmt::format("run '{}' exists ({}, {} steps); expected a new name; choose another, or "
                     "--if-exists replace, or append to go on with it",
                     run, (*before)->state(), FormatCount((*before)->steps()))});
  // Noise of an earlier recording says nothing about a new one.
  if (*before && !training.noise && options.if_exists == "replace") {
    if (const Status removed = RemoveTwins(session, run); !removed.ok())
      return session.Fail(attempted, removed);
  }
  const auto trained = Train(session, training, ChildOutput::kAsIs);
  if (!trained.ok()) return session.Fail(attempted, trained.status());
  RemarkOnRest(session, training, *trained);
  return trained->end.code;
}

}  // namespace statcollect::client
