#include <algorithm>
#include <filesystem>
#include <system_error>

#include "client/command_line/declarations.h"
#include "client/commands/commands.h"
#include "common/choice.h"
#include "common/names.h"

namespace statcollect::client {

void AddMove(CommandSet& commands, const std::string& name) {
  commands
      .AddGroup(name, "Imports, exports and copies runs",
                "  statctl move import ort out_pt --run base\n"
                "  statctl move export csv base base.csv\n"
                "  statctl move migrate --to new:7433        # to another collector\n")
      ->require_subcommand(1);
}

void AddExport(CommandSet& commands, const std::string& name) {
  const auto [app, o] = commands.Add<ExportOptions>(
      name, "Exports a run as csv, parquet, tensorboard, ...",
      "  statctl move export csv base base.csv                    # one line per tensor and step\n"
      "  statctl move export json base - | gzip > base.jsonl.gz   # everything, one object per "
      "line\n"
      "  statctl move export ort base dump/base --step 0-9       # step_<k>/<name>_forward and "
      "_backward\n"
      "  statctl move export parquet base base.parquet --sketch\n"
      "  statctl move export tensorboard base logs/base --stat l2,max\n",
      Export);
  TakesOneOf(app->add_option("to", o.format, "csv, json, ort, parquet or tensorboard")->required(),
             "FORMAT", {"csv", "json", "ort", "parquet", "tensorboard"});
  AddRunName(app, o.run);
  app->add_option("path", o.path,
                  "File (csv, json, parquet) or folder to make; '-': standard output (csv, json)")
      ->required();
  CLI::Option* ranks = AddRankFilter(app, o.ranks);
  CLI::Option* whole =
      app->add_flag("--whole", o.whole,
                    "Whole tensors instead of each rank's parts (default for ort and tensorboard)");
  app->add_flag("--by-rank", o.by_rank,
                "Each rank's parts of tensors (default for csv, json and parquet, and with --rank)")
      ->excludes(whole);
  whole->excludes(ranks);
  AddStepFilter(app, o.steps);
  AddKindFilter(app, o.kinds, "output,grad_output; no scalars or events");
  app->add_flag("--sketch", o.sketches, "csv, json, parquet: include the sketches");
  app->add_flag("--samples", o.samples,
                "csv, json, parquet: include the first elements, where recorded");
  TakesParsed(app->add_option("--stat", o.statistics,
                              "tensorboard: only these statistics (default: min, max, mean, std, "
                              "l2, and nonzero counts of NaN "
                              "and infinities)"),
              "STATS", ParseExportStatistics);
  app->add_flag("--overwrite", o.overwrite, "Replace the output of an earlier export");
}

namespace {

// A word for the tool and the path, or the path alone.
void AddDump(CLI::App* app, ImportOptions& o) {
  const auto check = [](const std::string& text) -> std::string {
    const std::vector<std::string> words = {"ort",       "mindspore",         "msprobe", "sglang",
                                            "debugmode", "transformerengine", "spill"};
    std::error_code error;
    if (std::find(words.begin(), words.end(), text) != words.end() ||
        std::filesystem::exists(text, error))
      return "";
    return text.find('/') == std::string::npos
               ? NotOneOf(text, words)
               : "found '" + Printable(text, 1000) + "'; expected a dump that is there";
  };
  app->add_option(
         "dump", o.format,
         "ort (ONNX Runtime statistics), mindspore (statistic.csv), msprobe (dump.json), "
         "sglang (.pt), debugmode (saved logs of PyTorch's DebugMode), transformerengine "
         "(statistics logs), spill (files that the agent left in its spill_dir). Left out: "
         "recognised by the names of the files")
      ->required()
      ->type_name("DUMP")
      ->check(CLI::Validator(check, ""));
  app->add_option("path", o.path, "Folder or file of the dump");
}

}  // namespace

void AddImport(CommandSet& commands, const std::string& name) {
  const auto [app, o] = commands.Add<ImportOptions>(
      name, "Imports another tool's dump as a run",
      "  statctl move import dumper/dump_1 --run base       # of any tool that is known\n"
      "  statctl move import ort dumps --run base --rank-pattern 'out_{rank}'     # folders out_0, "
      "out_1, ...\n"
      "  statctl move import msprobe dump_path --run npu --step 0-9\n"
      "  statctl move import mindspore dump_path --run ms --dry-run               # reads and "
      "reports only\n"
      "  statctl move import ort out_pt --run base --if-exists replace --strict\n"
      "  statctl move import spill /scratch/statagent       # records that training jobs could not "
      "send\n"
      "\nA bad file ends the import with its name and line; what was read before it stays stored "
      "(statctl "
      "rm\n"
      "removes it). --keep-going skips bad files and counts them; --strict reads everything first "
      "and\n"
      "stores nothing if any of it is bad. Formats and mapping: docs/import-export.md.\n",
      Import);
  AddDump(app, o);
  app->add_option("--run", o.run, "Name of the new run (spill: default is the recorded name)");
  app->add_option("--rank", o.rank, "The folder's rank (default: from the dump, otherwise 0)")
      ->check(CLI::Range(0, 1'000'000));
  app->add_option("--rank-pattern", o.rank_pattern,
                  "Name pattern of the ranks' folders in PATH, with {} or {rank} for the number, "
                  "such as rank{}");
  app->add_option("--world-size", o.world_size, "Number of ranks (default: the highest rank + 1)")
      ->check(CLI::Range(1, 1'000'001));
  app->add_option(
      "--launch", o.launch,
      "When importing rank by rank: imports with the same text and --world-size join the same "
      "attempt of the run");
  AddStepFilter(app, o.steps);
  TakesOneOf(app->add_option("--if-exists", o.if_exists,
                             "If the run has data: error, replace it, append a launch to it")
                 ->capture_default_str(),
             "POLICY", {"error", "replace", "append"});
  app->add_flag("--trust-std", o.trust_std,
                "ort: trust the printed std (right in the first version and with run_on_cpu); "
                "otherwise it is not compared");
  app->add_flag("--samples", o.samples, "ort: also keep the printed first elements");
  app->add_flag("--dry-run", o.dry_run, "Read and report, store nothing; needs no collector");
  CLI::Option* strict =
      app->add_flag("--strict", o.strict, "Store nothing unless everything can be read");
  app->add_flag("--keep-going", o.keep_going, "Skip and count bad files")->excludes(strict);
}

void AddMigrate(CommandSet& commands, const std::string& name) {
  const auto [app, o] = commands.Add<MigrateOptions>(
      name, "Copies runs to another collector",
      "  statctl --collector old:7433 move migrate --to new:7433\n"
      "  statctl move migrate --to new:7433 --run base --run 'gpt-*'\n"
      "  statctl move migrate --to new:7433 --dry-run                 # says what would be copied\n"
      "  statctl --token-file old.token move migrate --to new:7433 --to-token-file new.token "
      "--to-tls-ca ca.pem\n"
      "\nIf it is interrupted, the same command goes on where it was. Both tokens need the scope "
      "admin. Exit\n"
      "codes: 0 both sides hold the same, 1 some run was not copied or differs, 2 a collector does "
      "not answer\n"
      "(--timeout: after so many seconds without progress, 60 by default).\n",
      Migrate);
  app->add_option("--to", o.to,
                  "gRPC address of the collector that receives them, HOST:PORT or unix:/PATH")
      ->required();
  app->add_option("--run", o.runs,
                  "Only these runs, names or patterns such as 'gpt-*' (default: all)");
  app->add_flag("--dry-run", o.dry_run, "Say what would be copied; write nothing");
  app->add_option("--to-token-file", o.to_token_file, "File with the token for --to");
  app->add_option("--to-project", o.to_project, "Project there (default: the token's)");
  app->add_option("--to-tls-ca", o.to_tls_ca, "ca.pem of that collector; turns TLS on");
  app->add_option("--to-tls-cert", o.to_tls_cert, "PEM file of your own certificate for it");
  app->add_option("--to-tls-key", o.to_tls_key, "PEM file of its private key");
}

}  // namespace statcollect::client
