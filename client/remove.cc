#include <iostream>

#include <fmt/format.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include "client/commands.h"
#include "common/names.h"

namespace statcollect::client {
namespace {

bool Confirm(const std::string& run) {
  std::cerr << "Remove run '" << Printable(run) << "' with all its data? Type its name: " << std::flush;
  std::string answer;
  return std::getline(std::cin, answer) && answer == run;
}

}  // namespace

int RemoveRun(Session& session, const std::string& run, bool yes, bool force) {
  if (!yes) {
    if (!session.terminal().in) {
      return UsageError("rm " + Printable(run) +
                        ": there is no terminal to ask; add --yes to remove it without a question");
    }
    if (!Confirm(run)) return UsageError("rm " + Printable(run) + ": not confirmed; nothing was removed");
  }
  v1::DeleteRunRequest request;
  request.set_run(run);
  request.set_force(force);
  grpc::ClientContext context;
  session.Prepare(context);
  v1::DeleteRunResponse response;
  const grpc::Status status = session.admin().DeleteRun(&context, request, &response);
  if (!status.ok()) return session.Fail("rm " + Printable(run), status);
  if (session.json()) {
    session.PrintJson(response);
  } else if (!session.options().quiet) {
    std::cout << fmt::format("removed {}: {} attempt(s), {} records\n", Printable(run), response.attempts(),
                             FormatCount(response.records()));
  }
  return kExitSame;
}

}  // namespace statcollect::client
