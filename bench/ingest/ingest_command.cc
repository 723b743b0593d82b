// statcollect-bench ingest
#include <unistd.h>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <limits>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/ingest/commands.h"
#include "bench/ingest/measures.h"
#include "bench/ingest/network.h"
#include "bench/ingest/record_flags.h"
#include "bench/ingest/record_maker.h"
#include "bench/ingest/sender.h"
#include "bench/ingest/target.h"

namespace statcollect::bench {
namespace {

using nlohmann::json;

struct IngestOptions {
  SendOptions send;
  MakerOptions maker;
  std::uint32_t activations = 1000;
  double repeat = 0;
  double seconds = 0;
  Target target;
  std::string if_exists = "error";
  bool reopen = false;
};

json ParametersJson(const IngestOptions& o) {
  return {
      {"streams", o.send.streams}, {"steps", o.send.steps}, {"activations", o.activations},
      {"sketch", o.maker.sketch},  {"repeat", o.repeat},    {"batch_records", o.send.batch_records},
      {"seconds", o.seconds},      {"seed", o.maker.seed},  {"durability", o.target.durability()}};
}

void PrintTable(const json& r) {
  const auto number = [&](const char* pointer) {
    const json::json_pointer at(pointer);
    return r.contains(at) ? r.at(at).get<double>() : 0.0;
  };
  std::fprintf(stderr, "%-34s %12.0f\n", "durable records/s", number("/records_per_second"));
  std::fprintf(stderr, "%-34s %12.3f\n", "seconds", number("/seconds"));
  std::fprintf(stderr, "%-34s %12.1f\n", "wire bytes a record", number("/wire_bytes_per_record"));
  std::fprintf(stderr, "%-34s %12.1f\n", "stored bytes a record, running",
               number("/stored_running/bytes_per_record"));
  std::fprintf(stderr, "%-34s %12.1f\n", "stored bytes a record, stopped",
               number("/stored_stopped/bytes_per_record"));
  std::fprintf(stderr, "%-34s %12.1f\n", "stored bytes a record, reopened",
               number("/stored_reopened/bytes_per_record"));
  std::fprintf(stderr, "%-34s %12.0f\n", "sender, CPU ns a record",
               number("/sender/cpu_ns_per_record"));
  std::fprintf(stderr, "%-34s %12.0f\n", "daemon, CPU ns a record",
               number("/daemon/cpu_ns_per_record"));
  std::fprintf(stderr, "%-34s %12.0f\n", "daemon until stopped, ns a record",
               number("/daemon_stopped/cpu_ns_per_record"));
  std::fprintf(stderr, "%-34s %12.1f\n", "sender, peak RSS, MiB",
               number("/sender/rss_peak_bytes") / 0x1p20);
  std::fprintf(stderr, "%-34s %12.1f\n", "daemon, peak RSS, MiB",
               number("/daemon/rss_peak_bytes") / 0x1p20);
  std::fprintf(stderr, "%-34s %12.2f\n", "batch to acknowledgement, p50 ms", number("/ack_ms/p50"));
  std::fprintf(stderr, "%-34s %12.2f\n", "batch to acknowledgement, p99 ms", number("/ack_ms/p99"));
  std::fprintf(stderr, "%-34s %12.3f\n", "first stream done, s",
               number("/streams/first_done_seconds"));
  std::fprintf(stderr, "%-34s %12.3f\n", "last stream done, s",
               number("/streams/last_done_seconds"));
  std::fprintf(stderr, "%-34s %12.0f\n", "commits", number("/commits"));
}

// Stops the daemon; with --reopen starts it once more, which writes its log into tables.
Status Settle(IngestOptions& o, const ProcessUse& before, const StoredBytes& stored,
              std::uint64_t records, json* out) {
  ProcessUse use;
  STATCOLLECT_RETURN_IF_ERROR(o.target.Stop(&use));
  (*out)["daemon_stopped"] = UseJson(before, use, records);
  (*out)["stored_stopped"] = StoredJson(stored, o.target.Stored(), records);
  if (!o.reopen) return Status::Ok();
  const auto begin = std::chrono::steady_clock::now();
  STATCOLLECT_RETURN_IF_ERROR(o.target.Start());
  (*out)["reopen_seconds"] =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  STATCOLLECT_RETURN_IF_ERROR(o.target.Stop(nullptr));
  (*out)["stored_reopened"] = StoredJson(stored, o.target.Stored(), records);
  return Status::Ok();
}

int Ingest(IngestOptions& o) {
  o.send.if_exists = o.if_exists == "replace"  ? IfExists::kReplace
                     : o.if_exists == "append" ? IfExists::kAppend
                                               : IfExists::kError;
  o.send.time_max = std::chrono::duration<double>(o.seconds);
  if (o.seconds > 0) o.send.steps = std::numeric_limits<std::uint64_t>::max();
  const Network network(o.activations, o.repeat);
  const RecordMaker maker(network, o.maker);
  const StoredBytes stored = o.target.Stored();
  if (Status started = o.target.Start(); !started.ok()) return Fail(started);
  o.send.collector = o.target.address();
  const auto status_before = o.target.GetStatus();
  if (!status_before.ok()) return Fail(status_before.status());
  const auto daemon_before = o.target.Use();
  const auto sender_before = ReadUse(getpid());

  Progress progress(o.send.streams);
  const auto sent = Send(o.send, maker, &progress);
  if (!sent.ok()) return Fail(sent.status());

  const auto sender_after = ReadUse(getpid());
  const auto daemon_after = o.target.Use();
  const auto status_after = o.target.GetStatus();
  if (!status_after.ok()) return Fail(status_after.status());
  json out = SendJson(*sent);
  out["parameters"] = ParametersJson(o);
  out["run"] = o.send.run;
  out["collector"] = status_after->version();
  out["commits"] = status_after->commits_total() - status_before->commits_total();
  out["durable_records"] = status_after->records_total() - status_before->records_total();
  const std::uint64_t records = sent->stat_records;
  if (sender_before.ok() && sender_after.ok())
    out["sender"] = UseJson(*sender_before, *sender_after, records);
  if (daemon_before && daemon_after)
    out["daemon"] = UseJson(*daemon_before, *daemon_after, records);
  if (o.target.has_data_dir())
    out["stored_running"] = StoredJson(stored, o.target.Stored(), records);
  if (o.target.spawns()) {
    if (Status settled = Settle(o, *daemon_before, stored, records, &out); !settled.ok())
      return Fail(settled);
  }
  PrintTable(out);
  std::cout << out.dump(1) << '\n';
  return 0;
}

}  // namespace

Command AddIngest(CLI::App& app) {
  auto o = std::make_shared<IngestOptions>();
  CLI::App* command = app.add_subcommand(
      "ingest",
      "Send records of N ranks, as fast as the collector takes them unless told otherwise");
  o->target.AddFlags(command);
  command->add_flag(
      "--reopen", o->reopen,
      "Start and stop the spawned daemon once more, so that no log is left, and measure again");
  command->add_option("--run", o->send.run, "Name of the run")->capture_default_str();
  command->add_option("--if-exists", o->if_exists, "error, replace or append")
      ->check(CLI::IsMember({"error", "replace", "append"}))
      ->capture_default_str();
  command->add_option("--streams", o->send.streams, "Ranks, each with a connection of its own")
      ->check(CLI::Range(1u, 4096u))
      ->capture_default_str();
  command->add_option("--threads", o->send.threads, "Threads that serve them")
      ->check(CLI::Range(1u, 64u))
      ->capture_default_str();
  command->add_option("--steps", o->send.steps, "Steps of a rank")
      ->check(CLI::Range(1u, 4'000'000'000u))
      ->capture_default_str();
  command->add_option("--seconds", o->seconds, "Instead of --steps: send for that long");
  command
      ->add_option("--records-per-second", o->send.records_per_second,
                   "Of all ranks together; 0: as many as are taken")
      ->capture_default_str();
  AddRecordFlags(command, &o->activations, &o->maker.sketch, &o->repeat);
  command->add_option("--batch-records", o->send.batch_records, "Records of a batch, at most")
      ->check(CLI::Range(1u, 65000u))
      ->capture_default_str();
  command->add_option("--seed", o->maker.seed, "Same seed and sizes: bit-identical records")
      ->capture_default_str();
  command->add_option("--differ-from", o->maker.differ_from,
                      "From this step on all records differ from those without this flag");
  return [o] { return Ingest(*o); };
}

}  // namespace statcollect::bench
