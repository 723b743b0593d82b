#include <fmt/format.h>

#include "client/commands/commands.h"
#include "common/names.h"

namespace statcollect::client {

int KeepRun(Session& session, const std::string& run, bool keep) {
  v1::KeepRunRequest request;
  request.set_run(run);
  request.set_keep(keep);
  const auto response = session.collector().KeepRun(request);
  if (!response.ok()) return session.Fail("keep " + Printable(run), response.status());
  if (session.options().format == Format::kJson) {
    session.PrintJson(*response);
  } else {
    session.Remark(fmt::format("run '{}' {}", Printable(run),
                               keep ? "is exempt: retention does not remove it"
                                    : "is no longer exempt: retention may remove it"));
  }
  return kExitSame;
}

}  // namespace statcollect::client
