#include "client/commands/list_options.h"

namespace statcollect::client {

void AddOptions(CLI::App& app, RunsOptions& options) {
  app.add_option("--filter", options.filter, "Only runs with these names, such as 'gpt-*' (*, ?, [abc])");
  app.add_option("--sort", options.sort, "By name, start (newest first), steps or records (most first)")
      ->check(CLI::IsMember({"name", "start", "steps", "records"}))
      ->capture_default_str();
  app.add_option("--state", options.state, "Only runs in this state, such as running");
}

void AddOptions(CLI::App& app, RemoveOptions& options) {
  app.add_option("run", options.runs, "Names of runs, or patterns such as 'try-*'")->required();
  app.add_flag("--yes,-y", options.yes, "Do not ask for confirmation");
  app.add_flag("--force", options.force,
               "Remove it even while it is being written; its streams are ended first");
}

void AddOptions(CLI::App& app, ScalarsOptions& options) {
  app.add_option("run", options.run, "Name of the run")->required();
  app.add_option("--against", options.against, "Compare with this run");
  app.add_option("--name", options.name, "Only this scalar");
  app.add_option("--rank", options.ranks, "Only these ranks");
  app.add_option("--steps", options.steps, "Only these steps");
}

void AddOptions(CLI::App& app, MemoryOptions& options) {
  app.add_option("run", options.run, "Name of the run")->required();
  app.add_option("--rank", options.ranks, "Only these ranks, such as 0,2-3");
  app.add_option("--steps,--step", options.steps, "Only these steps, such as 0-9,20");
  app.add_flag("--modules", options.modules, "By module instead of by phase");
  app.add_option("--top", options.top, "Rows of the table")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_flag("--all", options.all, "Every row");
}

}  // namespace statcollect::client
