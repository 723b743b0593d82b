// statcollect-bench queries: a pair of runs of many ranks, steps and activations, asked through the
// real service.
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
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

constexpr std::chrono::seconds kQuestionTime{30};
constexpr char kBase[] = "queries-base", kSame[] = "queries-same", kOther[] = "queries-other";
constexpr std::uint32_t kUlps[] = {1, 1, 32, 1024, 32768};  // of the twins
constexpr char kCut[] = "queries-cut", kCutOther[] = "queries-cut-other",
               kWhole[] = "queries-whole";

struct QueriesOptions {
  Target target;
  SendOptions send;
  MakerOptions maker;
  std::uint32_t activations = 1000;
  double repeat = 0;
  int rounds = 5;
  bool load = true;
  bool layouts = false;
  std::uint32_t twins = 0;
  std::string only;  // part of the names of the questions to ask
};

struct RunToLoad {
  std::string name;
  bool differs = false;
  std::uint32_t ranks = 1, shards = 1;
  std::uint32_t twin = 0;  // its number from 1; 0: none
};

std::vector<RunToLoad> RunsOf(const QueriesOptions& o) {
  const std::uint32_t ranks = o.send.streams;
  if (o.layouts)
    return {{kCut, false, ranks, ranks}, {kCutOther, true, ranks, ranks}, {kWhole, false, 1, 1}};
  std::vector<RunToLoad> runs = {
      {kBase, false, ranks}, {kSame, false, ranks}, {kOther, true, ranks}};
  for (std::uint32_t twin = 1; twin <= o.twins; ++twin) {
    const std::string name = std::string(kBase) + ".twin-" + std::to_string(kUlps[twin - 1]) + "-" +
                             std::to_string(twin);
    runs.push_back({.name = name, .differs = true, .ranks = ranks, .twin = twin});
  }
  return runs;
}

// A twin differs everywhere by as much as its tensors are large, so that noise explains everything
// and every step that a verdict may look at is looked at.
std::map<std::string, std::string> ConfigOf(const RunToLoad& run) {
  if (run.twin == 0) return {};
  return {{"recording.perturb", std::to_string(kUlps[run.twin - 1])},
          {"recording.perturb_seed", std::to_string(run.twin)},
          {"recording.perturb_mode", "leaf"},
          {"recording.perturb_base", kBase}};
}

// One run; leaves the daemon stopped, with all of it in tables, so that its size counts.
Result<json> Load(QueriesOptions& o, const Network& network, const RunToLoad& run) {
  const StoredBytes before = o.target.Stored();
  if (o.target.spawns()) STATCOLLECT_RETURN_IF_ERROR(o.target.Start());
  MakerOptions maker_options = o.maker;
  if (run.differs) maker_options.differ_from = 0;
  maker_options.shards = run.shards;
  maker_options.salt = run.twin;
  const RecordMaker maker(network, maker_options);
  SendOptions send = o.send;
  send.collector = o.target.address();
  send.run = run.name;
  send.streams = run.ranks;
  send.config = ConfigOf(run);
  Progress progress(send.streams);
  const auto sent = Send(send, maker, &progress);
  if (!sent.ok()) return sent.status();
  if (o.target.spawns()) {
    STATCOLLECT_RETURN_IF_ERROR(o.target.Stop(nullptr));
    STATCOLLECT_RETURN_IF_ERROR(o.target.Start());
    STATCOLLECT_RETURN_IF_ERROR(o.target.Stop(nullptr));
  }
  std::fprintf(stderr, "loaded %s: %.0f records/s\n", run.name.c_str(),
               static_cast<double>(sent->stat_records) / sent->seconds);
  return json{{"run", run.name},
              {"records_per_second", static_cast<double>(sent->stat_records) / sent->seconds},
              {"stored", StoredJson(before, o.target.Stored(), sent->stat_records)}};
}

struct Question {
  std::string name;
  std::function<Result<Answer>(const Asker& asker)> ask;
  std::uint64_t expected_records;
};

// The time it takes. An answer about another number of records is an error.
Result<double> TimeOnce(const Question& question, const Asker& asker) {
  const auto begin = std::chrono::steady_clock::now();
  const auto answer = question.ask(asker);
  if (!answer.ok()) return answer.status();
  if (answer->records != question.expected_records) {
    return Status(Code::kInternal, question.name + ": the answer is about " +
                                       std::to_string(answer->records) + " records; expected " +
                                       std::to_string(question.expected_records));
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The first question to a freshly started daemon. `in_memory`: the operating system has its files
// in memory, otherwise none of them. Leaves it running. Without a data folder, or a daemon that can
// be started: empty.
Result<std::optional<double>> TimeAfterStart(QueriesOptions& o, const Question& question,
                                             bool in_memory) {
  if (!o.target.spawns()) return std::optional<double>();
  STATCOLLECT_RETURN_IF_ERROR(o.target.Stop(nullptr));
  STATCOLLECT_RETURN_IF_ERROR(in_memory ? o.target.ReadFiles() : o.target.ForgetFiles());
  STATCOLLECT_RETURN_IF_ERROR(o.target.Start());
  const Asker asker(o.target.address());
  const auto seconds = TimeOnce(question, asker);
  if (!seconds.ok()) return seconds.status();
  return std::optional(*seconds);
}

// Warm at least once, and not again once kQuestionTime has passed.
Result<json> Time(QueriesOptions& o, const Question& question) {
  const auto from_disk = TimeAfterStart(o, question, /*in_memory=*/false);
  if (!from_disk.ok()) return from_disk.status();
  const auto cold = TimeAfterStart(o, question, /*in_memory=*/true);
  if (!cold.ok()) return cold.status();
  const Asker asker(
      o.target.address());  // gone before the daemon stops, which would wait for its connection
  if (!*cold) STATCOLLECT_RETURN_IF_ERROR(TimeOnce(question, asker).status());
  std::vector<double> seconds;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < o.rounds; ++i) {
    if (i > 0 && std::chrono::steady_clock::now() - start > kQuestionTime) break;
    const auto warm = TimeOnce(question, asker);
    if (!warm.ok()) return warm.status();
    seconds.push_back(*warm);
  }
  const double warm = Median(seconds);
  json row = {{"name", question.name},
              {"warm_seconds", warm},
              {"all_warm_seconds", seconds},
              {"records", question.expected_records}};
  if (*from_disk) row["disk_seconds"] = **from_disk;
  if (*cold) row["cold_seconds"] = **cold;
  std::fprintf(stderr, "%-44s %10.1f ms from disk %8.1f ms cold %8.1f ms warm %12lu records\n",
               question.name.c_str(), 1e3 * from_disk->value_or(0), 1e3 * cold->value_or(0),
               1e3 * warm, static_cast<unsigned long>(question.expected_records));
  return row;
}

std::vector<Question> Questions(const QueriesOptions& o, const Network& network) {
  // A diff compares the losses, too: one a rank and step.
  const std::uint64_t per_step = std::uint64_t{o.send.streams} * (o.activations + 1);
  const std::uint64_t all = per_step * o.send.steps, of_one = all / o.send.streams;
  if (o.layouts) {
    const std::string ranks = std::to_string(o.send.streams);
    return {
        {"diff of " + ranks + " ranks with one, the same model",
         [](const Asker& asker) { return asker.Diff(kCut, kWhole, "", Expect::kAgree); }, of_one},
        {"diff of " + ranks + " ranks with one, all differ",
         [](const Asker& asker) { return asker.Diff(kCutOther, kWhole, "", Expect::kDiverged); },
         of_one},
        {"diff of " + ranks + " ranks with " + ranks + ", identical",
         [](const Asker& asker) { return asker.Diff(kCut, kCut, "", Expect::kIdentical); }, all},
        {"diff of " + ranks + " ranks with " + ranks + ", all differ",
         [](const Asker& asker) { return asker.Diff(kCut, kCutOther, "", Expect::kDiverged); },
         all}};
  }
  const TensorDef& middle = network.activations()[o.activations / 2];
  std::vector<Question> questions = {
      {"series of one activation (P11)",
       [middle](const Asker& asker) { return asker.Series(kBase, middle); },
       o.send.streams * o.send.steps},
      {"diff of step 0, all differ (P10)",
       [](const Asker& asker) { return asker.Diff(kBase, kOther, "0", Expect::kDiverged); },
       per_step},
      {"diff of all steps, identical (P9)",
       [](const Asker& asker) { return asker.Diff(kBase, kSame, "", Expect::kIdentical); }, all},
      {"diff of all steps, all differ (P9)",
       [](const Asker& asker) { return asker.Diff(kBase, kOther, "", Expect::kDiverged); }, all},
  };
  if (o.twins > 0) {
    const std::string with = ", " + std::to_string(o.twins) + " twins (P9)";
    questions.push_back({"diff of all steps, identical" + with,
                         [](const Asker& asker) {
                           return asker.Diff(kBase, kSame, "", Expect::kIdentical, /*noise=*/true);
                         },
                         all});
    questions.push_back({"diff of all steps, all differ" + with,
                         [](const Asker& asker) {
                           return asker.Diff(kBase, kOther, "", Expect::kAgree, /*noise=*/true);
                         },
                         all});
  }
  return questions;
}

Result<json> Measure(QueriesOptions& o) {
  const Network network(o.activations, o.repeat);
  json out = {{"parameters",
               {{"ranks", o.send.streams},
                {"steps", o.send.steps},
                {"activations", o.activations},
                {"sketch", o.maker.sketch},
                {"repeat", o.repeat},
                {"layouts", o.layouts},
                {"rounds", o.rounds}}}};
  if (!o.target.spawns()) STATCOLLECT_RETURN_IF_ERROR(o.target.Start());
  if (o.load) {
    for (const RunToLoad& run : RunsOf(o)) {
      auto loaded = Load(o, network, run);
      if (!loaded.ok()) return loaded.status();
      out["loads"].push_back(*loaded);
    }
  }
  if (o.target.spawns()) STATCOLLECT_RETURN_IF_ERROR(o.target.Start());
  for (const Question& question : Questions(o, network)) {
    if (question.name.find(o.only) == std::string::npos) continue;
    auto row = Time(o, question);
    if (!row.ok()) return row.status();
    out["rows"].push_back(*row);
  }
  if (const auto use = o.target.Use())
    out["daemon"] = UseJson({}, *use, 0);  // since its last start
  if (o.target.has_data_dir()) out["stored_bytes"] = o.target.Stored().total();
  if (o.target.spawns()) STATCOLLECT_RETURN_IF_ERROR(o.target.Stop(nullptr));
  return out;
}

}  // namespace

Command AddQueries(CLI::App& app) {
  auto o = std::make_shared<QueriesOptions>();
  o->send.streams = 8;
  o->send.steps = 1000;
  CLI::App* command = app.add_subcommand("queries",
                                         "Load three runs (one, the same again, one that differs "
                                         "everywhere), then time series and diffs");
  o->target.AddFlags(command);
  command->add_flag("!--no-load", o->load,
                    "The runs are there from an earlier call with the same sizes");
  command->add_flag("--layouts", o->layouts,
                    "Instead: two runs cut over --ranks (which divide 8) and one on a single rank; "
                    "time diffs of them");
  command
      ->add_option("--twins", o->twins,
                   "Also load so many perturbed twins of the run, and time diffs that measure "
                   "rounding from them")
      ->check(CLI::Range(0u, 5u));
  command->add_option("--ranks", o->send.streams, "Ranks of a run")
      ->check(CLI::Range(1u, 4096u))
      ->capture_default_str();
  command->add_option("--steps", o->send.steps, "Steps of a rank")
      ->check(CLI::Range(1u, 100'000'000u))
      ->capture_default_str();
  command->add_option("--only", o->only,
                      "Ask only questions whose name contains this, for example P11");
  AddRecordFlags(command, &o->activations, &o->maker.sketch, &o->repeat);
  command
      ->add_option("--rounds", o->rounds,
                   "Warm calls of each question; fewer where they take more than 30 s together")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  return [o] {
    const auto out = Measure(*o);
    if (!out.ok()) return Fail(out.status());
    std::cout << out->dump(1) << '\n';
    return 0;
  };
}

}  // namespace statcollect::bench
