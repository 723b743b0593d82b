// statctl: the command line of statcollect. Parses the arguments and calls the command.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "client/commands/commands.h"
#include "client/commands/list_options.h"
#include "common/edit_distance.h"
#include "common/names.h"
#include "common/parse.h"

namespace statcollect::client {
namespace {

constexpr char kDescription[] = "statctl: finds the first place where two training runs diverge.";

constexpr char kFooter[] = R"(
Examples:
  statctl runs
  statctl diff --run-a base --run-b ort
  statctl help diff

Exit codes: 0 success (diff: the same within tolerance), 1 diverged, 2 no answer
(unknown run, unreachable, incomparable, wrong usage), 130 interrupted.)";

constexpr char kGlobalHelp[] =
    "\nGlobal options, before or after the command: --collector HOST:PORT, --format, --timeout, --quiet.";

const std::map<std::string, Format> kFormats = {{"table", Format::kTable},
                                                {"json", Format::kJson},
                                                {"csv", Format::kCsv},
                                                {"markdown", Format::kMarkdown},
                                                {"ort", Format::kOrt}};
// Commands that can print the text of ONNX Runtime's tools.
const std::set<std::string> kOrtCommands = {"memory", "density"};

struct Arguments {
  std::string collector = "127.0.0.1:7433", format = "table";
  double timeout_seconds = 0;
  bool quiet = false;
  DiffOptions diff;
  ExportOptions exports;
  SummaryOptions summary;
  SeriesOptions series;
  ScalarsOptions scalars;
  MemoryOptions memory;
  DensityOptions density;
  ExponentsOptions exponents;
  TopOptions top;
  ConfigOptions config;
  RanksOptions check;
  EventsOptions events;
  WatchOptions watch;
  CaptureOptions capture;
  CapturesOptions captures;
  DiffValuesOptions values;
  std::string run, ranks, steps, directory, help_of, repeats;
  RunsOptions runs;
  RemoveOptions remove;
  bool off = false;
};

constexpr double kTimeoutSecondsMax = 1e6;
constexpr double kToleranceMax = 1e300;

// A number, and no NaN, which CLI::Range lets through.
CLI::Validator Between(double low, double high) {
  const auto check = [low, high](const std::string& text) {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && value >= low && value <= high) return std::string();
    return fmt::format("expected a number from {:g} to {:g}, found '{}'", low, high, text);
  };
  return CLI::Validator(check, "NUMBER");
}

// A whole number from 0, such as a step: CLI11 takes -1 for the largest one.
CLI::Validator Whole(std::uint64_t high) {
  const auto check = [high](const std::string& text) {
    return ParseNumberIn<std::uint64_t>(text, 0, high).status().message();  // empty: it is one
  };
  return CLI::Validator(check, "NUMBER");
}
CLI::Validator StepNumber() { return Whole(std::numeric_limits<std::int64_t>::max()); }
CLI::Validator Index() {
  return Whole(std::numeric_limits<std::uint32_t>::max());
}  // a rank, micro-batch or call

using Command = std::function<int(Session&)>;

class Parser {
 public:
  Parser() : app_(kDescription, "statctl") {
    app_.footer(kFooter);
    app_.set_version_flag("--version", "statctl " STATCOLLECT_VERSION, "Print the version and exit");
    app_.fallthrough();
    app_.require_subcommand(0, 1);
    AddGlobals();
    AddDiff();
    AddExport();
    AddSummary();
    AddNoise();
    AddRuns();
    AddSeries();
    AddTop();
    AddConfig();
    AddRanks();
    AddCapture();
    AddOthers();
    AddImport();
  }

  // The exit code, if there is nothing to run: help, version, an error.
  std::optional<int> Parse(int argc, const char* const* argv) {
    try {
      app_.parse(argc, argv);
    } catch (const CLI::Success& asked) {
      std::ostringstream out, err;
      app_.exit(asked, out, err);
      std::cout << out.str();
      return kExitSame;
    } catch (const CLI::ParseError& error) {
      const auto used = app_.get_subcommands();
      if (const std::string unknown = UnknownCommand(); !unknown.empty()) return UsageError(unknown);
      return UsageError(Printable(error.what(), 1000) + "; see statctl help" +
                        (used.empty() ? "" : " " + used.front()->get_name()));
    }
    if (app_.get_subcommands().empty()) {
      std::cerr << app_.help();
      return kExitNoAnswer;
    }
    if (WantsHelp()) return Help();
    if (arguments_.format == "ort" && !kOrtCommands.contains(app_.get_subcommands().front()->get_name()))
      return UsageError(
          "--format ort: only memory and density can be printed that way; expected table, json, csv or "
          "markdown");
    if (const Status address = ValidateAddress(arguments_.collector); !address.ok()) {
      return UsageError(address.message());
    }
    return std::nullopt;
  }

  int Run(Session& session) {
    const CLI::App* command = app_.get_subcommands().front();
    if (!command->get_subcommands().empty()) command = command->get_subcommands().front();
    return commands_.at(command)(session);
  }
  GlobalOptions global() const {
    return {.format = kFormats.at(arguments_.format), .quiet = arguments_.quiet};
  }
  CollectorOptions collector() const {
    return {
        .address = arguments_.collector,
        .timeout = std::chrono::milliseconds(static_cast<std::int64_t>(arguments_.timeout_seconds * 1000))};
  }

 private:
  bool WantsHelp() const { return app_.get_subcommands().front()->get_name() == "help"; }
  static std::string NoCommand(const std::string& word, const CLI::App& parent, const std::string& before) {
    std::vector<std::string> names;
    for (const CLI::App* command : parent.get_subcommands([](const CLI::App*) { return true; }))
      names.push_back(command->get_name());
    const std::string nearest = NearestName(word, names);
    return fmt::format("no command '{}{}'{}; statctl help {}lists all", before, Printable(word, 100),
                       nearest.empty() ? "" : fmt::format(" (did you mean '{}{}'?)", before, nearest),
                       before);
  }
  // What to say if the first word that was left over stands where a command is expected; empty if none does.
  std::string UnknownCommand() const {
    const auto used = app_.get_subcommands();
    const CLI::App& parent = used.empty() ? app_ : *used.front();
    const auto extras = app_.remaining(true);
    const auto word =
        std::find_if(extras.begin(), extras.end(), [](const auto& extra) { return !extra.starts_with("-"); });
    const bool takes_command = used.empty() || used.front()->get_require_subcommand_min() > 0;
    if (!takes_command || !parent.get_subcommands().empty() || word == extras.end()) return {};
    return NoCommand(*word, parent, used.empty() ? "" : parent.get_name() + " ");
  }
  // App::help would be about the command that was used.
  std::string TopHelp() const {
    return app_.get_formatter()->make_help(&app_, app_.get_name(), CLI::AppFormatMode::Normal);
  }
  int Help() {
    if (arguments_.help_of.empty()) {
      std::cout << TopHelp();
      return kExitSame;
    }
    const auto found =
        app_.get_subcommands([&](CLI::App* command) { return command->get_name() == arguments_.help_of; });
    if (found.empty()) return UsageError("help: " + NoCommand(arguments_.help_of, app_, ""));
    std::cout << found.front()->help("statctl");
    return kExitSame;
  }

  void AddGlobals() {
    app_.add_option("--collector", arguments_.collector, "Collector's gRPC address, HOST:PORT")
        ->envname("STATCTL_COLLECTOR")
        ->capture_default_str();
    app_.add_option("--format", arguments_.format, "Output format (ort: memory and density only)")
        ->check(CLI::IsMember({"table", "json", "csv", "markdown", "ort"}))
        ->capture_default_str();
    app_.add_option("--timeout", arguments_.timeout_seconds, "Seconds to wait for an answer (0: no limit)")
        ->check(Between(0, kTimeoutSecondsMax))
        ->capture_default_str();
    app_.add_flag("--quiet,-q", arguments_.quiet, "No progress bar or remarks; diff: verdict only");
  }

  CLI::App* Add(const std::string& name, const std::string& description, const std::string& examples,
                Command command) {
    CLI::App* app = app_.add_subcommand(name, description);
    app->footer("\nExamples:\n" + examples + kGlobalHelp);
    commands_[app] = std::move(command);
    return app;
  }

  void AddExport() {
    ExportOptions& o = arguments_.exports;
    CLI::App* app =
        Add("export", "Exports a run as csv, parquet, tensorboard, ...",
            "  statctl export csv base base.csv                    # one line per tensor and step\n"
            "  statctl export json base - | gzip > base.jsonl.gz   # everything, one object per line\n"
            "  statctl export ort base dump/base --steps 0-9       # step_<k>/<name>_forward and _backward\n"
            "  statctl export parquet base base.parquet --sketch\n"
            "  statctl export tensorboard base logs/base --stat l2,max\n",
            [&o](Session& session) { return Export(session, o); });
    app->add_option("to", o.format, "csv, json, ort, parquet or tensorboard")->required();
    app->add_option("run", o.run, "Name of the run")->required();
    app->add_option("path", o.path,
                    "File (csv, json, parquet) or folder to make; '-': standard output (csv, json)")
        ->required();
    app->add_option("--ranks,--rank", o.ranks, "Only these ranks, such as 0,2-3");
    app->add_option("--steps", o.steps, "Only these steps, such as 0-9,20,100- or every=10");
    app->add_option("--kinds", o.kinds,
                    "Only tensors of these kinds, such as output,grad_output; no scalars or events");
    app->add_flag("--sketch", o.sketches, "csv, json, parquet: include the sketches");
    app->add_flag("--samples", o.samples, "csv, json, parquet: include the first elements, where recorded");
    app->add_option(
        "--stat", o.statistics,
        "tensorboard: only these statistics (default: min, max, mean, std, l2, and nonzero counts of NaN "
        "and infinities)");
    app->add_flag("--overwrite", o.overwrite, "Replace what an earlier export made there");
  }

  void AddSummary() {
    SummaryOptions& o = arguments_.summary;
    CLI::App* app = Add(
        "summary", "One step of a rank as text, one block per tensor",
        "  statctl summary base --step 3\n"
        "  statctl summary ort --step 3 --like base             # in base's order, to compare with base's\n"
        "  statctl summary base --step 3 --out merge_pt         # merge_pt/step_3_.txt\n"
        "  diff <(statctl summary base --step 3) <(statctl summary ort --step 3 --like base)\n",
        [&o](Session& session) { return Summarise(session, o); });
    app->add_option("run", o.run, "Name of the run")->required();
    app->add_option("--step", o.step, "The step")->required()->check(StepNumber());
    app->add_option("--rank", o.rank, "The rank")->check(Index())->capture_default_str();
    app->add_option("--like", o.like, "Take the order from this run's step (default: the run's own)");
    app->add_option("--out", o.out, "Write <out>/step_<k>_.txt instead of standard output");
    app->add_flag("--overwrite", o.overwrite, "Replace that file");
  }

  void AddDiff() {
    DiffOptions& o = arguments_.diff;
    CLI::App* app =
        Add("diff", "Finds where two runs first diverge, and why",
            "  statctl diff --run-a base --run-b ort\n"
            "  statctl diff base ort --steps 0-99 --rank 0,1\n"
            "  statctl diff base ort --tolerance 1e-3 --kinds output\n"
            "  statctl diff base ort --exact              # the first difference of any size\n"
            "  statctl diff base ort --noise base2,base3  # beyond what repeats of base differ by\n"
            "  statctl diff base ort --map names.txt --first\n"
            "  statctl diff one four --merge-ranks        # 1 rank against 4: weights, gradients, optimizer "
            "state\n"
            "  statctl diff base ort --format json > report.json\n",
            [&o](Session& session) { return Diff(session, o); });
    app->add_option("--run-a,run_a", o.run_a, "The baseline run")->required();
    app->add_option("--run-b,run_b", o.run_b, "The run to compare with it")->required();
    CLI::Option* tolerance = app->add_option("--tolerance", o.tolerance,
                                             "Relative L2 distance to ignore (default: by dtype, f32 1e-4)")
                                 ->check(Between(0, kToleranceMax));
    app->add_flag("--exact", o.exact, "Report any bitwise difference, whatever its size")
        ->excludes(tolerance);
    app->add_option("--rank", o.ranks, "Only these ranks, such as 0,2-3");
    app->add_flag("--merge-ranks", o.merge_ranks,
                  "For runs of different numbers of ranks: compare replicas. Weights, their gradients and\n"
                  "optimizer state only: everything else depends on each rank's own data");
    app->add_option("--steps", o.steps, "Only these steps, such as 0-9,20,100- or every=10");
    app->add_option("--kinds", o.kinds, "Only these kinds, such as output,grad_output");
    app->add_option("--top", o.top, "How many diverged tensors to list")
        ->check(CLI::Range(1, 1'000'000))
        ->capture_default_str();
    app->add_flag("--all", o.all, "List everything that diverged");
    app->add_flag("--first", o.first_only, "Stop at the first step that diverged: quick on long runs");
    app->add_option("--noise", o.noise,
                    "Repeats of run A, separated by commas: differences among them count as noise")
        ->excludes(app->get_option("--exact"));
    app->add_flag("--no-noise", o.no_noise, "Do not use the noise saved for run A (statctl noise save)")
        ->excludes(app->get_option("--noise"));
    app->add_option(
        "--map", o.map,
        "File of lines PATTERN -> NAME that turn names of run A into those of run B, such as\n"
        "h\\.(\\d+)\\.(.*) -> blocks.\\1.\\2; several names, separated by commas, are compared as one");
    app->add_flag("--no-alignment", o.no_alignment,
                  "Treat names that differ as missing; do not match them by order, class and shape");
  }

  void AddNoise() {
    CLI::App* noise = Add("noise", "Measures how far repeats of one run differ",
                          "  statctl noise save base --runs base2,base3   # repeats of the same training\n"
                          "  statctl noise show base\n  statctl noise rm base\n",
                          {});
    noise->require_subcommand(1);
    const auto add = [&](const std::string& name, const std::string& description, Command command) {
      CLI::App* app = noise->add_subcommand(name, description);
      app->add_option("run", arguments_.run, "Name of the baseline")->required();
      commands_[app] = std::move(command);
      return app;
    };
    add("save", "Measures the noise of a run from its repeats and keeps it with the run",
        [this](Session& session) { return SaveNoise(session, arguments_.run, arguments_.repeats); })
        ->add_option("--runs", arguments_.repeats, "Runs that repeat it, separated by commas")
        ->required();
    add("show", "Shows the saved noise and the noisiest activations",
        [this](Session& session) { return ShowNoise(session, arguments_.run); });
    add("rm", "Removes the saved noise",
        [this](Session& session) { return RemoveNoise(session, arguments_.run); });
  }

  void AddRuns() {
    RunsOptions& l = arguments_.runs;
    AddOptions(*Add("runs", "Lists the runs", kRunsExamples,
                    [&l](Session& session) { return ListRuns(session, l); }),
               l);
    CLI::App* show =
        Add("show", "Shows one run: ranks, steps, events, configuration", "  statctl show base\n",
            [this](Session& session) { return ShowRun(session, arguments_.run); });
    show->add_option("run", arguments_.run, "Name of the run")->required();
    RemoveOptions& r = arguments_.remove;
    AddOptions(*Add("rm", "Removes runs and all their data", kRemoveExamples,
                    [&r](Session& session) { return RemoveRuns(session, r); }),
               r);
    CLI::App* record =
        Add("record", "Chooses the steps that a live run records",
            "  statctl record base --steps 5000-5010     # look closely at some steps to come\n"
            "  statctl record base --steps every=100\n  statctl record base --steps ''             # every "
            "step again\n",
            [this](Session& session) { return RecordSteps(session, arguments_.run, arguments_.steps); });
    record->add_option("run", arguments_.run, "Name of the run")->required();
    record
        ->add_option("--steps", arguments_.steps, "Steps, such as 0-9,20,100- or every=10; empty: every step")
        ->required();
  }

  void AddSeries() {
    SeriesOptions& o = arguments_.series;
    CLI::App* app = Add(
        "series", "Plots one tensor's statistics over the steps",
        "  statctl series base blocks.1.ln2\n"
        "  statctl series base blocks.1.ln2 --stat l2 --kind output --rank 0     # with a plot\n"
        "  statctl series base blocks.1.ln2 --format csv > ln2.csv\n"
        "  statctl series base blocks.1.mlp.fc1.weight --stat update_ratio      # how far updates move it\n",
        [&o](Session& session) { return Series(session, o); });
    app->add_option("run", o.run, "Name of the run")->required();
    app->add_option("activation", o.activation, "Name of the activation, as diff prints it")->required();
    app->add_option(
        "--stat", o.stats,
        "Only these statistics: min, max, mean, std, l1, l2, nan, pos_inf, neg_inf, zero, numel; "
        "one alone is plotted. update_ratio, alone: how far each update moved a weight, estimated");
    app->add_option("--kind", o.kind, "Only this kind, such as output");
    app->add_option("--rank", o.ranks, "Only these ranks, such as 0,2-3");
    app->add_option("--steps", o.steps, "Only these steps, such as 0-9,20,100-");
    app->add_option("--path", o.output_path, "Only this place in a nested output, such as 0");
  }

  void AddTop() {
    TopOptions& o = arguments_.top;
    CLI::App* app =
        Add("top", "Lists the extreme tensors of a step",
            "  statctl top base                                  # the largest norms of the newest step\n"
            "  statctl top base --by nan --step 120              # where the NaN are\n"
            "  statctl top base --by absmax --kinds output --rank 0 --count 5\n",
            [&o](Session& session) { return Top(session, o); });
    app->add_option("run", o.run, "Name of the run")->required();
    app->add_option("--by", o.by,
                    "Order by l2, l1, absmax, rms, std, mean (largest |mean|), max, min (smallest "
                    "first), nan, inf, zero_fraction, numel")
        ->capture_default_str();
    app->add_option("--step", o.step, "Which step (default: the newest)")->check(StepNumber());
    app->add_option("--rank", o.ranks, "Only these ranks, such as 0,2-3");
    app->add_option("--kinds", o.kinds,
                    "Only these kinds, such as output,grad_output (default: all, except integer tensors)");
    app->add_option("--count", o.count, "Rows")->check(CLI::Range(1, 10'000))->capture_default_str();
  }

  void AddConfig() {
    ConfigOptions& o = arguments_.config;
    CLI::App* app = Add("config", "Compares two runs' configuration and versions",
                        "  statctl config base ort                # exit code: 0 same, 1 something differs\n"
                        "  statctl config base ort --all          # also settings that agree\n"
                        "  statctl config base                    # everything about one run\n",
                        [&o](Session& session) { return Config(session, o); });
    app->add_option("run_a", o.run_a, "Name of the run")->required();
    app->add_option("run_b", o.run_b, "The run to compare it with");
    app->add_flag("--all", o.all, "Also list settings that agree");
  }

  // The options that say which tensor of its name is meant.
  static void AddPlace(CLI::App* app, CapturePlace& place) {
    app->add_option("activation", place.activation, "Name of the activation, as diff prints it")->required();
    app->add_option("--step", place.step, "The step")->required()->check(StepNumber());
    app->add_option(
        "--kind", place.kind,
        "Its kind, such as grad_output (default: output, inspect, weight or batch, whichever exists)");
    app->add_option("--path", place.output_path, "Its place in a nested output, such as 0 (default: all)");
    app->add_option("--micro-batch", place.micro_batch, "Its micro-batch")
        ->check(Index())
        ->capture_default_str();
    app->add_option("--call", place.call, "Which call of the module in the micro-batch")
        ->check(Index())
        ->capture_default_str();
    app->add_option("--mode", place.mode, "train, eval or init (default: train)");
  }

  void AddCapture() {
    CaptureOptions& o = arguments_.capture;
    CLI::App* app =
        Add("capture", "Saves raw values of a tensor from a live run",
            "  statctl capture base blocks.1.ln2 --step 5000                      # waits for it\n"
            "  statctl capture base blocks.1.ln2 --step 5000 --rank 0 --out ln2.npy\n"
            "  statctl capture base lm_head --step 5000 --kind grad_output --no-wait\n"
            "  statctl capture base blocks.1.ln2 --step 5000 --out captured/      # a file for each rank\n"
            "\nA step that has passed cannot be captured. To capture from the start, launch with\n"
            "STATAGENT_CAPTURES='blocks.1.ln2@3'. Values already stored are not requested again.\n"
            "docs/capture.md\n",
            [&o](Session& session) { return CaptureActivation(session, o); });
    app->add_option("run", o.run, "Name of the run")->required();
    AddPlace(app, o.place);
    app->add_option("--rank", o.ranks, "Only these ranks, such as 0,2-3");
    app->add_option("--max-bytes", o.bytes_max,
                    "Keep only the first elements of larger tensors (default: 16 MiB; at most 64 MiB)");
    app->add_option("--wait", o.wait_seconds, "Seconds to wait for it; 0: no limit")
        ->check(Between(0, kTimeoutSecondsMax))
        ->capture_default_str();
    app->add_flag("--no-wait", o.no_wait, "Send the request and return");
    app->add_option("--out", o.out, "Save as .npy: a file, or a folder for several");
    app->add_flag("--raw", o.raw, "--out: write bfloat16 and float8 as raw bits, not as float32");
    app->add_flag("--overwrite", o.overwrite, "--out: replace the file");

    CapturesOptions& l = arguments_.captures;
    CLI::App* list = Add("captures", "Lists captured tensors and pending requests",
                         "  statctl captures base\n  statctl captures base blocks.1.ln2 --steps 5000-\n",
                         [&l](Session& session) { return ListCaptures(session, l); });
    list->add_option("run", l.run, "Name of the run")->required();
    list->add_option("activation", l.activation, "Only this activation");
    list->add_option("--rank", l.ranks, "Only these ranks, such as 0,2-3");
    list->add_option("--steps,--step", l.steps, "Only these steps, such as 0-9,20");
    list->add_option("--kinds", l.kinds, "Only these kinds, such as output,grad_output");

    DiffValuesOptions& v = arguments_.values;
    CLI::App* values = Add("diff-values", "Compares a captured tensor element by element",
                           "  statctl diff-values base ort blocks.1.ln2 --step 3          # exit code: 0 "
                           "equal bit for bit, 1 not\n"
                           "  statctl diff-values base ort blocks.1.ln2 --step 3 --rank 1 --format json\n",
                           [&v](Session& session) { return DiffValues(session, v); });
    values->add_option("run_a", v.run_a, "The baseline run")->required();
    values->add_option("run_b", v.run_b, "The run to compare with it")->required();
    AddPlace(values, v.place);
    values->add_option("--rank", v.rank, "The rank")->check(Index())->capture_default_str();
    values->add_option("--rank-b", v.rank_b, "The rank in run B, if different (diff --merge-ranks)")
        ->check(Index());
    values->add_option("--activation-b", v.activation_b, "Its name in run B, if different");
  }

  void AddRanks() {
    RanksOptions& o = arguments_.check;
    CLI::App* app =
        Add("ranks", "Finds ranks of one run that disagree or stand out",
            "  statctl ranks base                     # exit code: 0 consistent, 1 not, 2 no answer\n"
            "  statctl ranks base --steps 100-200 --kinds weight,weight_grad\n"
            "  statctl ranks base --tolerance 1e-6    # ranks on different devices\n",
            [&o](Session& session) { return CheckRanks(session, o); });
    app->add_option("run", o.run, "Name of the run")->required();
    app->add_option("--steps,--step", o.steps, "Only these steps, such as 0-9,20,100- or every=10");
    app->add_option("--rank", o.ranks, "Only these ranks, such as 0,2-3");
    app->add_option("--kinds", o.kinds, "Only these kinds, such as weight,weight_grad");
    app->add_option(
           "--tolerance", o.tolerance,
           "Relative L2 distance of replicas to ignore (default: 0 where they have agreed bit for bit, "
           "otherwise by dtype)")
        ->check(Between(0, kToleranceMax));
    app->add_option("--top", o.top, "How many findings to list")
        ->check(CLI::Range(1, 1'000'000))
        ->capture_default_str();
  }

  void AddMemory() {
    MemoryOptions& o = arguments_.memory;
    AddOptions(*Add("memory", "Shows memory by phase, and what raised the peak", kMemoryExamples,
                    [&o](Session& session) { return Memory(session, o); }),
               o);
  }

  void AddDensity() {
    DensityOptions& o = arguments_.density;
    CLI::App* app =
        Add("density", "Shows how much of each input is not padding",
            "  statctl density base\n  statctl density base --input input_ids --steps 0-99 --format csv\n"
            "  statctl density base --format ort       # the table of ONNX Runtime's inspector\n",
            [&o](Session& session) { return Density(session, o); });
    app->add_option("run", o.run, "Name of the run")->required();
    app->add_option("--input", o.input, "Only this input");
    app->add_option("--rank", o.ranks, "Only these ranks, such as 0,2-3");
    app->add_option("--steps,--step", o.steps, "Only these steps, such as 0-9,20");
  }

  void AddExponents() {
    ExponentsOptions& o = arguments_.exponents;
    CLI::App* app = Add(
        "exponents", "Shows what fp16, bf16 or fp8 would lose",
        "  statctl exponents base                              # every tensor, largest loss in f16 first\n"
        "  statctl exponents base --dtype e4m3 --kinds weight_grad\n"
        "  statctl exponents base blocks.1.ln2 --step 300      # its histogram\n"
        "\nHistograms are recorded on request: STATAGENT_EXPONENTS='*@0-,every=100'. docs/exponents.md\n",
        [&o](Session& session) { return Exponents(session, o); });
    app->add_option("run", o.run, "Name of the run")->required();
    app->add_option("activation", o.activation, "Only this activation, with its histogram");
    app->add_option("--dtype", o.dtype,
                    "f16, bf16, e4m3 or e5m2 (default: f16; all four for a single activation)");
    app->add_option("--rank", o.ranks, "Only these ranks, such as 0,2-3");
    app->add_option("--steps,--step", o.steps, "Only these steps, such as 0-9,20");
    app->add_option("--kinds,--kind", o.kinds, "Only these kinds, such as output,weight_grad");
    app->add_option("--top", o.top, "How many tensors to list")
        ->check(CLI::Range(1, 1'000'000))
        ->capture_default_str();
  }

  void AddOthers() {
    ScalarsOptions& o = arguments_.scalars;
    AddOptions(*Add("scalars", "Plots the loss and other scalars over the steps", kScalarsExamples,
                    [&o](Session& session) { return Scalars(session, o); }),
               o);
    AddMemory();
    AddDensity();
    AddExponents();
    EventsOptions& e = arguments_.events;
    CLI::App* events =
        Add("events", "Lists events: alarms, lost records and more",
            "  statctl events base\n"
            "  statctl events base --kind nan_first_seen,norm_explosion --since-step 1000\n"
            "  statctl events base --follow                         # keeps printing new ones until Ctrl-C\n"
            "  statctl events base --follow --format json | jq .text\n",
            [&e](Session& session) { return Events(session, e); });
    events->add_option("run", e.run, "Name of the run; with --follow it need not exist yet")->required();
    events->add_option("--rank", e.ranks, "Only these ranks, such as 0,2-3");
    events->add_option("--kind", e.kinds, "Only these kinds, separated by commas, such as nan_first_seen");
    events->add_option("--since-step", e.since_step, "Only from this step on")->check(StepNumber());
    events->add_flag("--follow,-f", e.follow, "Keep printing new ones until Ctrl-C");
    WatchOptions& w = arguments_.watch;
    CLI::App* watch =
        Add("watch", "Follows a live run: steps, ranks, loss, alarms",
            "  statctl watch base\n"
            "  statctl watch ort --against base     # does it still agree with base?\n"
            "  statctl watch base --once            # prints once; for scripts, with --format json\n"
            "  statctl watch base --interval 10 >> base.log\n",
            [&w](Session& session) { return Watch(session, w); });
    watch->add_option("run", w.run, "Name of the run; it need not exist yet")->required();
    watch->add_option("--interval", w.interval_seconds, "Seconds between updates")
        ->check(Between(0.1, 86'400))
        ->capture_default_str();
    watch->add_flag("--once", w.once, "Print once, then exit");
    watch->add_option("--against", w.against,
                      "Compare every step that both runs have completed, as diff does");
    CLI::App* keep =
        Add("keep", "Exempts a run from retention",
            "  statctl keep base\n  statctl keep base --off     # retention may remove it again\n",
            [this](Session& session) { return KeepRun(session, arguments_.run, !arguments_.off); });
    keep->add_option("run", arguments_.run, "Name of the run")->required();
    keep->add_flag("--off", arguments_.off, "End the exemption");
    CLI::App* checkpoint =
        Add("checkpoint", "Writes a consistent copy of the store",
            "  statctl checkpoint /backup/monday          # the collector writes it, on its machine\n"
            "  statcollectord --restore-from /backup/monday --data-dir /var/lib/statcollect-new\n",
            [this](Session& session) { return MakeCheckpoint(session, arguments_.directory); });
    checkpoint
        ->add_option("directory", arguments_.directory,
                     "Absolute path on the collector's machine; must not exist, or be an empty folder")
        ->required();
    Add("status", "Shows the collector's health and its loss counters", "  statctl status\n",
        [](Session& session) { return ShowStatus(session); });
    CLI::App* help = app_.add_subcommand("help", "Explains a command, with examples");
    help->footer(std::string("\nExamples:\n  statctl help\n  statctl help diff\n") + kGlobalHelp);
    help->add_option("command", arguments_.help_of, "Name of the command");
  }

  void AddImport() {
    ImportOptions& o = import_;
    CLI::App* app = Add(
        "import", "Imports another tool's dump as a run",
        "  statctl import ort out_pt --run base\n"
        "  statctl import ort dumps --run base --rank-pattern 'out_{rank}'     # folders out_0, out_1, ...\n"
        "  statctl import msprobe dump_path --run npu --steps 0-9\n"
        "  statctl import mindspore dump_path --run ms --dry-run               # reads and reports only\n"
        "  statctl import ort out_pt --run base --if-exists replace --strict\n"
        "  statctl import spill /scratch/statagent       # records that training jobs could not send\n"
        "\nA bad file ends the import with its name and line; what was read before it stays stored (statctl "
        "rm\n"
        "removes it). --keep-going skips bad files and counts them; --strict reads everything first and\n"
        "stores nothing if any of it is bad. Formats and mapping: docs/import-export.md.\n",
        [this, &o](Session& session) {
          o.timeout_seconds = arguments_.timeout_seconds;
          return Import(session, o);
        });
    app->add_option(
           "dump", o.format,
           "ort (ONNX Runtime statistics), mindspore (statistic.csv), msprobe (dump.json), spill (files that "
           "the agent left in its spill_dir)")
        ->required();
    app->add_option("path", o.path, "Folder of the dump")->required();
    app->add_option("--run", o.run, "Name of the new run (spill: default as recorded)");
    app->add_option("--rank", o.rank, "The folder's rank (default 0, or as the dump says)")
        ->check(CLI::Range(0, 1'000'000));
    app->add_option(
        "--rank-pattern", o.rank_pattern,
        "Name pattern of the ranks' folders in PATH, with {} or {rank} for the number, such as rank{}");
    app->add_option("--world-size", o.world_size, "Number of ranks (default: the highest rank + 1)")
        ->check(CLI::Range(1, 1'000'001));
    app->add_option("--launch", o.launch,
                    "Imports of single ranks that give the same text join one attempt of the run (with the "
                    "same --world-size)");
    app->add_option("--steps", o.steps, "Only these steps, such as 0-9,20,100- or every=10");
    app->add_option("--if-exists", o.if_exists,
                    "If the run has data: error, replace it, append a launch to it")
        ->check(CLI::IsMember({"error", "replace", "append"}))
        ->capture_default_str();
    app->add_flag(
        "--trust-std", o.trust_std,
        "ort: the printed std is right (first version, or run_on_cpu); otherwise it is not compared");
    app->add_flag("--samples", o.samples, "ort: keep the printed first elements, too");
    app->add_flag("--dry-run", o.dry_run, "Read and report, store nothing; needs no collector");
    CLI::Option* strict = app->add_flag("--strict", o.strict, "Store nothing unless everything can be read");
    app->add_flag("--keep-going", o.keep_going, "Skip bad files, and count them")->excludes(strict);
  }

  ImportOptions import_;

  CLI::App app_;
  Arguments arguments_;
  std::map<const CLI::App*, Command> commands_;
};

int Main(int argc, const char* const* argv) {
  Parser parser;
  if (const auto exit_code = parser.Parse(argc, argv)) return *exit_code;
  BlockInterrupts();
  const auto collector = std::make_shared<Collector>(parser.collector());
  WatchInterrupts(collector);
  Session session(parser.global(), DetectTerminal(), *collector);
  const int exit_code = parser.Run(session);
  std::cout.flush();
  return std::cout ? exit_code
                   : UsageError("writing the answer failed; is the disk full or the pipe closed?");
}

}  // namespace
}  // namespace statcollect::client

int main(int argc, char** argv) {
  try {
    return statcollect::client::Main(argc, argv);
  } catch (const std::exception& failure) {
    std::cerr << "statctl: " << failure.what() << '\n';
    return statcollect::client::kExitNoAnswer;
  }
}
