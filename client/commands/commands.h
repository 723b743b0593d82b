// One function per command: it queries, prints and returns the exit code. Each is in the file of
// its name (rm in remove.cc, pin in keep.cc, set-steps in record.cc); their options and help are in
// client/command_line.
#ifndef STATCOLLECT_CLIENT_COMMANDS_COMMANDS_H_
#define STATCOLLECT_CLIENT_COMMANDS_COMMANDS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/commands/captures.h"
#include "client/commands/session.h"
#include "client/commands/training.h"
#include "statcollect/v1/query.pb.h"

namespace statcollect::client {

// How many ranks of the newest attempt record. A collector of an earlier release does not say.
inline std::uint32_t RanksExpected(const v1::RunSummary& run) {
  return run.ranks_expected() > 0 ? run.ranks_expected() : run.world_size();
}

struct RunsOptions {
  std::string filter, state;  // a pattern; empty: all
  std::string sort = "name";  // or start, steps, records
  bool twins = false;         // also twins, each below its base
};
int ListRuns(Session& session, const RunsOptions& options);
// What show prints of a run; no flag: its ranks, steps, events and configuration.
struct ShowOptions {
  std::string run, ranks, steps;
  bool memory = false, padding = false, events = false;  // at most one
  bool modules = false, all = false;                     // of memory
  std::optional<std::uint32_t> top;                      // of memory
  std::string input;                                     // of padding
  std::string kinds;                                     // of events, as the next
  std::optional<std::uint64_t> since_step;
  bool follow = false;
};
int Show(Session& session, const ShowOptions& options);

struct DiffOptions {
  std::string run_a, run_b;
  std::optional<double> tolerance;
  bool exact = false, all = false;
  std::string ranks, steps, kinds;
  std::uint32_t top = 20;
  std::string map;    // file of rules
  std::string noise;  // runs that repeat run_a, separated by commas
  bool no_noise = false, no_alignment = false, first_only = false;
  bool merge_ranks = false, logical = false, by_rank = false;
  std::string golden;   // file to use instead of run_a
  std::string junit;    // file for the verdict
  std::string publish;  // TRACKER or TRACKER:RUN that gets the verdict
  bool tokens = false;  // by token: CompareTokens
};
// The same tokens in two programs, of these options those that apply: exit code as Diff.
int CompareTokens(Session& session, const DiffOptions& options);
int Diff(Session& session, const DiffOptions& options);
// A diff with a heat map in one file for a browser (report_file.cc).
struct ReportOptions {
  DiffOptions diff;
  std::string out;
  bool overwrite = false;
};
int Report(Session& session, const ReportOptions& options);
// Prints the answer of two runs as Diff does.
void PrintDiff(Session& session, const v1::DiffRequest& request, const v1::DiffReport& report);
// The report for these options, with a heat map of at most so many columns and rows; 0: none.
Result<v1::DiffReport> AskDiff(Session& session, const DiffOptions& options,
                               std::uint32_t columns = 0, std::uint32_t rows = 0);
Result<v1::DiffRequest> DiffRequestOf(const DiffOptions& options);
// Prints a link to the page: the list of runs, run_a alone, or the comparison. It logs a browser
// in, if that is needed.
int OpenPage(Session& session, const DiffOptions& options);
int ExitCodeOf(v1::Verdict verdict);
// The full text report (report.cc).
Page RenderDiff(const v1::DiffReport& report);
// Only its first sentence.
Page RenderVerdict(const v1::DiffReport& report);

struct GoldenOptions {
  std::string run, path, ranks, steps;
  bool overwrite = false;
};
int SaveGolden(Session& session, const GoldenOptions& options);

struct RunOptions {
  std::string run;
  std::vector<std::string> command;
  std::optional<std::uint64_t> seed;  // a twin of one unit in the last place, with this seed
  std::string steps;                  // to record; empty: as the program has it
  std::string if_exists = "error";    // or replace, append
  std::string watch = "auto";         // or off: the program calls the agent itself
};
// Runs the command and returns its exit code; kExitNoAnswer if it could not be started.
int RunTraining(Session& session, const RunOptions& options);

struct TwinsOptions {
  Training training;   // of the base
  bool quick = false;  // two twins, without the ladder
  bool once = false;   // noise in the loaded weights only
  bool again = false;  // replaces twins that exist
  bool show = true;    // the output of the trainings
  bool hint = true;    // how to record one again that exists
};
int RecordTwins(Session& session, const TwinsOptions& options);
// The same for another command: tells of each twin, and prints no answer.
Status MakeTwins(Session& session, const TwinsOptions& options);
// Those that these commands have made.
Status RemoveTwins(Session& session, const std::string& run);

// A whole comparison of two trainings: see docs/run.md.
struct AbOptions {
  std::vector<std::string> commands;      // A, or A --- B
  std::vector<std::string> env_a, env_b;  // NAME=VALUE
  std::string names = "ab-a,ab-b";        // of the runs
  std::optional<std::uint64_t> steps;     // that are trained and recorded
  bool quick = false, no_twins = false;   // two twins; none
  bool no_stop = false;                   // record `steps` steps, but train to the end
  bool reuse = false;                     // A as it was recorded last time, if nothing has changed
  bool zoom = false;                      // train both again, with a zoom into the root
  bool show = false;                      // the output of the trainings
};
int CompareTrainings(Session& session, const AbOptions& options);

struct BisectOptions {
  std::string good, bad;  // revisions of git
  std::vector<std::string> command;
  std::optional<std::uint64_t> steps;    // that are trained; absent: all
  bool quick = false, no_twins = false;  // of the good one: two twins; none
  bool show = false;                     // the output of the trainings
};
// Checks out commits in the working tree, and restores it.
int Bisect(Session& session, const BisectOptions& options);

int SaveNoise(Session& session, const std::string& run, const std::string& repeats);
int ShowNoise(Session& session, const std::string& run);
int RemoveNoise(Session& session, const std::string& run);

struct SeriesOptions {
  std::string run, activation, stats, kind, ranks, steps, output_path;
  bool by_rank = false;
};
int Series(Session& session, const SeriesOptions& options);
// The statistics of --stat, in the words of the option. kInvalidArgument names the first that is
// none, and all.
Result<std::vector<std::string>> ParseSeriesStatistics(const std::string& text);

struct ScalarsOptions {
  std::string run, name, ranks, steps;
  std::string against;  // empty: only `run`
  bool by_rank = false;
  bool all = false;  // tables also have what is recorded for diff alone
};
int Scalars(Session& session, const ScalarsOptions& options);

struct MemoryOptions {
  std::string run, ranks, steps;
  bool modules = false, all = false;
  std::uint32_t top = 48;  // rows of the table, unless `all`
};
int Memory(Session& session, const MemoryOptions& options);

struct DensityOptions {
  std::string run, input, ranks, steps;
};
int Density(Session& session, const DensityOptions& options);

struct ZoomOptions {
  std::string run_a, run_b, module, ranks, steps;  // module empty: all
  bool train = false;                              // both again, if they have not zoomed
  bool yes = false;                                // without asking
};
// The first operator that makes the difference within modules that both runs have zoomed; otherwise
// how to zoom.
int Zoom(Session& session, const ZoomOptions& options);

struct WeightsOptions {
  std::string run_a, run_b, map;      // map: a built-in one or a file; empty: none
  std::optional<std::uint64_t> step;  // absent: the newest of both
};
// Whether A's weights arrived in B. kExitSame: all of them, as far as can be known; kExitDiverged.
int CompareWeights(Session& session, const WeightsOptions& options);

struct ExponentsOptions {
  std::string run, activation, kinds, ranks, steps, dtype;  // activation empty: all, one line each
  std::uint32_t top = 40;
};
int Exponents(Session& session, const ExponentsOptions& options);
// A named tensor over the steps, the extreme ones of a step, or what they would lose in narrower
// formats.
struct TensorOptions {
  std::string run, name, stats, by, dtype, kinds, ranks, steps, output_path;
  bool exponents = false, by_rank = false;
  std::optional<std::uint32_t> count;
};
int ShowTensor(Session& session, const TensorOptions& options);
// "f16", "bf16", "e4m3", "e5m2", also "f8e4m3"; unspecified: empty.
Result<v1::DType> ParseNarrowFormat(const std::string& text);

struct MapOptions {
  std::string name, run_a, run_b;
};
int ListMaps(Session& session, const MapOptions& options);
int ShowMap(Session& session, const MapOptions& options);
int ProposeMap(Session& session, const MapOptions& options);

struct TopOptions {
  std::string run, by = "l2", ranks, kinds;
  std::optional<std::uint64_t> step;  // absent: the newest
  std::uint32_t count = 20;
  bool by_rank = false;
};
int Top(Session& session, const TopOptions& options);
Result<v1::TopBy> ParseTopBy(const std::string& text);  // the name used in JSON: "zero_fraction"

struct ConfigOptions {
  std::string run_a, run_b;  // b empty: a alone
  bool all = false;
};
int Config(Session& session, const ConfigOptions& options);

struct RanksOptions {
  std::string run, ranks, steps, kinds;
  std::optional<double> tolerance;
  std::uint32_t top = 100;
};
int CheckRanks(Session& session, const RanksOptions& options);

struct EventsOptions {
  std::string run, ranks, kinds;
  std::optional<std::uint64_t> since_step;
  bool follow = false;
};
int Events(Session& session, const EventsOptions& options);

struct CaptureOptions {
  std::string run, ranks, out;  // out: empty, a file, or a folder
  CapturePlace place;
  std::uint64_t bytes_max = 0;  // 0: the collector's default
  double wait_seconds = 0;      // 0: no limit
  bool no_wait = false, raw = false, overwrite = false;
};
int CaptureActivation(Session& session, const CaptureOptions& options);

struct CapturesOptions {
  std::string run, activation, ranks, steps, kinds;
};
int ListCaptures(Session& session, const CapturesOptions& options);

struct DiffValuesOptions {
  std::string run_a, run_b;
  CapturePlace place;
  std::uint32_t rank = 0;
  std::optional<std::uint32_t> rank_b;  // absent: the same rank in both
  std::string activation_b;             // empty: the same name in both
};
int DiffValues(Session& session, const DiffValuesOptions& options);

struct WatchOptions {
  std::string run, against;  // against: empty if not given
  double interval_seconds = 2;
  bool once = false;
};
int Watch(Session& session, const WatchOptions& options);
struct RemoveOptions {
  std::vector<std::string> runs;  // names and patterns
  bool yes = false, force = false;
  bool twins = false;  // also those of these runs
};
int RemoveRuns(Session& session, const RemoveOptions& options);
// Exempts the run from retention, or ends the exemption.
int KeepRun(Session& session, const std::string& run, bool keep);
int RecordSteps(Session& session, const std::string& run, const std::string& steps);
int MakeCheckpoint(Session& session, const std::string& directory);

struct AuditOptions {
  std::string since, principal, method, outcome;  // empty: all
  std::uint32_t limit = 100;
};
int ListAudit(Session& session, const AuditOptions& options);
int ShowStatus(Session& session);

// --- import
struct ImportOptions {
  // format: "spill" or a DumpFormat's name; path: empty if `format` is the path, and the dump says
  // what it is.
  std::string format, path, run;
  std::optional<std::uint32_t> rank, world_size;
  std::string rank_pattern, steps, launch;
  std::string if_exists = "error";
  bool trust_std = false, samples = false;
  bool dry_run = false, strict = false, keep_going = false;
  bool keep_files = false;  // spill: also those that have been sent
  bool silent = false;      // nothing is printed but errors
};
int Import(Session& session, const ImportOptions& options);

// Copies runs from the session's collector to another one.
struct MigrateOptions {
  std::string to, to_token_file, to_project, to_tls_ca, to_tls_cert, to_tls_key;
  std::vector<std::string> runs;  // names and patterns; empty: all
  bool dry_run = false;
};
int Migrate(Session& session, const MigrateOptions& options);

struct ExportOptions {
  std::string format, run, path;  // path "-": standard output
  std::string ranks, steps, kinds, statistics;
  bool overwrite = false, sketches = false, samples = false;
  bool whole = false,
       by_rank = false;  // neither: whole tensors where the format cannot say where a part lies
};
int Export(Session& session, const ExportOptions& options);
Result<std::vector<std::string>> ParseExportStatistics(const std::string& text);  // of --stat

struct SummaryOptions {
  std::string run, like, out;  // like, out: empty if not given
  std::uint64_t step = 0;
  std::optional<std::uint32_t>
      rank;  // absent: whole tensors of a run that is cut over ranks, else rank 0
  bool overwrite = false;
};
int Summarise(Session& session, const SummaryOptions& options);

// --- shared by several commands
Table EventTable(const google::protobuf::RepeatedPtrField<v1::EventRow>& events);
// "0..99", or "none", for a run or a rank.
template <typename T>
std::string StepsText(const T& of) {
  return of.has_first_step()
             ? std::to_string(of.first_step()) + ".." + std::to_string(of.last_step())
             : "none";
}
// First columns of every CSV of tensor records.
inline const std::vector<std::string> kIdentityColumns = {
    "rank", "step", "micro_batch", "kind", "activation", "output_path", "call"};

// --- bridges to people's other tools
struct McpOptions {
  bool skill = false;  // prints the skill file instead
};
// Serves the Model Context Protocol on standard input and output until the client closes them.
int ServeMcp(Session& session, const McpOptions& options);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_COMMANDS_H_
