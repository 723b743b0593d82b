#include <iostream>

#include <fmt/format.h>

#include "client/commands.h"
#include "common/names.h"

namespace statcollect::client {
namespace {

// Says what would be lost, and asks. Only "y" and "yes" are a yes.
bool Confirm(const v1::RunSummary& run) {
  std::cerr << fmt::format("Remove run '{}' ({}, {} records, started {}) with all its data? [y/N] ",
                           Printable(run.run()), run.state(), FormatCount(run.records()),
                           FormatAgo(run.start_unix_nanos(), NowUnixNanos()))
            << std::flush;
  std::string answer;
  std::getline(std::cin, answer);
  return answer == "y" || answer == "Y" || answer == "yes";
}

}  // namespace

int RemoveRun(Session& session, const std::string& run, bool yes, bool force) {
  const std::string attempted = "rm " + Printable(run);
  if (!yes) {
    if (!session.terminal().in)
      return UsageError(attempted + ": there is no terminal to ask on; add --yes to remove it unasked");
    v1::GetRunRequest question;
    question.set_run(run);
    const auto found = session.collector().GetRun(question);
    if (!found.ok()) return session.Fail(attempted, found.status());
    if (!Confirm(found->summary())) return UsageError(attempted + ": not confirmed; nothing was removed");
  }
  v1::DeleteRunRequest request;
  request.set_run(run);
  request.set_force(force);
  const auto response = session.collector().DeleteRun(request);
  if (!response.ok()) return session.Fail(attempted, response.status());
  if (session.options().format == Format::kJson) {
    session.PrintJson(*response);
  } else {
    session.Remark(fmt::format("removed run '{}': {} attempt{}, {} records", Printable(run),
                               response->attempts(), response->attempts() == 1 ? "" : "s",
                               FormatCount(response->records())));
  }
  return kExitSame;
}

}  // namespace statcollect::client
