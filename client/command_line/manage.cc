#include "client/command_line/declarations.h"
#include "client/commands/commands.h"

namespace statcollect::client {

void AddRuns(CommandSet& commands, const std::string& name) {
  const auto [app, o] =
      commands.Add<RunsOptions>(name, "Lists the runs",
                                "  statctl runs\n"
                                "  statctl runs --filter 'gpt-*' --sort start      # newest first\n"
                                "  statctl runs --state running --format json\n",
                                ListRuns);
  app->add_option("--filter", o.filter,
                  "Only runs with these names, such as 'gpt-*' (*, ?, [abc])");
  TakesOneOf(app->add_option("--sort", o.sort,
                             "By name, start (newest first), steps or records (most first)")
                 ->capture_default_str(),
             "ORDER", {"name", "start", "steps", "records"});
  TakesOneOf(app->add_option("--state", o.state,
                             "Only runs in this state: running, finished or interrupted"),
             "STATE", {"running", "finished", "interrupted"});
  app->add_flag("--twins", o.twins,
                "Also list the twins of runs (statctl twins), each below its run");
}

void AddShow(CommandSet& commands, const std::string& name) {
  const auto [app, o] = commands.Add<ShowOptions>(
      name, "Shows a run: ranks, steps, events, configuration",
      "  statctl show base\n"
      "  statctl show base --memory              # by phase of the step; --modules: what raised "
      "the peak\n"
      "  statctl show base --padding             # how much of each input is not padding\n"
      "  statctl show base --events --kind nan_first_seen,norm_explosion\n"
      "  statctl show base --events --follow     # keeps printing new ones until Ctrl-C\n"
      "  statctl show base --memory --format ort # the lines of ONNX Runtime's memory observer\n",
      Show);
  AddRunName(app, o.run);
  CLI::Option* memory = app->add_flag("--memory", o.memory, "Its memory, by phase or by module");
  CLI::Option* padding =
      app->add_flag("--padding", o.padding, "The share of each input that is not padding");
  CLI::Option* events =
      app->add_flag("--events", o.events, "Its events: alarms, lost records and more");
  padding->excludes(memory);
  events->excludes(memory)->excludes(padding);
  AddRankFilter(app, o.ranks);
  AddStepFilter(app, o.steps);
  app->add_flag("--modules", o.modules,
                "Memory by module, if watch(model, memory=\"modules\") recorded it");
  app->add_option("--top", o.top, "How many rows of memory to print")
      ->check(CLI::Range(1, 1'000'000));
  app->add_flag("--all", o.all, "Every row of memory");
  app->add_option("--input", o.input, "Only the padding of this input");
  app->add_option("--kind", o.kinds,
                  "Only events of these kinds, such as nan_first_seen,norm_explosion");
  app->add_option("--since-step", o.since_step, "Only events from this step on")
      ->check(StepNumber());
  app->add_flag("--follow,-f", o.follow, "Keep printing new events until Ctrl-C");
}

void AddRemove(CommandSet& commands, const std::string& name) {
  const auto [app, o] =
      commands.Add<RemoveOptions>(name, "Removes runs and all their data",
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

void AddPin(CommandSet& commands, const std::string& name) {
  struct PinOptions {
    std::string run;
    bool off = false;
  };
  const auto [app, o] = commands.Add<PinOptions>(
      name, "Exempts a run from retention",
      "  statctl pin base\n  statctl pin base --off     # retention may remove it again\n",
      [](Session& session, const PinOptions& o) { return KeepRun(session, o.run, !o.off); });
  AddRunName(app, o.run);
  app->add_flag("--off", o.off, "End the exemption");
}

void AddAdmin(CommandSet& commands, const std::string& name) {
  commands
      .AddGroup(name, "Copies a collector's store, and lists who changed what",
                "  statctl admin checkpoint /backup/monday\n"
                "  statctl admin audit --since 2h\n")
      ->require_subcommand(1);
}

void AddCheckpoint(CommandSet& commands, const std::string& name) {
  struct CheckpointOptions {
    std::string directory;
  };
  const auto [app, o] = commands.Add<CheckpointOptions>(
      name, "Writes a consistent copy of the store",
      "  statctl admin checkpoint /backup/monday          # the collector writes it, on its "
      "machine\n"
      "  statctl admin checkpoint monday                  # below its --checkpoint-root, if it has "
      "one\n"
      "  statcollectord --restore-from /backup/monday --data-dir /var/lib/statcollect-new\n",
      [](Session& session, const CheckpointOptions& o) {
        return MakeCheckpoint(session, o.directory);
      });
  app->add_option("directory", o.directory,
                  "Absolute path on the collector's machine, or a name below its "
                  "--checkpoint-root; must not "
                  "exist, or be an empty folder")
      ->required();
}

void AddAudit(CommandSet& commands, const std::string& name) {
  const auto [app, o] = commands.Add<AuditOptions>(
      name, "Lists refused calls, and who changed what",
      "  statctl admin audit\n"
      "  statctl admin audit --since 2h --outcome permission_denied\n"
      "  statctl admin audit --method DeleteRun --since 2026-01-31 --format csv\n",
      ListAudit);
  app->add_option("--since", o.since,
                  "Not older than this: 30min, 2h, 7d, or a UTC time 2026-01-31[T12:00[:00]]");
  app->add_option("--principal", o.principal,
                  "Only of this one, or a part of it, such as a token's id");
  app->add_option("--method", o.method, "Only of this method, or a part of it, such as DeleteRun");
  TakesOneOf(app->add_option(
                 "--outcome", o.outcome,
                 "Only these: ok, error, unauthenticated, permission_denied, invalid_argument"),
             "OUTCOME",
             {"ok", "error", "unauthenticated", "permission_denied", "invalid_argument"});
  app->add_option("--limit", o.limit, "The newest so many")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
}

void AddStatus(CommandSet& commands, const std::string& name) {
  struct StatusOptions {};
  commands.Add<StatusOptions>(
      name, "Shows the collector's health and lost records", "  statctl status\n",
      [](Session& session, const StatusOptions&) { return ShowStatus(session); });
}

}  // namespace statcollect::client
