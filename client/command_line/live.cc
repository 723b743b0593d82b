#include "client/command_line/declarations.h"
#include "client/commands/commands.h"
#include "client/commands/selection.h"

namespace statcollect::client {
namespace {

// The options that say which tensor of its name is meant.
void AddPlace(CLI::App* app, CapturePlace& place) {
  app->add_option("activation", place.activation, "Name of the activation, as diff prints it")
      ->required();
  app->add_option("--step", place.step, "The step")->required()->check(StepNumber());
  TakesParsed(app->add_option("--kind", place.kind,
                              "Its kind, such as grad_output (default: output, inspect, weight or "
                              "batch, whichever exists)"),
              "KIND", ParseOneKind);
  app->add_option("--path", place.output_path,
                  "Its position in a nested output, such as 0 (default: all)");
  app->add_option("--micro-batch", place.micro_batch, "Its micro-batch")
      ->check(Index())
      ->capture_default_str();
  app->add_option("--call", place.call, "Which call of the module in the micro-batch")
      ->check(Index())
      ->capture_default_str();
  TakesParsed(app->add_option("--mode", place.mode, "train, eval or init (default: train)"), "MODE",
              ParseCaptureMode);
}

}  // namespace

void AddSetSteps(CommandSet& commands, const std::string& name) {
  struct StepsOptions {
    std::string run, steps;
  };
  const auto [app, o] = commands.Add<StepsOptions>(
      name, "Changes which steps a live run records",
      "  statctl set-steps base --step 5000-5010     # record some future steps in full\n"
      "  statctl set-steps base --step every=100\n  statctl set-steps base --step ''             # "
      "every "
      "step again\n",
      [](Session& session, const StepsOptions& o) { return RecordSteps(session, o.run, o.steps); });
  AddRunName(app, o.run);
  app->add_option("--step,--steps", o.steps,
                  "Steps, such as 0-9,20,100- or every=10; empty: every step")
      ->required();
}

void AddEvents(CommandSet& commands, const std::string& name) {
  const auto [app, o] = commands.Add<EventsOptions>(
      name, "Lists events: alarms, lost records and more",
      "  statctl show base --events\n"
      "  statctl show base --events --kind nan_first_seen,norm_explosion --since-step 1000\n"
      "  statctl show base --events --follow                  # keeps printing new ones until "
      "Ctrl-C\n"
      "  statctl show base --events --follow --format json | jq .text\n",
      Events);
  app->add_option("run", o.run, "Name of the run; with --follow it need not exist yet")->required();
  AddRankFilter(app, o.ranks);
  app->add_option("--kind", o.kinds,
                  "Only these kinds, separated by commas, such as nan_first_seen");
  app->add_option("--since-step", o.since_step, "Only from this step on")->check(StepNumber());
  app->add_flag("--follow,-f", o.follow, "Keep printing new events until Ctrl-C");
}

void AddWatch(CommandSet& commands, const std::string& name) {
  const auto [app, o] = commands.Add<WatchOptions>(
      name, "Follows a live run: steps, ranks, loss, alarms",
      "  statctl watch base\n"
      "  statctl watch ort --against base     # does it still agree with base?\n"
      "  statctl watch base --once            # prints once; for scripts, with --format json\n"
      "  statctl watch base --interval 10 >> base.log\n",
      Watch);
  app->add_option("run", o.run, "Name of the run; it need not exist yet")->required();
  app->add_option("--interval", o.interval_seconds, "Seconds between updates")
      ->check(Between(0.1, 86'400))
      ->capture_default_str();
  app->add_flag("--once", o.once, "Print once, then exit");
  app->add_option("--against", o.against,
                  "Compare every step that both runs have completed, as diff does");
}

void AddValues(CommandSet& commands, const std::string& name) {
  commands
      .AddGroup(name, "Raw values of tensors, saved from a live run",
                "  statctl values get base blocks.1.ln2 --step 5000     # asks the run in training "
                "for them\n"
                "  statctl values list base\n"
                "  statctl values diff base ort blocks.1.ln2 --step 3   # element by element\n")
      ->require_subcommand(1);
}

void AddValuesGet(CommandSet& commands, const std::string& name) {
  const auto [app, o] = commands.Add<CaptureOptions>(
      name, "Saves raw values of a tensor from a live run",
      "  statctl values get base blocks.1.ln2 --step 5000                      # waits for it\n"
      "  statctl values get base blocks.1.ln2 --step 5000 --rank 0 --out ln2.npy\n"
      "  statctl values get base lm_head --step 5000 --kind grad_output --no-wait\n"
      "  statctl values get base blocks.1.ln2 --step 5000 --out captured/      # a file for each "
      "rank\n"
      "\nA step that has passed cannot be captured. To capture from the start, launch with\n"
      "STATAGENT_CAPTURES='blocks.1.ln2@3'. Values already stored are not requested again.\n"
      "docs/capture.md\n",
      CaptureActivation);
  AddRunName(app, o.run);
  AddPlace(app, o.place);
  AddRankFilter(app, o.ranks);
  app->add_option(
      "--max-bytes", o.bytes_max,
      "Keep only the first elements of larger tensors (default: 16 MiB; at most 64 MiB)");
  app->add_option("--wait", o.wait_seconds, "Seconds to wait for the values; 0: no limit")
      ->check(Between(0, kTimeoutSecondsMax))
      ->capture_default_str();
  app->add_flag("--no-wait", o.no_wait, "Send the request and return");
  app->add_option("--out", o.out, "Save as .npy: a file, or a folder for several");
  app->add_flag("--raw", o.raw, "--out: write bfloat16 and float8 as raw bits, not as float32");
  app->add_flag("--overwrite", o.overwrite, "--out: replace the file");
}

void AddValuesList(CommandSet& commands, const std::string& name) {
  const auto [app, o] = commands.Add<CapturesOptions>(
      name, "Lists captured tensors and pending requests",
      "  statctl values list base\n  statctl values list base blocks.1.ln2 --step 5000-\n",
      ListCaptures);
  AddRunName(app, o.run);
  app->add_option("activation", o.activation, "Only this activation");
  AddRankFilter(app, o.ranks);
  AddStepFilter(app, o.steps);
  AddKindFilter(app, o.kinds, "output,grad_output");
}

void AddValuesDiff(CommandSet& commands, const std::string& name) {
  const auto [app, o] = commands.Add<DiffValuesOptions>(
      name, "Compares a captured tensor element by element",
      "  statctl values diff base ort blocks.1.ln2 --step 3          # exit code: 0 "
      "equal bit for bit, 1 different\n"
      "  statctl values diff base ort blocks.1.ln2 --step 3 --rank 1 --format json\n",
      DiffValues);
  app->add_option("run_a", o.run_a, "The baseline run")->required();
  app->add_option("run_b", o.run_b, "The run to compare with it")->required();
  AddPlace(app, o.place);
  app->add_option("--rank", o.rank, "The rank")->check(Index())->capture_default_str();
  app->add_option("--rank-b", o.rank_b, "The rank in run B, if different (diff --merge-ranks)")
      ->check(Index());
  app->add_option("--activation-b", o.activation_b, "Its name in run B, if different");
}

}  // namespace statcollect::client
