#include "client/command_line/declarations.h"
#include "client/commands/commands.h"

namespace statcollect::client {

void AddRuns(CommandSet& commands) {
  const auto [app, o] =
      commands.Add<RunsOptions>("runs", "Lists the runs",
                                "  statctl runs\n"
                                "  statctl runs --filter 'gpt-*' --sort start      # newest first\n"
                                "  statctl runs --state running --format json\n",
                                ListRuns);
  app->add_option("--filter", o.filter, "Only runs with these names, such as 'gpt-*' (*, ?, [abc])");
  TakesOneOf(app->add_option("--sort", o.sort, "By name, start (newest first), steps or records (most first)")
                 ->capture_default_str(),
             "ORDER", {"name", "start", "steps", "records"});
  TakesOneOf(app->add_option("--state", o.state, "Only runs in this state: running, finished or interrupted"),
             "STATE", {"running", "finished", "interrupted"});
  app->add_flag("--twins", o.twins, "Also list the twins of runs (statctl twins), each below its run");
}

void AddShow(CommandSet& commands) {
  struct ShowOptions {
    std::string run;
  };
  const auto [app, o] = commands.Add<ShowOptions>(
      "show", "Shows one run: ranks, steps, events, configuration", "  statctl show base\n",
      [](Session& session, const ShowOptions& o) { return ShowRun(session, o.run); });
  AddRunName(app, o.run);
}

void AddRemove(CommandSet& commands) {
  const auto [app, o] =
      commands.Add<RemoveOptions>("rm", "Removes runs and all their data",
                                  "  statctl rm old-run\n"
                                  "  statctl rm old-run 'try-*'          # lists them and asks\n"
                                  "  statctl rm 'try-*' --yes            # from a script\n"
                                  "  statctl rm base --twins             # with all its twins\n",
                                  RemoveRuns);
  app->add_option("run", o.runs, "Names of runs, or patterns such as 'try-*'")->required();
  app->add_flag("--yes,-y", o.yes, "Do not ask for confirmation");
  app->add_flag("--force", o.force,
                "Remove runs even while they are being written; their streams are ended first");
  app->add_flag("--twins", o.twins, "Remove their twins (statctl twins), too");
}

void AddKeep(CommandSet& commands) {
  struct KeepOptions {
    std::string run;
    bool off = false;
  };
  const auto [app, o] = commands.Add<KeepOptions>(
      "keep", "Exempts a run from retention",
      "  statctl keep base\n  statctl keep base --off     # retention may remove it again\n",
      [](Session& session, const KeepOptions& o) { return KeepRun(session, o.run, !o.off); });
  AddRunName(app, o.run);
  app->add_flag("--off", o.off, "End the exemption");
}

void AddCheckpoint(CommandSet& commands) {
  struct CheckpointOptions {
    std::string directory;
  };
  const auto [app, o] = commands.Add<CheckpointOptions>(
      "checkpoint", "Writes a consistent copy of the store",
      "  statctl checkpoint /backup/monday          # the collector writes it, on its machine\n"
      "  statctl checkpoint monday                  # below its --checkpoint-root, if it has one\n"
      "  statcollectord --restore-from /backup/monday --data-dir /var/lib/statcollect-new\n",
      [](Session& session, const CheckpointOptions& o) { return MakeCheckpoint(session, o.directory); });
  app->add_option("directory", o.directory,
                  "Absolute path on the collector's machine, or a name below its --checkpoint-root; must not "
                  "exist, or be an empty folder")
      ->required();
}

void AddAudit(CommandSet& commands) {
  const auto [app, o] =
      commands.Add<AuditOptions>("audit", "Lists refused calls, and who changed what",
                                 "  statctl audit\n"
                                 "  statctl audit --since 2h --outcome permission_denied\n"
                                 "  statctl audit --method DeleteRun --since 2026-01-31 --format csv\n",
                                 ListAudit);
  app->add_option("--since", o.since,
                  "Not older than this: 30min, 2h, 7d, or a UTC time 2026-01-31[T12:00[:00]]");
  app->add_option("--principal", o.principal, "Only of this one, or a part of it, such as a token's id");
  app->add_option("--method", o.method, "Only of this method, or a part of it, such as DeleteRun");
  TakesOneOf(app->add_option("--outcome", o.outcome,
                             "Only these: ok, error, unauthenticated, permission_denied, invalid_argument"),
             "OUTCOME", {"ok", "error", "unauthenticated", "permission_denied", "invalid_argument"});
  app->add_option("--limit", o.limit, "The newest so many")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
}

void AddStatus(CommandSet& commands) {
  struct StatusOptions {};
  commands.Add<StatusOptions>("status", "Shows the collector's health and lost records", "  statctl status\n",
                              [](Session& session, const StatusOptions&) { return ShowStatus(session); });
}

}  // namespace statcollect::client
