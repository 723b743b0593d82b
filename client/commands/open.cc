#include <chrono>
#include <iostream>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "client/commands/commands.h"
#include "client/commands/page_link.h"
#include "common/names.h"
#include "proto/json.h"

namespace statcollect::client {
namespace {

// The view that the options ask for.
Result<std::string> PathOf(const DiffOptions& options) {
  if (options.run_a.empty() && options.run_b.empty()) return std::string("/");
  if (options.run_b.empty()) {
    STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(options.run_a));
    return "/?view=run&a=" + options.run_a;
  }
  if (options.run_a.empty())
    return Status(Code::kInvalidArgument,
                  "found --run-b alone; expected --run-a, too, or only --run-a");
  const auto request = DiffRequestOf(options);
  if (!request.ok()) return request.status();
  std::string path = ComparePath(*request);
  if (path.empty())
    return Status(
        Code::kInvalidArgument,
        "--map: found a map that is too long for a link; expected a built-in map, or none");
  return path;
}

Status NoPage(const std::string& http, const std::string& collector) {
  if (http.empty())
    return {Code::kFailedPrecondition,
            "the collector serves no page; expected one that was started without --http off; "
            "restart it so"};
  return {Code::kFailedPrecondition, fmt::format("the page is at {}, which only the collector's "
                                                 "own machine reaches, and {} is another one; "
                                                 "forward both ports, ssh -L 7433:127.0.0.1:7433 "
                                                 "-L 7434:127.0.0.1:7434 HOST, and then use "
                                                 "--collector 127.0.0.1:7433",
                                                 Printable(http), Printable(collector))};
}

// A link to a run that does not exist would lead to an empty view.
Status CheckRuns(Session& session, const DiffOptions& options) {
  for (const std::string& run : {options.run_a, options.run_b}) {
    if (run.empty()) continue;
    v1::GetRunRequest question;
    question.set_run(run);
    STATCOLLECT_RETURN_IF_ERROR(session.collector().GetRun(question).status());
  }
  return Status::Ok();
}

}  // namespace

int OpenPage(Session& session, const DiffOptions& options) {
  std::string attempted = "open";
  for (const std::string& run : {options.run_a, options.run_b})
    attempted += run.empty() ? "" : " " + Printable(run);
  const auto path = PathOf(options);
  if (!path.ok()) return session.Fail(attempted, path.status());
  if (const Status known = CheckRuns(session, options); !known.ok())
    return session.Fail(attempted, known);
  const auto link = session.collector().CreateLink();
  if (!link.ok()) return session.Fail(attempted, link.status());
  const std::string origin =
      PageOrigin(link->http_address(), session.collector().address(), link->tls());
  if (origin.empty())
    return session.Fail(attempted, NoPage(link->http_address(), session.collector().address()));
  // Browsers keep what is behind # to themselves: it is in no log of a server or proxy.
  const std::string url =
      origin + *path + (link->secret().empty() ? "" : "#login=" + link->secret());
  if (session.options().format == Format::kJson) {
    const nlohmann::ordered_json json = {{"url", url},
                                         {"expires_unix_nanos", link->expires_unix_nanos()}};
    session.PrintLine(DumpJson(json));
    return kExitSame;
  }
  session.PrintLine(url);
  if (!link->secret().empty())
    session.Remark(
        "The link logs one browser in, once, within 5 minutes; the log-in lasts 12 hours.");
  if (session.collector().passing()) {
    std::cout.flush();
    session.Remark("The page is served until Ctrl-C.");
    const Collector::Task task(session.collector());
    while (session.collector().WaitUnlessCancelled(std::chrono::seconds(60))) continue;
  }
  return kExitSame;
}

}  // namespace statcollect::client
