#include "client/command_line/declarations.h"
#include "client/commands/commands.h"
#include "client/commands/selection.h"

namespace statcollect::client {

void AddSummary(CommandSet& commands) {
  const auto [app, o] = commands.Add<SummaryOptions>(
      "summary", "Prints one step as text, one block per tensor",
      "  statctl summary base --step 3\n"
      "  statctl summary ort --step 3 --like base             # in base's order, to compare with base's\n"
      "  statctl summary base --step 3 --out merge_pt         # merge_pt/step_3_.txt\n"
      "  diff <(statctl summary base --step 3) <(statctl summary ort --step 3 --like base)\n",
      Summarise);
  AddRunName(app, o.run);
  app->add_option("--step", o.step, "The step")->required()->check(StepNumber());
  app->add_option("--rank", o.rank,
                  "The rank (default: whole tensors if they are split over ranks, otherwise rank 0)")
      ->check(Index());
  app->add_option("--like", o.like, "Use the tensor order of this run's step (default: its own order)");
  app->add_option("--out", o.out, "Write <out>/step_<k>_.txt instead of standard output");
  app->add_flag("--overwrite", o.overwrite, "Replace that file");
}

void AddSeries(CommandSet& commands) {
  const auto [app, o] = commands.Add<SeriesOptions>(
      "series", "Plots one tensor's statistics over the steps",
      "  statctl series base blocks.1.ln2\n"
      "  statctl series base blocks.1.ln2 --stat l2 --kind output --rank 0     # with a plot\n"
      "  statctl series base blocks.1.ln2 --format csv > ln2.csv\n"
      "  statctl series base blocks.1.mlp.fc1.weight --stat update_ratio      # how far updates move it\n",
      Series);
  AddRunName(app, o.run);
  app->add_option("activation", o.activation, "Name of the activation, as diff prints it")->required();
  TakesParsed(app->add_option(
                  "--stat", o.stats,
                  "Only these statistics: min, max, mean, std, l1, l2, nan, pos_inf, neg_inf, zero, numel; "
                  "one alone is plotted. update_ratio, alone: how far each update moved a weight, estimated"),
              "STATS", ParseSeriesStatistics);
  TakesParsed(app->add_option("--kind", o.kind, "Only this kind, such as output"), "KIND", ParseOneKind);
  AddRankFilter(app, o.ranks);
  app->add_option("--steps", o.steps, "Only these steps, such as 0-9,20,100-");
  app->add_option("--path", o.output_path, "Only this position in a nested output, such as 0");
  app->add_flag("--by-rank", o.by_rank,
                "Show each rank's part of a tensor that is split over ranks (also with --rank)");
}

void AddTop(CommandSet& commands) {
  const auto [app, o] = commands.Add<TopOptions>(
      "top", "Lists the extreme tensors of a step",
      "  statctl top base                                  # the largest norms of the newest step\n"
      "  statctl top base --by nan --step 120              # where the NaN are\n"
      "  statctl top base --by absmax --kinds output --rank 0 --count 5\n",
      Top);
  AddRunName(app, o.run);
  TakesParsed(app->add_option("--by", o.by,
                              "Order by l2, l1, absmax, rms, std, mean (largest |mean|), max, min (smallest "
                              "first), nan, inf, zero_fraction, numel")
                  ->capture_default_str(),
              "STAT", ParseTopBy);
  app->add_option("--step", o.step, "Which step (default: the newest)")->check(StepNumber());
  AddRankFilter(app, o.ranks);
  AddKindFilter(app, o.kinds, "output,grad_output (default: all, except integer tensors)");
  app->add_option("--count", o.count, "Rows")->check(CLI::Range(1, 10'000))->capture_default_str();
  app->add_flag("--by-rank", o.by_rank,
                "Show each rank's part of tensors that are split over ranks (also with --rank)");
}

void AddScalars(CommandSet& commands) {
  const auto [app, o] = commands.Add<ScalarsOptions>(
      "scalars", "Plots the loss and other scalars over the steps",
      "  statctl scalars base\n"
      "  statctl scalars base --name loss --rank 0 --format csv\n"
      "  statctl scalars base --against ort   # both values and the first difference; exit code: 0 same, "
      "1 different\n",
      Scalars);
  AddRunName(app, o.run);
  app->add_option("--against", o.against, "Compare with this run");
  app->add_option("--name", o.name,
                  "Only this scalar. If ranks hold parts of the model, grad_norm is that of the whole model");
  app->add_option("--rank", o.ranks, "Only these ranks");
  app->add_option("--steps", o.steps, "Only these steps");
  app->add_flag("--by-rank", o.by_rank,
                "With --name grad_norm: show that of each rank's part (also with --rank)");
  app->add_flag(
      "--all", o.all,
      "Also the states of random generators (rng/...), which diff compares; json and csv have them always");
}

void AddMemory(CommandSet& commands) {
  const auto [app, o] = commands.Add<MemoryOptions>(
      "memory", "Shows memory by phase, and what raised the peak",
      "  statctl memory base\n  statctl memory base --rank 0 --step 12\n"
      "  statctl memory base --modules           # if watch(model, memory=\"modules\") recorded them\n"
      "  statctl memory base --format ort        # the lines of ONNX Runtime's memory observer\n",
      Memory);
  AddRunName(app, o.run);
  AddRankFilter(app, o.ranks);
  AddStepFilter(app, o.steps);
  app->add_flag("--modules", o.modules, "By module instead of by phase");
  AddRowLimit(app, o.top, "Number of rows to print");
  app->add_flag("--all", o.all, "Every row");
}

void AddDensity(CommandSet& commands) {
  const auto [app, o] = commands.Add<DensityOptions>(
      "density", "Shows the share of each input that is not padding",
      "  statctl density base\n  statctl density base --input input_ids --steps 0-99 --format csv\n"
      "  statctl density base --format ort       # the table of ONNX Runtime's inspector\n",
      Density);
  AddRunName(app, o.run);
  app->add_option("--input", o.input, "Only this input");
  AddRankFilter(app, o.ranks);
  AddStepFilter(app, o.steps);
}

void AddExponents(CommandSet& commands) {
  const auto [app, o] = commands.Add<ExponentsOptions>(
      "exponents", "Shows what tensors would lose in fp16, bf16, fp8",
      "  statctl exponents base                              # every tensor, largest loss in f16 first\n"
      "  statctl exponents base --dtype e4m3 --kinds weight_grad\n"
      "  statctl exponents base blocks.1.ln2 --step 300      # its histogram\n"
      "\nHistograms are recorded on request: STATAGENT_EXPONENTS='*@0-,every=100'. docs/exponents.md\n",
      Exponents);
  AddRunName(app, o.run);
  app->add_option("activation", o.activation, "Only this activation, with its histogram");
  TakesParsed(app->add_option("--dtype", o.dtype,
                              "f16, bf16, e4m3 or e5m2 (default: f16; all four for a single activation)"),
              "DTYPE", ParseNarrowFormat);
  AddRankFilter(app, o.ranks);
  AddStepFilter(app, o.steps);
  AddKindFilter(app, o.kinds, "output,weight_grad", "--kinds,--kind");
  AddRowLimit(app, o.top, "How many tensors to list");
}

}  // namespace statcollect::client
