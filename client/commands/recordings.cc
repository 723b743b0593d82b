#include "client/commands/recordings.h"

#include <fmt/format.h>

#include "client/commands/code_state.h"
#include "client/commands/commands.h"
#include "common/names.h"

namespace statcollect::client {
namespace {

constexpr char kMadeBy[] = "recording.made_by";  // what the training depends on

// Whether the run is there, complete, and was made by the same training.
Result<bool> IsThere(Session& session, const std::string& run, const std::string& made_by) {
  v1::GetRunRequest question;
  question.set_run(run);
  const auto found = session.collector().GetRun(question);
  if (found.status().code() == Code::kNotFound) return false;
  if (!found.ok()) return found.status();
  const auto setting = found->config().find(kMadeBy);
  return setting != found->config().end() && setting->second == made_by &&
         found->summary().state() == "finished";
}

Status RecordAnew(Session& session, const Recording& recording) {
  const std::string& run = recording.training.run;
  const auto fail = [&](const Status& status) {
    return Status(status.code(), fmt::format("{}: {}", recording.which, status.message()));
  };
  if (const Status removed = RemoveTwins(session, run); !removed.ok()) return fail(removed);
  STATCOLLECT_ASSIGN_OR_RETURN(const auto before, FindRun(session, run));
  session.Remark(fmt::format("{}: {}", recording.which, CommandText(recording.training.command)));
  const auto recorded = Record(session, recording.training, recording.show);
  if (!recorded.ok()) {
    STATCOLLECT_ASSIGN_OR_RETURN(const auto after, FindRun(session, run));
    if (before && after && before->start_unix_nanos() == after->start_unix_nanos())
      session.Remark(
          fmt::format("{}: '{}' is still that of an earlier training", recording.which, run));
    return fail(recorded.status());
  }
  const v1::RunSummary& summary = recorded->summary;
  session.Remark(fmt::format("{}: '{}' has {} steps, {} records, in {:.1f} s", recording.which, run,
                             FormatCount(summary.steps()), FormatCount(summary.records()),
                             recorded->seconds));
  return Status::Ok();
}

}  // namespace

Status Obtain(Session& session, Recording recording) {
  recording.training.if_exists = "replace";
  const bool here = recording.training.folder.empty();  // the code that is looked at
  if (!here || (!recording.mark && !recording.reuse)) return RecordAnew(session, recording);
  const std::string& run = recording.training.run;
  const std::string state = CodeState(recording.training, session.options().data_dir);
  const bool marked = AddSettings({{kMadeBy, state}}, recording.training.environment);
  const auto there = recording.reuse && marked ? IsThere(session, run, state) : Result<bool>(false);
  if (!there.ok()) return there.status();
  if (*there) {
    session.Remark(fmt::format(
        "{}: '{}' is as it was last time; of data, and of installed packages, nothing is known",
        recording.which, run));
    return Status::Ok();
  }
  if (recording.reuse)
    session.Remark(
        fmt::format("{}: there is no complete run '{}' of this command, environment and code{}",
                    recording.which, run,
                    marked ? " (files that git does not know are code, too)"
                           : "; STATAGENT_CONFIG is no JSON object, so none can be known"));
  return RecordAnew(session, recording);
}

}  // namespace statcollect::client
