#include "client/command_line/declarations.h"
#include "client/commands/commands.h"
#include "client/commands/selection.h"

namespace statcollect::client {

void AddSummary(CommandSet& commands, const std::string& name) {
  const auto [app, o] = commands.Add<SummaryOptions>(
      name, "Prints one step as text, one block per tensor",
      "  statctl summary base --step 3\n"
      "  statctl summary ort --step 3 --like base             # in base's order, to compare with "
      "base's\n"
      "  statctl summary base --step 3 --out merge_pt         # merge_pt/step_3_.txt\n"
      "  diff <(statctl summary base --step 3) <(statctl summary ort --step 3 --like base)\n",
      Summarise);
  AddRunName(app, o.run);
  app->add_option("--step", o.step, "The step")->required()->check(StepNumber());
  app->add_option(
         "--rank", o.rank,
         "The rank (default: whole tensors if they are split over ranks, otherwise rank 0)")
      ->check(Index());
  app->add_option("--like", o.like,
                  "Use the tensor order of this run's step (default: its own order)");
  app->add_option("--out", o.out, "Write <out>/step_<k>_.txt instead of standard output");
  app->add_flag("--overwrite", o.overwrite, "Replace that file");
}

namespace {

void AddStatistics(CLI::App* app, std::string& stats) {
  TakesParsed(
      app->add_option(
          "--stat", stats,
          "Only these statistics: min, max, mean, std, l1, l2, nan, pos_inf, neg_inf, zero, numel; "
          "one alone is plotted. update_ratio, alone: how far each update moved a weight, "
          "estimated"),
      "STATS", ParseSeriesStatistics);
}

CLI::Option* AddOrder(CLI::App* app, std::string& by) {
  CLI::Option* option = app->add_option("--by", by,
                                        "Order by l2, l1, absmax, rms, std, mean (largest |mean|), "
                                        "max, min (smallest first), nan, inf, "
                                        "zero_fraction, numel");
  TakesParsed(option, "STAT", ParseTopBy);
  return option;
}

void AddNarrowFormat(CLI::App* app, std::string& dtype) {
  TakesParsed(
      app->add_option("--dtype", dtype,
                      "f16, bf16, e4m3 or e5m2 (default: f16; all four for a single activation)"),
      "DTYPE", ParseNarrowFormat);
}

constexpr char kByRank[] =
    "Show each rank's part of tensors that are split over ranks (also with --rank)";

}  // namespace

void AddTensor(CommandSet& commands, const std::string& name) {
  const auto [app, o] = commands.Add<TensorOptions>(
      name, "Plots a tensor over the steps; without NAME: the extreme ones",
      "  statctl tensor base                                   # the largest norms of the newest "
      "step\n"
      "  statctl tensor base --by nan --step 120               # where the NaN are\n"
      "  statctl tensor base blocks.1.ln2                      # its statistics over the steps\n"
      "  statctl tensor base blocks.1.ln2 --stat l2 --kind output --rank 0     # with a plot\n"
      "  statctl tensor base blocks.1.mlp.fc1.weight --stat update_ratio       # how far updates "
      "move it\n"
      "  statctl tensor base --exponents --dtype e4m3          # what each would lose in fp8\n"
      "  statctl tensor base blocks.1.ln2 --exponents --step 300               # its histogram\n"
      "\nHistograms of exponents are recorded on request: STATAGENT_EXPONENTS='*@0-,every=100'.\n",
      ShowTensor);
  AddRunName(app, o.run);
  app->add_option("name", o.name,
                  "Name of the tensor, as diff prints it; without it: those of a step");
  AddStatistics(app, o.stats);
  AddOrder(app, o.by);
  app->add_option("--count", o.count, "How many tensors to list")->check(CLI::Range(1, 10'000));
  app->add_flag("--exponents", o.exponents,
                "What it, or each tensor, would lose in fp16, bf16, fp8");
  AddNarrowFormat(app, o.dtype);
  AddRankFilter(app, o.ranks);
  AddStepFilter(app, o.steps);
  AddKindFilter(app, o.kinds, "output,grad_output");
  app->add_option("--path", o.output_path, "Only this position in a nested output, such as 0");
  app->add_flag("--by-rank", o.by_rank, kByRank);
}

void AddSeries(CommandSet& commands, const std::string& name) {
  const auto [app, o] =
      commands.Add<SeriesOptions>(name, "Plots one tensor's statistics over the steps",
                                  "  statctl tensor base blocks.1.ln2\n  statctl tensor base "
                                  "blocks.1.ln2 --stat l2 --kind output\n",
                                  Series);
  AddRunName(app, o.run);
  app->add_option("activation", o.activation, "Name of the activation, as diff prints it")
      ->required();
  AddStatistics(app, o.stats);
  TakesParsed(app->add_option("--kind", o.kind, "Only this kind, such as output"), "KIND",
              ParseOneKind);
  AddRankFilter(app, o.ranks);
  AddStepFilter(app, o.steps);
  app->add_option("--path", o.output_path, "Only this position in a nested output, such as 0");
  app->add_flag("--by-rank", o.by_rank, kByRank);
}

void AddTop(CommandSet& commands, const std::string& name) {
  const auto [app, o] =
      commands.Add<TopOptions>(name, "Lists the extreme tensors of a step",
                               "  statctl tensor base --by nan --step 120\n", Top);
  AddRunName(app, o.run);
  AddOrder(app, o.by)->capture_default_str();
  app->add_option("--step", o.step, "Which step (default: the newest)")->check(StepNumber());
  AddRankFilter(app, o.ranks);
  AddKindFilter(app, o.kinds, "output,grad_output (default: all, except integer tensors)");
  app->add_option("--count", o.count, "Rows")->check(CLI::Range(1, 10'000))->capture_default_str();
  app->add_flag("--by-rank", o.by_rank, kByRank);
}

void AddScalars(CommandSet& commands, const std::string& name) {
  const auto [app, o] =
      commands.Add<ScalarsOptions>(name, "Plots the loss and other scalars over the steps",
                                   "  statctl scalars base\n"
                                   "  statctl scalars base --name loss --rank 0 --format csv\n"
                                   "  statctl scalars base ort             # both values and the "
                                   "first difference; exit code: 0 same, "
                                   "1 different\n",
                                   Scalars);
  AddRunName(app, o.run);
  app->add_option("run_b,--against", o.against, "Compare with this run");
  app->add_option(
      "--name", o.name,
      "Only this scalar. If ranks hold parts of the model, grad_norm is that of the whole model");
  AddRankFilter(app, o.ranks);
  AddStepFilter(app, o.steps);
  app->add_flag("--by-rank", o.by_rank,
                "With --name grad_norm: show that of each rank's part (also with --rank)");
  app->add_flag("--all", o.all,
                "Every row, and the states of random generators (rng/...), which diff compares; "
                "json and csv\n"
                "have them always");
}

void AddMemory(CommandSet& commands, const std::string& name) {
  const auto [app, o] = commands.Add<MemoryOptions>(
      name, "Shows memory by phase, and what raised the peak",
      "  statctl show base --memory\n  statctl show base --memory --rank 0 --step 12\n"
      "  statctl show base --memory --modules    # if watch(model, memory=\"modules\") recorded "
      "them\n"
      "  statctl show base --memory --format ort # the lines of ONNX Runtime's memory observer\n",
      Memory);
  AddRunName(app, o.run);
  AddRankFilter(app, o.ranks);
  AddStepFilter(app, o.steps);
  app->add_flag("--modules", o.modules, "By module instead of by phase");
  AddRowLimit(app, o.top, "Number of rows to print");
  app->add_flag("--all", o.all, "Every row");
}

void AddDensity(CommandSet& commands, const std::string& name) {
  const auto [app, o] = commands.Add<DensityOptions>(
      name, "Shows the share of each input that is not padding",
      "  statctl show base --padding\n"
      "  statctl show base --padding --input input_ids --step 0-99 --format csv\n"
      "  statctl show base --padding --format ort # the table of ONNX Runtime's inspector\n",
      Density);
  AddRunName(app, o.run);
  app->add_option("--input", o.input, "Only this input");
  AddRankFilter(app, o.ranks);
  AddStepFilter(app, o.steps);
}

void AddExponents(CommandSet& commands, const std::string& name) {
  const auto [app, o] = commands.Add<ExponentsOptions>(
      name, "Shows what tensors would lose in fp16, bf16, fp8",
      "  statctl tensor base --exponents                     # every tensor, largest loss in f16 "
      "first\n"
      "  statctl tensor base --exponents --dtype e4m3 --kind weight_grad\n"
      "  statctl tensor base blocks.1.ln2 --exponents --step 300 # its histogram\n"
      "\nHistograms are recorded on request: STATAGENT_EXPONENTS='*@0-,every=100'. "
      "docs/exponents.md\n",
      Exponents);
  AddRunName(app, o.run);
  app->add_option("activation", o.activation, "Only this activation, with its histogram");
  AddNarrowFormat(app, o.dtype);
  AddRankFilter(app, o.ranks);
  AddStepFilter(app, o.steps);
  AddKindFilter(app, o.kinds, "output,weight_grad");
  AddRowLimit(app, o.top, "How many tensors to list");
}

}  // namespace statcollect::client
