#include <fmt/format.h>

#include "client/commands/commands.h"
#include "common/names.h"

namespace statcollect::client {

int RecordSteps(Session& session, const std::string& run, const std::string& steps) {
  v1::RecordStepsRequest request;
  request.set_run(run);
  request.set_steps(steps);
  const auto response = session.collector().RecordSteps(request);
  if (!response.ok()) return session.Fail("record " + Printable(run), response.status());
  if (session.options().format == Format::kJson) {
    session.PrintJson(*response);
  } else {
    session.Remark(fmt::format("{} rank{} of run '{}' record{} {} from the next step on",
                               response->ranks(), response->ranks() == 1 ? "" : "s", Printable(run),
                               response->ranks() == 1 ? "s" : "",
                               steps.empty() ? "every step" : "steps " + steps));
  }
  return kExitSame;
}

}  // namespace statcollect::client
