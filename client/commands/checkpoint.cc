#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/render/flatten.h"
#include "common/names.h"

namespace statcollect::client {

int MakeCheckpoint(Session& session, const std::string& directory) {
  v1::CheckpointRequest request;
  request.set_directory(directory);
  const auto response = session.collector().Checkpoint(request);
  if (!response.ok()) return session.Fail("checkpoint " + Printable(directory), response.status());
  if (session.options().format == Format::kJson) {
    session.PrintJson(*response);
    return kExitSame;
  }
  if (session.options().format == Format::kCsv) {
    Flattener row(*v1::CheckpointResponse::descriptor(), {});
    row.Add(*response);
    session.PrintCsv(std::move(row).Take());
    return kExitSame;
  }
  Page page;
  page.AddSentence(fmt::format(
      "Checkpoint of {} in {} on its machine: {} files, {}{}.", session.collector().address(),
      Printable(response->directory()), FormatCount(response->files()),
      FormatBytes(response->bytes()),
      response->linked() ? ", which share disk space with the store while it keeps them" : ""));
  page.AddSentence(fmt::format("Restore it with: statcollectord --restore-from {} --data-dir NEW",
                               Printable(response->directory())));
  session.PrintPage(page);
  return kExitSame;
}

}  // namespace statcollect::client
