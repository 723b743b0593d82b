#include "client/command_line/declarations.h"
#include "client/commands/commands.h"
#include "common/known_maps.h"

namespace statcollect::client {
namespace {

// What diff and report compare, and how.
void AddRunsToCompare(CLI::App* app, DiffOptions& o) {
  app->add_option("--run-a,run_a", o.run_a, "The baseline run")->required();
  app->add_option("--run-b,run_b", o.run_b, "The run to compare with it")->required();
  CLI::Option* tolerance =
      app->add_option("--tolerance", o.tolerance,
                      "Relative L2 distance to ignore (default: by dtype, f32 1e-4)")
          ->check(Between(0, kToleranceMax));
  app->add_flag("--exact", o.exact, "Report any bitwise difference, whatever its size")
      ->excludes(tolerance);
  AddRankFilter(app, o.ranks);
  CLI::Option* logical = app->add_flag(
      "--logical", o.logical,
      "Combine the shards of all ranks and compare whole models. Default if the runs split their\n"
      "tensors differently over their ranks and the agents know the layouts");
  CLI::Option* by_rank =
      app->add_flag("--by-rank", o.by_rank, "Compare rank by rank, whatever the runs' layouts");
  by_rank->excludes(logical);
  app->add_flag("--merge-ranks", o.merge_ranks,
                "For runs with different numbers of ranks: compare replicas. Only weights, their "
                "gradients\n"
                "and optimizer state: everything else depends on each rank's own data")
      ->excludes(logical)
      ->excludes(by_rank);
  AddStepFilter(app, o.steps);
  AddKindFilter(app, o.kinds, "output,grad_output");
  app->add_flag("--first", o.first_only,
                "Stop at the first step that diverged; faster on long runs");
  app->add_option("--noise", o.noise,
                  "Repeats of run A, separated by commas: differences among them count as noise")
      ->excludes(app->get_option("--exact"));
  app->add_flag("--no-noise", o.no_noise,
                "Do not use the twins of run A (statctl twins), nor the noise saved for it "
                "(statctl noise save)")
      ->excludes(app->get_option("--noise"));
  app->add_option("--map", o.map,
                  "Names of run A and their names in run B: a built-in map such as hf:megatron "
                  "(statctl map list),\n"
                  "or a file of lines PATTERN -> NAME, such as h\\.(\\d+)\\.(.*) -> "
                  "blocks.\\1.\\2; several names,\n"
                  "separated by commas, are compared as one");
  app->add_flag("--no-alignment", o.no_alignment,
                "Treat names that differ as missing; do not match them by order, class and shape");
}

}  // namespace

void AddDiff(CommandSet& commands, const std::string& name) {
  const auto [app, o] = commands.Add<DiffOptions>(
      name, "Finds where two runs first diverge, and why",
      "  statctl diff --run-a base --run-b ort\n"
      "  statctl diff base ort --step 0-99 --rank 0,1\n"
      "  statctl diff base ort --tolerance 1e-3 --kind output\n"
      "  statctl diff base ort --exact              # the first difference of any size\n"
      "  statctl diff base ort --noise base2,base3  # beyond what repeats of base differ by\n"
      "  statctl diff base ort --map names.txt --first\n"
      "  statctl diff hf mcore --map hf:megatron    # the same model in two implementations\n"
      "  statctl diff one four --merge-ranks        # 1 rank against 4: weights, gradients, "
      "optimizer "
      "state\n"
      "  statctl diff trainer engine --tokens       # token by token, whatever the batches\n"
      "  statctl diff --golden base.scg --run-b pr-17 --junit golden.xml    # in continuous "
      "integration\n"
      "  statctl diff base ort --format json > report.json\n"
      "  statctl diff base ort --publish wandb      # the verdict into the W&B run of ort\n"
      "\nSee also: statctl map (names of the same model in two implementations), statctl noise "
      "(what repeats of a\n"
      "run differ by), statctl twins, statctl golden.\n",
      Diff);
  AddRunsToCompare(app, o);
  CLI::Option* run_a = app->get_option("--run-a");
  CLI::Option* run_b = app->get_option("--run-b");
  app->add_option("--golden", o.golden,
                  "Compare with this file (from statctl golden save) instead of run A")
      ->each([run_a, run_b](const std::string&) {  // the one run may then stand in either place
        run_a->required(false);
        run_b->required(false);
      });
  app->add_flag("--tokens", o.tokens,
                "Compare token records row by row: the first tap at which the same tokens part in "
                "a trainer and an engine; with --exact, --map, --noise and --steps only");
  app->add_option("--junit", o.junit, "Also write the verdict to this file as JUnit XML");
  app->add_option("--publish", o.publish,
                  "Also write the verdict to a run of wandb, mlflow or trackio: TRACKER:RUN, or "
                  "TRACKER for the one that was active while run B was recorded");
  AddRowLimit(app, o.top, "How many diverged tensors to list");
  app->add_flag("--all", o.all, "List everything that diverged");
}

void AddReport(CommandSet& commands, const std::string& name) {
  const auto [app, o] = commands.Add<ReportOptions>(
      name, "Writes the verdict with its page into one HTML file",
      "  statctl report base ort --out report.html       # exit code: as diff\n"
      "  statctl report base ort --rank 0 --step 0-999 --out report.html --overwrite\n",
      Report);
  AddRunsToCompare(app, o.diff);
  o.diff.top = 200;  // whose statistics are in the file
  app->add_option("--out", o.out, "HTML file to write")->required();
  app->add_flag("--overwrite", o.overwrite, "Replace the file if it exists");
}

void AddOpen(CommandSet& commands, const std::string& name) {
  const auto [app, o] = commands.Add<DiffOptions>(
      name, "Prints a link that opens the page in a browser",
      "  statctl open                                  # the list of runs\n"
      "  statctl open --run-a base                     # one run\n"
      "  statctl open --run-a base --run-b ort         # the comparison, with options as of diff\n"
      "  xdg-open \"$(statctl open base ort --rank 0)\"\n"
      "With tokens, the link works once, within 5 minutes, and the browser may then do what your "
      "token allows.\n",
      OpenPage);
  AddRunsToCompare(app, o);
  for (const char* run : {"--run-a", "--run-b"}) app->get_option(run)->required(false);
}

void AddZoom(CommandSet& commands, const std::string& name) {
  const auto [app, o] = commands.Add<ZoomOptions>(
      name, "Names the operator and the line of code that differ",
      "  statctl zoom base ort --train        # runs both again, as base.zoom and ort.zoom, and "
      "compares these\n"
      "  statctl zoom base ort                # not zoomed yet: prints the two commands\n"
      "  STATAGENT_ZOOM=blocks.1.ln2@3 statctl run base.zoom -- python train.py\n"
      "  STATAGENT_ZOOM=blocks.1.ln2@3 statctl run ort.zoom -- python train.py --backend ort\n"
      "  statctl zoom base.zoom ort.zoom      # exit code: as diff\n"
      "\nSTATAGENT_ZOOM=MODULE@STEP records every operator of the module's forward pass in that "
      "step.\n",
      Zoom);
  app->add_option("run_a", o.run_a, "The baseline run")->required();
  app->add_option("run_b", o.run_b, "The run that differs")->required();
  app->add_option("--module", o.module, "Only this zoomed module");
  app->add_flag("--train", o.train,
                "Run both commands again, in their folders and this environment, if they have not "
                "zoomed; A.zoom and B.zoom are replaced. Shows the commands and asks first: they "
                "come from the collector");
  app->add_flag("--yes,-y", o.yes, "With --train: do not ask")->needs("--train");
  AddStepFilter(app, o.steps);
  AddRankFilter(app, o.ranks);
}

void AddWeights(CommandSet& commands, const std::string& name) {
  const auto [app, o] = commands.Add<WeightsOptions>(
      name, "Says whether the weights of one run arrived in another",
      "  statctl weights trainer engine             # the newest step in which both have weights\n"
      "  statctl weights trainer engine --step 40   # exit code: 0 they arrived, 1 not all of "
      "them\n"
      "  statctl weights hf mcore --map hf:megatron\n"
      "\nThe receiver records them with statagent.fingerprint(model, step=...), a trainer does "
      "with\n"
      "statagent.watch(model, optimizer).\n",
      CompareWeights);
  app->add_option("run_a", o.run_a, "The run that computes them")->required();
  app->add_option("run_b", o.run_b, "The run that received them")->required();
  app->add_option("--step", o.step, "The step under which both recorded them");
  app->add_option("--map", o.map, "As of diff: names of run A and their names in run B");
}

void AddMap(CommandSet& commands, const std::string& name) {
  CLI::App* map = commands.AddGroup(
      name, "Lists, shows and proposes maps of module names",
      "  statctl diff hf mcore --map hf:megatron         # a built-in map\n"
      "  statctl map list                                # which maps exist\n"
      "  statctl map show hf:megatron > names.txt        # its rules, for editing\n"
      "  statctl map propose base port > names.txt       # pairs of names, by the tensors' values\n"
      "  statctl diff base port --map names.txt\n");
  map->require_subcommand(1);
  commands.AddSub(map, "list", "Lists the built-in maps", ListMaps);
  const auto [show, of_show] =
      commands.AddSub(map, "show", "Prints the rules of a built-in map", ShowMap);
  TakesOneOf(show->add_option("name", of_show.name, "Such as hf:megatron")->required(), "MAP",
             KnownMapNames());
  const auto [propose, of_propose] = commands.AddSub(
      map, "propose",
      "Pairs names that only one run has by their tensors' values in the first steps.\n"
      "Exit code: 0 every name has a pair, 1 some are ambiguous or alone, 2 no answer",
      ProposeMap);
  propose->add_option("run_a", of_propose.run_a, "The baseline run")->required();
  propose->add_option("run_b", of_propose.run_b, "The run with other names")->required();
}

void AddRun(CommandSet& commands, const std::string& name) {
  const auto [app, o] = commands.Add<RunOptions>(
      name, "Records a training, without a line in its script",
      "  statctl run base -- python train.py\n"
      "  statctl run ort -- torchrun --nproc-per-node 2 train.py --backend ort\n"
      "  statctl run base --steps 0-99 -- mpirun -n 2 python train.py\n"
      "  statctl run base --if-exists append -- python train.py --resume last.pt\n"
      "  statctl run base --perturb 1 -- python train.py    # a twin of base: see statctl help "
      "twins\n"
      "  statctl diff base ort\n"
      "Output and exit code are the command's. Models and optimizers of PyTorch are found by "
      "themselves; a script that\n"
      "calls statagent.watch is left alone. Without a collector, the records go to --data-dir.\n",
      RunTraining);
  AddRunName(app, o.run);
  app->add_option("command", o.command, "What trains, with its arguments, after --")->required();
  app->add_option("--steps", o.steps, "Record only these steps, such as 0-20");
  app->add_option("--perturb", o.seed,
                  "Record a twin of RUN with noise of this seed, as RUN.twin-1-SEED")
      ->type_name("SEED");
  TakesOneOf(
      app->add_option("--if-exists", o.if_exists,
                      "If there is a run of that name: error, replace it, append a launch to it")
          ->capture_default_str(),
      "WHAT", {"error", "replace", "append"});
  TakesOneOf(app->add_option("--watch", o.watch, "off: record only what the script itself watches")
                 ->capture_default_str(),
             "WHAT", {"auto", "off"});
}

void AddAb(CommandSet& commands, const std::string& name) {
  const auto [app, o] = commands.Add<AbOptions>(
      name, "Trains twice, and says where the trainings part ways",
      "  statctl ab --steps 20 -- python train.py --- python train.py --backend ort\n"
      "  statctl ab --steps 20 --env-b OMP_NUM_THREADS=2 -- python train.py\n"
      "  statctl ab -- torchrun --nproc-per-node 2 train.py --- torchrun --nproc-per-node 2 "
      "train.py --fused\n"
      "  statctl ab --steps 20 --reuse -- python train.py --- python train.py --lr 1e-3    # A as "
      "it was last time\n"
      "  statctl ab --steps 20 --zoom -- python train.py --- python train.py --eps 1e-3    # and "
      "which operator, in which line\n"
      "Without a second command, B is A's with --env-b. If the two differ, A is trained again with "
      "noise in the last places\n"
      "(twins), which shows what rounding may do. Exit code: as diff.\n",
      CompareTrainings);
  app->add_option("commands", o.commands, "Command A, and after --- command B")->required();
  app->add_option("--steps", o.steps, "End each training after so many steps")->check(StepNumber());
  app->add_option("--env-a", o.env_a, "NAME=VALUE for A; may be repeated")->allow_extra_args(false);
  app->add_option("--env-b", o.env_b, "NAME=VALUE for B; may be repeated")->allow_extra_args(false);
  app->add_option("--names", o.names, "Names of the two runs, which are replaced")
      ->capture_default_str();
  CLI::Option* quick = app->add_flag("--quick", o.quick, "Two twins instead of five");
  app->add_flag("--no-twins", o.no_twins, "No twins: rounding is guessed")->excludes(quick);
  app->add_flag("--no-stop", o.no_stop, "Train to the end, and record only --steps");
  app->add_flag(
      "--reuse", o.reuse,
      "Take A and its twins from last time if command, environment and code have not changed");
  app->add_flag("--zoom", o.zoom,
                "Train both again up to the root's step, and name the operator and the line");
  app->add_flag("--show", o.show, "Show what the trainings print");
}

void AddBisect(CommandSet& commands, const std::string& name) {
  const auto [app, o] = commands.Add<BisectOptions>(
      name, "Finds the commit that changed the numbers, and where",
      "  statctl bisect --good v1.2 --bad HEAD --steps 20 -- python train.py\n"
      "  statctl bisect --good HEAD~30 --bad HEAD --steps 5 -- torchrun --nproc-per-node 2 "
      "train.py\n"
      "Trains the good commit, its twins, and then as git bisect chooses. It checks out commits in "
      "this working tree,\n"
      "which must have no uncommitted changes, and restores it. Exit code: 0 found, 2 no answer.\n",
      Bisect);
  app->add_option("--good", o.good, "A commit whose numbers are right")->required();
  app->add_option("--bad", o.bad, "A later one whose numbers differ")->required();
  app->add_option("command", o.command, "What trains, with its arguments, after --")->required();
  app->add_option("--steps", o.steps, "End each training after so many steps")->check(StepNumber());
  CLI::Option* quick = app->add_flag("--quick", o.quick, "Two twins instead of five");
  app->add_flag("--no-twins", o.no_twins, "No twins: rounding is guessed")->excludes(quick);
  app->add_flag("--show", o.show, "Show what the trainings print");
}

void AddTwins(CommandSet& commands, const std::string& name) {
  const auto [app, o] = commands.Add<TwinsOptions>(
      name, "Trains twins of a run, to measure its rounding",
      "  statctl twins base -- python train.py --lr 3e-4        # 2 twins of 1 ulp, and 32, 1024, "
      "32768 ulp\n"
      "  statctl twins base --quick -- torchrun --nproc-per-node 2 train.py\n"
      "  statctl twins base --steps 0-20 -- python train.py     # stops nothing: only fewer "
      "records\n"
      "  statctl twins base --once -- python train.py           # compiled graphs, CUDA graphs\n"
      "  statctl diff base ort\n"
      "The command must train what base trained. A script that calls the agent itself gives init() "
      "no name, or that one.\n",
      RecordTwins);
  AddRunName(app, o.training.run);
  app->add_option("command", o.training.command,
                  "What trains the run, with its arguments, after --")
      ->required();
  app->add_option("--steps", o.training.steps, "Record only these steps, such as 0-20");
  app->add_flag("--quick", o.quick, "Only the two twins of 1 ulp");
  app->add_flag("--once", o.once, "Noise in the weights as loaded only, and none later");
  app->add_flag("--again", o.again, "Record twins that exist again, in place of the old ones");
}

void AddNoise(CommandSet& commands, const std::string& name) {
  struct NoiseOptions {
    std::string run, repeats;
  };
  CLI::App* noise = commands.AddGroup(
      name, "Measures how far repeats of one run differ",
      "  statctl noise save base --runs base2,base3   # repeats of the same training\n"
      "  statctl noise show base\n  statctl noise rm base\n");
  noise->require_subcommand(1);
  const auto add = [&](const char* verb, const std::string& description,
                       int (*run)(Session&, const NoiseOptions&)) {
    const auto [app, o] = commands.AddSub(noise, verb, description, run);
    app->add_option("run", o.run, "Name of the baseline")->required();
    return std::pair<CLI::App*, NoiseOptions&>(app, o);
  };
  const auto [save, o] = add(
      "save", "Measures the noise of a run from its repeats and keeps it with the run",
      [](Session& session, const NoiseOptions& o) { return SaveNoise(session, o.run, o.repeats); });
  save->add_option("--runs", o.repeats, "Runs that repeat it, separated by commas")->required();
  add("show", "Shows the saved noise and the noisiest activations",
      [](Session& session, const NoiseOptions& o) { return ShowNoise(session, o.run); });
  add("rm", "Removes the saved noise",
      [](Session& session, const NoiseOptions& o) { return RemoveNoise(session, o.run); });
}

void AddGolden(CommandSet& commands, const std::string& name) {
  CLI::App* golden = commands.AddGroup(
      name, "Saves a run as a file to compare later runs with",
      "  statctl golden save base base.scg --step 0-9     # a small file, to keep with the code\n"
      "  statctl diff --golden base.scg --run-b pr-17      # exit code: 0 same, 1 changed, 2 no "
      "answer\n"
      "  statctl rm 'golden-*'                             # goldens that diff has loaded into the "
      "collector\n");
  golden->require_subcommand(1);
  const auto [save, o] = commands.AddSub(
      golden, "save", "Writes a run's records and configuration to a file", SaveGolden);
  AddRunName(save, o.run);
  save->add_option("path", o.path, "File to make, such as base.scg")->required();
  AddRankFilter(save, o.ranks);
  AddStepFilter(save, o.steps);
  save->add_flag("--overwrite", o.overwrite, "Replace an earlier file");
}

void AddConfig(CommandSet& commands, const std::string& name) {
  const auto [app, o] = commands.Add<ConfigOptions>(
      name, "Compares two runs' configuration and versions",
      "  statctl config base ort                # exit code: 0 same, 1 something differs\n"
      "  statctl config base ort --all          # also settings that agree\n"
      "  statctl config base                    # everything about one run\n",
      Config);
  app->add_option("run_a", o.run_a, "Name of the run")->required();
  app->add_option("run_b", o.run_b, "The run to compare it with");
  app->add_flag("--all", o.all, "Also list settings that agree");
}

void AddRanks(CommandSet& commands, const std::string& name) {
  const auto [app, o] = commands.Add<RanksOptions>(
      name, "Finds ranks of one run that disagree or stand out",
      "  statctl ranks base                     # exit code: 0 consistent, 1 inconsistent, 2 no "
      "answer\n"
      "  statctl ranks base --step 100-200 --kind weight,weight_grad\n"
      "  statctl ranks base --tolerance 1e-6    # ranks on different devices\n",
      CheckRanks);
  AddRunName(app, o.run);
  AddStepFilter(app, o.steps);
  AddRankFilter(app, o.ranks);
  AddKindFilter(app, o.kinds, "weight,weight_grad");
  app->add_option("--tolerance", o.tolerance,
                  "Relative L2 distance of replicas to ignore (default: 0 where they have agreed "
                  "bit for bit, "
                  "otherwise by dtype)")
      ->check(Between(0, kToleranceMax));
  AddRowLimit(app, o.top, "How many findings to list");
}

}  // namespace statcollect::client
