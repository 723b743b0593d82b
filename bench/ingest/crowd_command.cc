// statcollect-bench crowd: many ranks at once, without and with heavy queries: memory over time,
// and how long each of them waits.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/ingest/asker.h"
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
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSampleInterval{100};
constexpr char kCrowdBase[] = "crowd-base", kCrowdOther[] = "crowd-other";

struct CrowdOptions {
  Target target;
  SendOptions send;
  MakerOptions maker;
  std::uint32_t activations = 1000;
  double repeat = 0.5;
  double seconds = 10;
  std::uint32_t query_ranks = 8, query_clients = 1;
  std::uint64_t query_steps = 50;
};

double Since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Memory of the daemon and progress of each stream, taken at intervals by a thread of its own.
class Sampler {
 public:
  Sampler(const Target& target, const Progress& progress)
      : target_(target),
        progress_(progress),
        last_change_(progress.size(), 0),
        last_(progress.size(), 0),
        thread_([this] { Run(); }) {}
  ~Sampler() { Stop(); }
  Sampler(const Sampler&) = delete;

  void Stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
  }
  // After Stop. Stalls are counted while records were still to be sent.
  const json& samples() const { return samples_; }
  double longest_stall() const { return longest_stall_; }
  std::uint64_t rss_peak() const { return rss_peak_; }

 private:
  void Run() {
    const auto begin = Clock::now();
    for (auto next = begin; !stopping_; next += kSampleInterval) {
      std::this_thread::sleep_until(next);
      Take(Since(begin));
    }
  }

  void Take(double now) {
    std::uint64_t least = ~std::uint64_t{0}, most = 0, total = 0;
    for (std::size_t i = 0; i < progress_.size(); ++i) {
      const std::uint64_t records = progress_[i].load(std::memory_order_relaxed);
      least = std::min(least, records);
      most = std::max(most, records);
      total += records;
      if (records != last_[i] || records == 0)
        last_change_[i] = records == 0 ? last_change_[i] : now;
      longest_stall_ = std::max(longest_stall_, now - last_change_[i]);
      last_[i] = records;
    }
    const auto use = target_.Use();
    const std::uint64_t rss = use ? use->rss_bytes : 0;
    rss_peak_ = std::max(rss_peak_, rss);
    samples_.push_back({{"seconds", now},
                        {"rss_bytes", rss},
                        {"records", total},
                        {"fewest", least},
                        {"most", most}});
  }

  const Target& target_;
  const Progress& progress_;
  std::vector<double> last_change_;
  std::vector<std::uint64_t> last_;
  json samples_ = json::array();
  double longest_stall_ = 0;
  std::uint64_t rss_peak_ = 0;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

// Full diffs of a pair in which everything differs, one after another, until stopped.
class QueryLoad {
 public:
  QueryLoad(const std::string& collector, std::uint32_t clients) {
    for (std::uint32_t i = 0; i < clients; ++i)
      threads_.emplace_back([this, collector] { Run(collector); });
  }
  ~QueryLoad() { Stop(); }
  QueryLoad(const QueryLoad&) = delete;

  void Stop() {
    stopping_ = true;
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }
  json Summary() const {
    return {{"answered", answered_.load()},
            {"failed", failed_.load()},
            {"longest_seconds", 1e-6 * static_cast<double>(longest_micros_.load())}};
  }

 private:
  void Run(const std::string& collector) {
    const Asker asker(collector);
    while (!stopping_) {
      const auto begin = Clock::now();
      const auto answer = asker.Diff(kCrowdBase, kCrowdOther, "", Expect::kDiverged);
      ++(answer.ok() ? answered_ : failed_);
      if (!answer.ok()) std::cerr << "statcollect-bench: " << answer.status().message() << '\n';
      const auto micros = static_cast<std::uint64_t>(1e6 * Since(begin));
      std::uint64_t longest = longest_micros_;
      while (micros > longest && !longest_micros_.compare_exchange_weak(longest, micros)) {
      }
    }
  }

  std::atomic<bool> stopping_{false};
  std::atomic<std::uint64_t> answered_{0}, failed_{0}, longest_micros_{0};
  std::vector<std::thread> threads_;
};

Status LoadPair(const CrowdOptions& o, const Network& network) {
  for (const auto& [run, differs] : {std::pair{kCrowdBase, false}, {kCrowdOther, true}}) {
    MakerOptions maker_options = o.maker;
    if (differs) maker_options.differ_from = 0;
    const RecordMaker maker(network, maker_options);
    SendOptions send;
    send.collector = o.target.address();
    send.run = run;
    send.streams = o.query_ranks;
    send.steps = o.query_steps;
    Progress progress(send.streams);
    if (const auto sent = Send(send, maker, &progress); !sent.ok()) return sent.status();
  }
  return Status::Ok();
}

Result<json> Phase(const CrowdOptions& o, const Network& network, bool queries) {
  const RecordMaker maker(network, o.maker);
  SendOptions send = o.send;
  send.collector = o.target.address();
  send.run = queries ? "crowd-with-queries" : "crowd-alone";
  send.steps = ~std::uint64_t{0};
  send.time_max = std::chrono::duration<double>(o.seconds);
  Progress progress(send.streams);
  const auto before = o.target.Use();
  std::unique_ptr<QueryLoad> load;
  if (queries) load = std::make_unique<QueryLoad>(send.collector, o.query_clients);
  Sampler sampler(o.target, progress);
  const auto sent = Send(send, maker, &progress);
  sampler.Stop();
  if (load) load->Stop();
  if (!sent.ok()) return sent.status();
  json out = SendJson(*sent);
  out["queries"] = load ? load->Summary() : json{{"answered", 0}, {"failed", 0}};
  if (const auto after = o.target.Use(); before && after)
    out["daemon"] = UseJson(*before, *after, sent->stat_records);
  out["rss_peak_in_phase_bytes"] = sampler.rss_peak();
  out["longest_stall_seconds"] = sampler.longest_stall();
  out["samples"] = sampler.samples();
  const auto& streams = out["streams"];
  std::fprintf(
      stderr,
      "%-14s %10.0f records/s  p50 %8.1f ms  p99 %8.1f ms  streams %8.0f..%8.0f records  stall "
      "%6.2f s  RSS %6.0f MiB"
      "  %llu diffs\n",
      queries ? "with queries" : "alone", out["records_per_second"].get<double>(),
      out["ack_ms"]["p50"].get<double>(), out["ack_ms"]["p99"].get<double>(),
      streams["fewest_records"].get<double>(), streams["most_records"].get<double>(),
      sampler.longest_stall(), static_cast<double>(sampler.rss_peak()) / 0x1p20,
      out["queries"]["answered"].get<unsigned long long>());
  return out;
}

Result<json> MeasureCrowd(CrowdOptions& o) {
  const Network network(o.activations, o.repeat);
  STATCOLLECT_RETURN_IF_ERROR(o.target.Start());
  STATCOLLECT_RETURN_IF_ERROR(LoadPair(o, network));
  json out = {{"parameters",
               {{"streams", o.send.streams},
                {"seconds", o.seconds},
                {"activations", o.activations},
                {"sketch", o.maker.sketch},
                {"repeat", o.repeat},
                {"batch_records", o.send.batch_records},
                {"records_per_second", o.send.records_per_second},
                {"query_ranks", o.query_ranks},
                {"query_steps", o.query_steps},
                {"query_clients", o.query_clients}}}};
  for (const bool queries : {false, true}) {
    auto phase = Phase(o, network, queries);
    if (!phase.ok()) return phase.status();
    out[queries ? "with_queries" : "alone"] = *std::move(phase);
  }
  if (o.target.spawns()) STATCOLLECT_RETURN_IF_ERROR(o.target.Stop(nullptr));
  return out;
}

}  // namespace

Command AddCrowd(CLI::App& app) {
  auto o = std::make_shared<CrowdOptions>();
  o->send.streams = 256;
  CLI::App* command = app.add_subcommand(
      "crowd", "Many ranks at once, first alone, then while full diffs of a pair of runs go on");
  o->target.AddFlags(command);
  command->add_option("--streams", o->send.streams, "Ranks")
      ->check(CLI::Range(1u, 4096u))
      ->capture_default_str();
  command->add_option("--seconds", o->seconds, "Of each of the two phases")
      ->check(CLI::Range(0.1, 86400.0))
      ->capture_default_str();
  command
      ->add_option("--records-per-second", o->send.records_per_second,
                   "Of all ranks together; 0: as many as are taken")
      ->capture_default_str();
  AddRecordFlags(command, &o->activations, &o->maker.sketch, &o->repeat);
  command->add_option("--batch-records", o->send.batch_records, "Records of a batch, at most")
      ->check(CLI::Range(1u, 65000u))
      ->capture_default_str();
  command->add_option("--query-ranks", o->query_ranks, "Ranks of the pair that is compared")
      ->check(CLI::Range(1u, 4096u))
      ->capture_default_str();
  command->add_option("--query-steps", o->query_steps, "Its steps")
      ->check(CLI::Range(1u, 100'000'000u))
      ->capture_default_str();
  command->add_option("--query-clients", o->query_clients, "Diffs at once")
      ->check(CLI::Range(1u, 64u))
      ->capture_default_str();
  return [o] {
    const auto out = MeasureCrowd(*o);
    if (!out.ok()) return Fail(out.status());
    std::cout << out->dump(1) << '\n';
    return 0;
  };
}

}  // namespace statcollect::bench
