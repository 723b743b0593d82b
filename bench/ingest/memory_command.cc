// statcollect-bench memory: a diff of as many records as wanted, in this process, and the memory it
// takes.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/ingest/commands.h"
#include "bench/ingest/daemon.h"
#include "bench/ingest/measures.h"
#include "bench/ingest/network.h"
#include "bench/ingest/record_flags.h"
#include "bench/ingest/repeated_runs.h"
#include "server/query/query.h"
#include "server/store/rocksdb/rocksdb_store.h"

namespace statcollect::bench {
namespace {

using nlohmann::json;

struct MemoryOptions {
  RepeatedOptions runs;
  std::uint32_t activations = 1000;
  double repeat = 0;
  std::uint32_t heat_map = 0;
  std::string directory;
};

// The store for all that is not simulated: alarms, noise, events. It stays empty.
Result<json> MeasureMemory(const MemoryOptions& o) {
  auto behind = OpenRocksDbStore(o.directory);
  if (!behind.ok()) return behind.status();
  const Network network(o.activations, o.repeat);
  RepeatedRuns store(**behind, network, o.runs);
  const query::QueryEngine engine(store);
  query::DiffRequest request{.run_a = RepeatedRuns::kA, .run_b = RepeatedRuns::kB};
  request.heat_map_columns = request.heat_map_rows = o.heat_map;
  const auto before = ReadUse(getpid());
  if (!before.ok()) return before.status();
  const auto begin = std::chrono::steady_clock::now();
  const auto report = engine.Diff(request);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!report.ok()) return report.status();
  const auto after = ReadUse(getpid());
  if (!after.ok()) return after.status();
  const std::uint64_t pairs = std::uint64_t{o.runs.ranks} * o.runs.steps * (o.activations + 1);
  const auto expected = o.runs.identical ? query::Verdict::kIdentical : query::Verdict::kDiverged;
  if (report->compared.records != pairs || report->verdict != expected) {
    return Status(Code::kInternal, "diff: it compared " + std::to_string(report->compared.records) +
                                       " pairs, verdict " + std::string(Name(report->verdict)) +
                                       "; expected " + std::to_string(pairs) + ", " +
                                       std::string(Name(expected)));
  }
  std::fprintf(stderr, "%.0f M records in %.1f s: %.0f MiB at most, %.0f MiB before\n",
               2e-6 * static_cast<double>(pairs), seconds,
               static_cast<double>(after->rss_peak_bytes) / 1048576.0,
               static_cast<double>(before->rss_bytes) / 1048576.0);
  return json{{"records", 2 * pairs},
              {"pairs", pairs},
              {"diverged", report->compared.diverged},
              {"seconds", seconds},
              {"cpu_ns_per_pair",
               1e9 * (after->cpu_seconds - before->cpu_seconds) / static_cast<double>(pairs)},
              {"rss_bytes_before", before->rss_bytes},
              {"rss_peak_bytes", after->rss_peak_bytes},
              {"parameters",
               {{"ranks", o.runs.ranks},
                {"steps", o.runs.steps},
                {"activations", o.activations},
                {"sketch", o.runs.sketch},
                {"identical", o.runs.identical},
                {"heat_map", o.heat_map}}}};
}

}  // namespace

Command AddMemory(CLI::App& app) {
  auto o = std::make_shared<MemoryOptions>();
  CLI::App* command = app.add_subcommand("memory",
                                         "Diff two simulated runs in this process (a few steps of "
                                         "records, handed out again and again) and measure the "
                                         "memory it takes");
  command
      ->add_option("--dir", o->directory,
                   "A folder for an empty store, absent or empty; it is left behind")
      ->required();
  command->add_option("--ranks", o->runs.ranks, "Ranks of a run")
      ->check(CLI::Range(1u, 4096u))
      ->capture_default_str();
  command->add_option("--steps", o->runs.steps, "Steps of a rank")
      ->check(CLI::Range(1u, 100'000'000u))
      ->capture_default_str();
  command->add_flag("--identical", o->runs.identical,
                    "Both runs have the same records; otherwise all differ");
  command->add_option("--heat-map", o->heat_map, "Also make a heat map of so many columns and rows")
      ->check(CLI::Range(1u, query::kHeatMapSideMax));
  AddRecordFlags(command, &o->activations, &o->runs.sketch, &o->repeat);
  return [o] {
    const auto out = MeasureMemory(*o);
    if (!out.ok()) return Fail(out.status());
    std::cout << out->dump(1) << '\n';
    return 0;
  };
}

}  // namespace statcollect::bench
