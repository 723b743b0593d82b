// statcollect-bench ingest
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include <grpcpp/grpcpp.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/ingest/commands.h"
#include "bench/ingest/daemon.h"
#include "bench/ingest/network.h"
#include "bench/ingest/record_maker.h"
#include "bench/ingest/sender.h"
#include "statcollect/v1/admin.grpc.pb.h"

namespace statcollect::bench {
namespace {

using nlohmann::json;

struct Options {
  SendOptions send;
  MakerOptions maker;
  std::uint32_t activations = 1000;
  double repeat = 0;
  double seconds = 0;
  std::string spawn, data_dir, durability = "fsync", if_exists = "error";
  bool reopen = false;
};

Result<v1::GetStatusResponse> GetStatus(const std::string& collector) {
  const auto stub = v1::Admin::NewStub(grpc::CreateChannel(collector, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  v1::GetStatusResponse response;
  const grpc::Status status = stub->GetStatus(&context, {}, &response);
  if (status.ok()) return response;
  return Status(static_cast<Code>(status.error_code()),
                "ask the collector's status: " + status.error_message());
}

int Fail(const Status& status) {
  std::cerr << "statcollect-bench: " << status.message() << '\n';
  return 1;
}

double At(const std::vector<float>& sorted, double quantile) {
  if (sorted.empty()) return 0;
  const auto last = static_cast<double>(sorted.size() - 1);
  return 1e3 * static_cast<double>(sorted[static_cast<std::size_t>(quantile * last)]);
}

json UseJson(const ProcessUse& before, const ProcessUse& after, std::uint64_t records) {
  const double cpu = after.cpu_seconds - before.cpu_seconds;
  return {{"cpu_seconds", cpu},
          {"cpu_ns_per_record", records > 0 ? 1e9 * cpu / static_cast<double>(records) : 0},
          {"rss_peak_bytes", after.rss_peak_bytes}};
}

json StoredJson(const StoredBytes& stored, std::uint64_t records) {
  const double per_record =
      records > 0 ? static_cast<double>(stored.total()) / static_cast<double>(records) : 0;
  return {{"bytes", stored.total()},
          {"tables", stored.tables},
          {"log", stored.log},
          {"other", stored.other},
          {"bytes_per_record", per_record}};
}

json ResultJson(const SendResult& sent) {
  double first = sent.seconds, last = 0;
  for (const StreamResult& stream : sent.streams) {
    first = std::min(first, stream.done_seconds);
    last = std::max(last, stream.done_seconds);
  }
  const auto [fewest, most] = std::minmax_element(
      sent.streams.begin(), sent.streams.end(),
      [](const StreamResult& a, const StreamResult& b) { return a.stat_records < b.stat_records; });
  return {{"seconds", sent.seconds},
          {"records", sent.records},
          {"stat_records", sent.stat_records},
          {"records_per_second", static_cast<double>(sent.stat_records) / sent.seconds},
          {"batches", sent.batches},
          {"wire_bytes", sent.bytes},
          {"wire_bytes_per_record", static_cast<double>(sent.bytes) / static_cast<double>(sent.stat_records)},
          {"fsync", sent.fsync},
          {"ack_ms",
           {{"p50", At(sent.ack_seconds, 0.5)},
            {"p99", At(sent.ack_seconds, 0.99)},
            {"max", At(sent.ack_seconds, 1)}}},
          {"streams",
           {{"first_done_seconds", first},
            {"last_done_seconds", last},
            {"fewest_records", fewest->stat_records},
            {"most_records", most->stat_records}}}};
}

json ParametersJson(const Options& o) {
  return {{"streams", o.send.streams}, {"steps", o.send.steps}, {"activations", o.activations},
          {"sketch", o.maker.sketch},  {"repeat", o.repeat},    {"batch_records", o.send.batch_records},
          {"seconds", o.seconds},      {"seed", o.maker.seed},  {"durability", o.durability}};
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
  std::fprintf(stderr, "%-34s %12.0f\n", "sender, CPU ns a record", number("/sender/cpu_ns_per_record"));
  std::fprintf(stderr, "%-34s %12.0f\n", "daemon, CPU ns a record", number("/daemon/cpu_ns_per_record"));
  std::fprintf(stderr, "%-34s %12.0f\n", "daemon until stopped, ns a record",
               number("/daemon_stopped/cpu_ns_per_record"));
  std::fprintf(stderr, "%-34s %12.1f\n", "sender, peak RSS, MiB", number("/sender/rss_peak_bytes") / 0x1p20);
  std::fprintf(stderr, "%-34s %12.1f\n", "daemon, peak RSS, MiB", number("/daemon/rss_peak_bytes") / 0x1p20);
  std::fprintf(stderr, "%-34s %12.2f\n", "batch to acknowledgement, p50 ms", number("/ack_ms/p50"));
  std::fprintf(stderr, "%-34s %12.2f\n", "batch to acknowledgement, p99 ms", number("/ack_ms/p99"));
  std::fprintf(stderr, "%-34s %12.3f\n", "first stream done, s", number("/streams/first_done_seconds"));
  std::fprintf(stderr, "%-34s %12.3f\n", "last stream done, s", number("/streams/last_done_seconds"));
  std::fprintf(stderr, "%-34s %12.0f\n", "commits", number("/commits"));
}

// Stops the daemon; with --reopen starts it once more, which writes its log into tables.
Status Settle(const Options& o, SpawnedServer& server, const ProcessUse& before, std::uint64_t records,
              json* out) {
  ProcessUse use;
  STATCOLLECT_RETURN_IF_ERROR(server.Stop(&use));
  (*out)["daemon_stopped"] = UseJson(before, use, records);
  (*out)["stored_stopped"] = StoredJson(MeasureStored(o.data_dir), records);
  if (!o.reopen) return Status::Ok();
  const auto begin = std::chrono::steady_clock::now();
  auto again = SpawnedServer::Start(o.spawn, DaemonArguments(o.data_dir, o.durability));
  if (!again.ok()) return again.status();
  (*out)["reopen_seconds"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  STATCOLLECT_RETURN_IF_ERROR(again->Stop(nullptr));
  (*out)["stored_reopened"] = StoredJson(MeasureStored(o.data_dir), records);
  return Status::Ok();
}

int Ingest(Options o) {
  o.send.if_exists = o.if_exists == "replace"  ? IfExists::kReplace
                     : o.if_exists == "append" ? IfExists::kAppend
                                               : IfExists::kError;
  o.send.time_max = std::chrono::duration<double>(o.seconds);
  if (o.seconds > 0) o.send.steps = std::numeric_limits<std::uint64_t>::max();
  const Network network(o.activations, o.repeat);
  const RecordMaker maker(network, o.maker);
  std::optional<SpawnedServer> server;
  if (!o.spawn.empty()) {
    auto started = SpawnedServer::Start(o.spawn, DaemonArguments(o.data_dir, o.durability));
    if (!started.ok()) return Fail(started.status());
    server.emplace(*std::move(started));
    o.send.collector = server->address();
  }
  const auto status_before = GetStatus(o.send.collector);
  if (!status_before.ok()) return Fail(status_before.status());
  const pid_t daemon = server ? server->pid() : static_cast<pid_t>(status_before->pid());
  const auto daemon_before = ReadUse(daemon), sender_before = ReadUse(getpid());

  Progress progress(o.send.streams);
  const auto sent = Send(o.send, maker, &progress);
  if (!sent.ok()) return Fail(sent.status());

  const auto sender_after = ReadUse(getpid()), daemon_after = ReadUse(daemon);
  const auto status_after = GetStatus(o.send.collector);
  if (!status_after.ok()) return Fail(status_after.status());
  json out = ResultJson(*sent);
  out["parameters"] = ParametersJson(o);
  out["run"] = o.send.run;
  out["collector"] = status_after->version();
  out["commits"] = status_after->commits_total() - status_before->commits_total();
  out["durable_records"] = status_after->records_total() - status_before->records_total();
  const std::uint64_t records = sent->stat_records;
  if (sender_before.ok() && sender_after.ok())
    out["sender"] = UseJson(*sender_before, *sender_after, records);
  if (daemon_before.ok() && daemon_after.ok())
    out["daemon"] = UseJson(*daemon_before, *daemon_after, records);
  if (!o.data_dir.empty()) out["stored_running"] = StoredJson(MeasureStored(o.data_dir), records);
  if (server) {
    if (Status settled = Settle(o, *server, *daemon_before, records, &out); !settled.ok())
      return Fail(settled);
  }
  PrintTable(out);
  std::cout << out.dump(1) << '\n';
  return 0;
}

}  // namespace

Command AddIngest(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("ingest", "Send records of N ranks as fast as the collector takes them");
  auto* collector =
      command->add_option("--collector", o->send.collector, "Address of a running statcollectord, HOST:PORT");
  auto* spawn = command->add_option("--spawn", o->spawn, "A statcollectord to start, and to stop in the end")
                    ->excludes(collector);
  auto* data_dir =
      command->add_option("--data-dir", o->data_dir, "Its data folder; with --collector: measured only");
  spawn->needs(data_dir);
  command->add_option("--durability", o->durability, "Of the spawned daemon: fsync or process")
      ->check(CLI::IsMember({"fsync", "process"}))
      ->capture_default_str();
  command->add_flag("--reopen", o->reopen,
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
  command->add_option("--activations", o->activations, "Records of a rank and step")
      ->check(CLI::Range(1u, 20000u))
      ->capture_default_str();
  command->add_option("--sketch", o->maker.sketch, "Sums in a sketch")
      ->check(CLI::IsMember({0, 16, 32, 64}))
      ->capture_default_str();
  command->add_option("--repeat", o->repeat, "Share of activations that are bit-identical in every step")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command->add_option("--batch-records", o->send.batch_records, "Records of a batch, at most")
      ->check(CLI::Range(1u, 65000u))
      ->capture_default_str();
  command->add_option("--seed", o->maker.seed, "Same seed and sizes: bit-identical records")
      ->capture_default_str();
  command->add_option("--differ-from", o->maker.differ_from,
                      "From this step on all records differ from those without this flag");
  return [o, collector, spawn] {
    if (collector->count() + spawn->count() != 1) {
      std::cerr << "statcollect-bench ingest: found neither --collector nor --spawn; expected one of them\n";
      return 2;
    }
    return Ingest(*o);
  };
}

}  // namespace statcollect::bench
