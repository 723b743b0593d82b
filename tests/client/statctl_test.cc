// The real statctl against the real services on a loopback port.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <grpcpp/grpcpp.h>

#include "statcollect/v1/query.grpc.pb.h"
#include "tests/client/process.h"
#include "tests/client/statctl_fixture.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/append_batch.h"

namespace statcollect {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::Finished;
using ::testing::HasSubstr;
using testing::Key;
using ::testing::Not;
using testing::Process;
using testing::RunWriter;
using ::testing::StartsWith;
using Json = nlohmann::json;
using testing::Lines;
using testing::SilentPort;
using testing::Statctl;

// Ends every question on its own, as gRPC does for a collector that stops.
class CancellingService final : public v1::Query::Service {
  grpc::Status ListRuns(grpc::ServerContext*, const v1::ListRunsRequest*,
                        v1::ListRunsResponse*) override {
    return grpc::Status::CANCELLED;
  }
};

TEST_F(Statctl, DiffSaysWhereTheRunsPartAndExitsWith1) {
  const Finished done = Run({"diff", "--run-a", "base", "--run-b", "ort"});
  EXPECT_EQ(done.code, 1) << done.err;
  EXPECT_EQ(done.err, "");
  const auto lines = Lines(done.out);
  ASSERT_GT(lines.size(), 20u) << done.out;
  EXPECT_THAT(
      lines[0],
      StartsWith("DIVERGED at step 3, rank 0, forward, blocks.1.ln2 (Module): numeric, distance "));
  EXPECT_THAT(lines[0], HasSubstr("; origin: everything observed before it agrees."));
  EXPECT_THAT(lines, ::testing::Contains(StartsWith("  comparable in: steps 0..5 in both (6); ")));
  EXPECT_THAT(lines, ::testing::Contains(StartsWith("Why there (")));
  EXPECT_THAT(lines, ::testing::Contains("Root: blocks.1.ln2, step 3, micro-batch 0, rank 0"));
  const auto line_with = [&](const std::string& text) {
    return std::find_if(lines.begin(), lines.end(),
                        [&](const auto& line) { return line.find(text) != std::string::npos; }) -
           lines.begin();
  };
  const auto parts = {line_with("comparable in"), line_with("Why there"),
                      line_with("Root:"),         line_with("Diverged, in order"),
                      line_with("Compared"),      line_with("Configuration that"),
                      line_with("Next:")};
  EXPECT_TRUE(std::is_sorted(parts.begin(), parts.end())) << done.out;
  EXPECT_LT(*std::max_element(parts.begin(), parts.end()), static_cast<long>(lines.size()))
      << done.out;
  EXPECT_THAT(done.out, AllOf(HasSubstr("  shape      2x2      2x2"), HasSubstr("origin"),
                              HasSubstr("propagated")));
  EXPECT_THAT(done.out, HasSubstr("48 records: 36 identical, 0 within tolerance, 12 diverged"));
  EXPECT_THAT(
      done.out,
      HasSubstr("Next: look at blocks.1.ln2, and at what is computed between it and embed, which "
                "agrees bit for bit; statctl zoom base ort leads to the operator and the line of "
                "code."));
  EXPECT_THAT(done.out, Not(HasSubstr("\x1b"))) << "neither colours nor a stored escape sequence";
}

TEST_F(Statctl, DiffTakesItsRunsAsPositionsToo) {
  const Finished done = Run({"diff", "base", "base2"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(
      done.out,
      StartsWith("IDENTICAL base and base2: all 48 records compared are equal bit for bit.\n"));
}

TEST_F(Statctl, DiffWithinToleranceExitsWith0) {
  const Finished done = Run({"diff", "base", "ort", "--tolerance", "0.9"});
  EXPECT_EQ(done.code, 0) << done.out << done.err;
  EXPECT_THAT(done.out, StartsWith("WITHIN TOLERANCE base and ort: 12 of "));
  EXPECT_THAT(done.out,
              HasSubstr("first difference of any size: step 3, rank 0, forward, blocks.1.ln2"));
}

TEST_F(Statctl, DiffAsJsonHasTheContractsFields) {
  const Json report = RunJson({"diff", "--run-a", "base", "--run-b", "ort"}, 1);
  EXPECT_EQ(report["verdict"], "diverged");
  const Json& first = report["first"];
  EXPECT_EQ(first["step"], 3);
  EXPECT_EQ(first["stage"], "forward");
  EXPECT_EQ(first["kind"], "output");
  EXPECT_EQ(first["activation"], "blocks.1.ln2");
  EXPECT_EQ(first["output_path"], "0");
  EXPECT_EQ(first["reason"], "numeric");
  EXPECT_EQ(first["distance_kind"], "sketch");
  EXPECT_EQ(first["origin"], true);
  EXPECT_TRUE(first["times_noise"].is_null());
  for (const char* key : {"min", "max", "mean", "std", "l2", "nan", "hash"})
    EXPECT_TRUE(first["a"].contains(key)) << key;
  EXPECT_EQ(report["ranks"], Json({0, 1}));
  EXPECT_EQ(report["steps"], Json({{"first", 0}, {"last", 5}}));
  EXPECT_EQ(report["unmatched"], Json({{"only_a", Json::array()}, {"only_b", Json::array()}}));
  EXPECT_EQ(report["inputs"]["config"][0]["key"], "lr");
  EXPECT_TRUE(RunJson({"diff", "base", "base2"})["first"].is_null());
}

TEST_F(Statctl, DiffHonoursItsSelection) {
  const Json report = RunJson(
      {"diff", "base", "ort", "--rank", "1", "--steps", "4-", "--kinds", "output", "--top", "1"},
      1);
  EXPECT_EQ(report["first"]["step"], 4);
  EXPECT_EQ(report["first"]["rank"], 1);
  EXPECT_EQ(report["diverged"].size(), 1u);
  EXPECT_EQ(report["ranks"], Json({1}));
  EXPECT_EQ(RunJson({"diff", "base", "ort", "--all"}, 1)["diverged"].size(), 12u);
}

TEST_F(Statctl, TopListsTheExtremeActivationsOfAStep) {
  const Finished done = Run({"top", "ort", "--rank", "1", "--count", "2"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, StartsWith("Step 5 of ort: 2 of 3 by l2\n"));
  const Json top = RunJson({"top", "ort", "--by", "zero_fraction", "--step", "2"});
  EXPECT_EQ(top["step"], 2);
  EXPECT_EQ(top["by"], "zero_fraction");
  ASSERT_EQ(top["records"].size(), 2u);
  EXPECT_EQ(top["records"][0]["activation"], "head");
  EXPECT_EQ(top["records"][0]["value"], 0.5);
  EXPECT_EQ(top["records"][0]["stats"]["zero"], 2);
  EXPECT_THAT(Run({"top", "ort", "--by", "nan"}).out,
              HasSubstr("Nothing in step 5 of ort has a NaN"));
  EXPECT_THAT(Run({"top", "ort", "--step", "99"}).err, HasSubstr("0..5"));
  EXPECT_THAT(Lines(Run({"top", "base", "--format", "csv"}).out)[0],
              StartsWith("rank,step,micro_batch,kind,activation,output_path,call,value,"));
}

TEST_F(Statctl, ConfigIsAChecklistOfWhatDiffers) {
  const Finished done = Run({"config", "base", "ort"});
  EXPECT_EQ(done.code, 1) << done.err;
  EXPECT_THAT(done.out, StartsWith("DIFFERENT base and ort: 1 of 3 settings"));
  EXPECT_THAT(done.out,
              AllOf(HasSubstr("optimizer\n"), HasSubstr("[ ]  lr"), Not(HasSubstr("\x1b"))));
  EXPECT_EQ(Run({"config", "ort", "base2"}).code, 0);
  EXPECT_EQ(Run({"config", "base"}).code, 0);
  EXPECT_EQ(Run({"config", "base", "gone"}).code, 2);
  const Json report = RunJson({"config", "base", "ort"}, 1);
  EXPECT_EQ(report["same"], false);
  EXPECT_EQ(report["items"][0]["category"], "optimizer");
  EXPECT_EQ(report["items"][0]["a"], "0.1");
}

TEST_F(Statctl, RanksSaysWhoPartsFromTheOthersFirst) {
  RunWriter writer(server_.store, "ddp", 3);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    for (std::uint64_t step = 0; step < 4; ++step) {
      const double own = rank == 2 && step >= 2 ? 0.25 : 0;
      writer.Observe(rank, step, Key("fc.weight", Kind::kWeight),
                     {.values = {1. + own, 2. * (1. + step), 3, 4}});
      writer.Observe(rank, step, Key("fc.bias", Kind::kWeight), {.values = {0.5, 1. + step}});
    }
  }
  writer.Commit();
  const Finished done = Run({"ranks", "ddp"});
  EXPECT_EQ(done.code, 1) << done.err;
  EXPECT_THAT(
      done.out,
      StartsWith("INCONSISTENT ddp, from step 2 on: Rank 2 does not have the fc.weight after "
                 "the update of ranks 0, 1"));
  EXPECT_THAT(done.out, HasSubstr("16 tensors against their replicas: 14 equal bit for bit"));
  EXPECT_EQ(Run({"ranks", "ddp", "--steps", "0-1"}).code, 0);
  EXPECT_THAT(Run({"ranks", "ddp", "--steps", "0-1", "-q"}).out,
              StartsWith("CONSISTENT ddp: ranks 0-2 agree"));
  EXPECT_EQ(Run({"ranks", "base"}).code, 2) << "no weights were recorded";
  const Json report = RunJson({"ranks", "ddp"}, 1);
  EXPECT_EQ(report["verdict"], "inconsistent");
  EXPECT_EQ(report["findings"][0]["reason"], "weights_differ");
  EXPECT_EQ(report["findings"][0]["ranks"], Json({2}));
  EXPECT_EQ(report["findings"][0]["steps"], 2);
  EXPECT_EQ(report["groups"], Json::array({{{"ranks", {0, 1, 2}}}}));
  EXPECT_EQ(Lines(Run({"ranks", "ddp", "--format", "csv"}).out).size(), 2u);
  server_.gate.Hold();
  Process process(Command({"ranks", "ddp"}));
  server_.gate.AwaitScans(1);
  process.Signal(SIGINT);
  EXPECT_EQ(process.Wait().code, 130);
}

TEST_F(Statctl, DiffAsCsvHasOneLineADivergedObservation) {
  const Finished done = Run({"--format", "csv", "diff", "base", "ort"});
  EXPECT_EQ(done.code, 1);
  EXPECT_THAT(done.out,
              StartsWith("rank,step,micro_batch,kind,activation,output_path,call,stage,"));
  EXPECT_EQ(Lines(done.out).size(), 13u) << done.out;
}

TEST_F(Statctl, QuietDiffPrintsTheVerdictOnly) {
  EXPECT_EQ(Lines(Run({"diff", "base", "ort", "-q"}).out).size(), 1u);
}

TEST_F(Statctl, IncomparableRunsExitWith2AndSayWhy) {
  RunWriter(server_.store, "other").Observe(0, 100, Key("x"), {.values = {1}}).Commit();
  const Finished done = Run({"diff", "base", "other"});
  EXPECT_EQ(done.code, 2);
  EXPECT_THAT(done.out, AllOf(StartsWith("INCOMPARABLE"), HasSubstr("no step in common")));
  EXPECT_EQ(RunJson({"diff", "base", "other"}, 2)["verdict"], "incomparable");
}

TEST_F(Statctl, UnknownRunExitsWith2AndNamesThoseThereAre) {
  const Finished done = Run({"diff", "--run-a", "base", "--run-b", "otr"});
  EXPECT_EQ(done.code, 2);
  EXPECT_EQ(done.out, "");
  EXPECT_THAT(done.err, AllOf(StartsWith("statctl: diff base otr: no run 'otr'"), HasSubstr("ort"),
                              HasSubstr(server_.address()), HasSubstr("statctl runs")));
  for (const auto& command : std::vector<std::vector<std::string>>{{"show", "no"},
                                                                   {"series", "no", "x"},
                                                                   {"scalars", "no"},
                                                                   {"events", "no"},
                                                                   {"top", "no"},
                                                                   {"config", "no"},
                                                                   {"ranks", "no"},
                                                                   {"rm", "no", "--yes"}}) {
    const Finished unknown = Run(command);
    EXPECT_EQ(unknown.code, 2) << command[0];
    EXPECT_THAT(unknown.err, HasSubstr("no run 'no'")) << command[0];
  }
  EXPECT_THAT(Run({"series", "base", "blocks.1.ln"}).err, HasSubstr("blocks.1.ln2"))
      << "closest names";
}

TEST_F(Statctl, UnreachableCollectorIsNamedAtOnce) {
  server_.Stop();
  const auto begin = std::chrono::steady_clock::now();
  const Finished done = Run({"runs"});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(4));
  EXPECT_EQ(done.code, 2);
  EXPECT_THAT(done.err, AllOf(StartsWith("statctl: runs: no collector at " + server_.address()),
                              HasSubstr("statcollectord"), HasSubstr("--collector")));
}

TEST_F(Statctl, SilentPortIsGivenUpAfterTheTimeout) {
  const SilentPort port;
  ASSERT_TRUE(port.ok());
  const Finished done =
      Process({STATCTL, "runs", "--collector", port.address(), "--timeout", "0.2"}).Wait();
  EXPECT_EQ(done.code, 2);
  EXPECT_THAT(done.err, HasSubstr("no collector at " + port.address()));
}

TEST_F(Statctl, SlowAnswerIsGivenUpAfterTheTimeout) {
  server_.gate.Hold();
  const Finished done = Run({"diff", "base", "ort", "--timeout", "1"});
  EXPECT_EQ(done.code, 2);
  EXPECT_THAT(done.err, AllOf(HasSubstr("within 1 s"), HasSubstr("--timeout")));
}

TEST_F(Statctl, InterruptCancelsTheQuestionAndExitsWith130) {
  server_.gate.Hold();
  Process process(Command({"diff", "base", "ort"}));
  server_.gate.AwaitScans(1);
  process.Signal(SIGINT);
  const Finished done = process.Wait();
  EXPECT_EQ(done.code, 130);
  EXPECT_EQ(done.err, "statctl: interrupted\n");
  EXPECT_EQ(done.out, "");
}

TEST_F(Statctl, CollectorThatStopsMeanwhileIsNamed) {
  server_.gate.Hold();
  Process process(Command({"diff", "base", "ort"}));
  server_.gate.AwaitScans(1);
  std::thread stop([this] { server_.Stop(); });  // ends the call, then waits for its work
  const Finished done = process.Wait();
  server_.gate.Release();
  stop.join();
  EXPECT_EQ(done.code, 2);
  EXPECT_THAT(done.err, AllOf(StartsWith("statctl: diff base ort: lost the collector at " +
                                         server_.address()),
                              HasSubstr("try again")));
}

TEST_F(Statctl, QuestionCancelledByTheCollectorIsNoInterrupt) {
  CancellingService service;
  int port = 0;
  const auto server = grpc::ServerBuilder()
                          .AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port)
                          .RegisterService(&service)
                          .BuildAndStart();
  const std::string address = "127.0.0.1:" + std::to_string(port);
  const Finished done = Process({STATCTL, "runs", "--collector", address}).Wait();
  EXPECT_EQ(done.code, 2);
  EXPECT_THAT(done.err, StartsWith("statctl: runs: lost the collector at " + address));
}

TEST_F(Statctl, WrongArgumentsExitWith2AndSayWhatToDo) {
  const std::vector<std::vector<std::string>> wrong = {
      {"nonsense"},
      {"diff"},
      {"diff", "base"},
      {"diff", "base", "ort", "more"},
      {"diff", "base", "ort", "--tolerance", "-1"},
      {"diff", "base", "ort", "--tolerance", "nan"},
      {"diff", "base", "ort", "--tolerance", "1e-3", "--exact"},
      {"diff", "base", "ort", "--rank", "x"},
      {"diff", "base", "ort", "--steps", "nine"},
      {"diff", "base", "ort", "--kinds", "outputs"},
      {"diff", "base", "ort", "--top", "0"},
      {"diff", "../base", "ort"},
      {"series", "base"},
      {"series", "base", "embed", "--stat", "median"},
      {"series", "base", "embed", "--kind", "output,input"},
      {"scalars"},
      {"top", "base", "--by", "median"},
      {"top", "base", "--count", "0"},
      {"top", "base", "--step", "-1"},
      {"config"},
      {"ranks"},
      {"ranks", "base", "--tolerance", "-1"},
      {"show"},
      {"rm"},
      {"runs", "--format", "yaml"},
      {"runs", "--timeout", "-3"},
      {"runs", "--timeout", "inf"},
      {"runs", "--collector", "nowhere"},
      {"help", "nonsense"},
      {"runs", "\x1b[31m"},
  };
  for (const auto& arguments : wrong) {
    const Finished done = Run(arguments);
    const std::string shown = ::testing::PrintToString(arguments);
    EXPECT_EQ(done.code, 2) << shown;
    EXPECT_THAT(done.err, StartsWith("statctl: ")) << shown;
    EXPECT_EQ(Lines(done.err).size(), 1u) << shown << done.err;
    EXPECT_EQ(done.out, "") << shown;
    EXPECT_THAT(done.err, Not(HasSubstr("\x1b"))) << shown;
  }
  EXPECT_EQ(Process({STATCTL}).Wait().code, 2);
}

TEST_F(Statctl, OverviewFitsATerminal) {
  for (const std::string& line : Lines(Run({"--help"}).out)) EXPECT_LE(line.size(), 80u) << line;
}

TEST_F(Statctl, HelpExplainsEveryCommandWithExamples) {
  // Commands that were merged into another one show how that is used.
  const std::map<std::string, std::string> merged = {
      {"series", "tensor"}, {"events", "show"}, {"top", "tensor"}};
  for (const std::string command :
       {"runs", "show", "diff", "series", "scalars", "events", "top", "tensor", "config", "ranks",
        "rm", "pin", "admin", "values", "move", "status", "zoom"}) {
    const Finished help = Run({"help", command});
    EXPECT_EQ(help.code, 0) << command;
    const std::string shown = merged.contains(command) ? merged.at(command) : command;
    EXPECT_THAT(help.out,
                AllOf(HasSubstr("Examples:\n  statctl " + shown), HasSubstr("--collector")))
        << command;
    EXPECT_EQ(Run({command, "--help"}).out, help.out) << command;
  }
  EXPECT_THAT(Run({"--help"}).out, HasSubstr("Exit codes"));
  EXPECT_THAT(Run({"help"}).out, AllOf(HasSubstr("Exit codes"), HasSubstr("\n  diff ")));
  EXPECT_EQ(Run({"help"}).out, Run({"--help"}).out);
  EXPECT_THAT(Run({"--version"}).out, StartsWith("statctl "));
}

TEST_F(Statctl, GlobalOptionsGoBeforeOrAfterTheCommand) {
  const Finished before =
      Process({STATCTL, "--format", "json", "--collector", server_.address(), "runs"}).Wait();
  const Finished after =
      Process({STATCTL, "runs", "--collector", server_.address(), "--format", "json"}).Wait();
  const Finished environment =
      Process({STATCTL, "runs", "--format", "json"}, {{"STATCTL_COLLECTOR", server_.address()}})
          .Wait();
  EXPECT_EQ(before.code, 0) << before.err;
  EXPECT_EQ(before.out, after.out);
  EXPECT_EQ(before.out, environment.out);
}

TEST_F(Statctl, ProxiesOfTheEnvironmentAreNotAsked) {
  const Finished done = Process(Command({"runs"}), {{"http_proxy", "http://127.0.0.1:1"},
                                                    {"grpc_proxy", "http://127.0.0.1:1"}})
                            .Wait();
  EXPECT_EQ(done.code, 0) << done.err;
}

TEST_F(Statctl, RunsListsThem) {
  const Finished done = Run({"runs"});
  EXPECT_EQ(done.code, 0);
  const auto lines = Lines(done.out);
  ASSERT_EQ(lines.size(), 5u) << done.out;
  EXPECT_EQ(lines[0], "  Every row: attempts 1, dropped 0");
  EXPECT_THAT(lines[1], HasSubstr("run    state     ranks  steps  records  started"));
  EXPECT_THAT(lines[2], HasSubstr("base   finished      2   0..5"));
  EXPECT_EQ(RunJson({"runs"})["runs"][2]["run"], "ort");
  EXPECT_THAT(Run({"runs", "--format", "csv"}).out, StartsWith("run,attempts,world_size,"));
  EXPECT_THAT(Run({"runs", "--format", "markdown"}).out, StartsWith("| run | state |"));
}

TEST_F(Statctl, ShowPrintsRanksConfigurationAndEventsWithoutEscapes) {
  const Finished done = Run({"show", "ort"});
  EXPECT_EQ(done.code, 0);
  EXPECT_THAT(done.out, AllOf(StartsWith("ort is finished: 2 of 2 ranks"), HasSubstr("node1"),
                              HasSubstr("0.2\\x1b[31m"), HasSubstr("a module\\x1b[31m appeared")));
  EXPECT_THAT(done.out, Not(HasSubstr("\x1b")));
  EXPECT_EQ(RunJson({"show", "ort"})["config"]["lr"], "0.2\x1b[31m")
      << "JSON keeps the value, escaped";
}

TEST_F(Statctl, SeriesPrintsTableAndPlot) {
  const Finished done = Run({"series", "ort", "blocks.1.ln2", "--stat", "l2", "--rank", "0"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(
      done.out,
      AllOf(StartsWith(
                "  Every row: rank 0, kind output, path 0\n  step       l2\n     0  5.47723\n"),
            HasSubstr("l2 of blocks.1.ln2\n"), HasSubstr("\u2580"), HasSubstr("step 0")));
  EXPECT_THAT(Run({"series", "ort", "embed"}).out, Not(HasSubstr("step 0")))
      << "no plot of several statistics";
  EXPECT_EQ(
      RunJson({"series", "ort", "blocks.1.ln2", "--steps", "5"})["records"][0]["stats"]["max"],
      4.0);
  const Finished csv = Run({"series", "ort", "embed", "--format", "csv"});
  EXPECT_THAT(csv.out, StartsWith("rank,step,micro_batch,kind,activation,output_path,call,run,mode,"
                                  "min,max,mean,std,l1,l2,nan,"));
  EXPECT_EQ(Lines(csv.out).size(), 13u);
}

TEST_F(Statctl, ScalarsPrintsAColumnANameAndRank) {
  const Finished done = Run({"scalars", "base"});
  EXPECT_THAT(
      done.out,
      AllOf(StartsWith("loss\n"),
            HasSubstr(
                "\n  step  loss (rank 0)  loss (rank 1)\n     0              2              2\n")));
  const Json json = RunJson({"scalars", "base", "--rank", "1", "--steps", "1"});
  EXPECT_EQ(
      json,
      Json::parse(R"({"records":[{"run":"base","rank":1,"step":1,"micro_batch":0,"name":"loss",)"
                  R"("value":1.0,"ranks":[]}]})"));
  EXPECT_THAT(
      Run({"scalars", "base", "--format", "csv"}).out,
      StartsWith("run,rank,step,micro_batch,name,value,ranks\r\nbase,0,0,0,loss,2.0,[]\r\n"));
  EXPECT_EQ(Run({"scalars", "base", "--name", "lass"}).code, 2);
}

TEST_F(Statctl, EventsPrintsThem) {
  EXPECT_THAT(Run({"events", "base", "--rank", "1"}).out,
              AllOf(HasSubstr("graph_transition"), HasSubstr("a module\\x1b[31m")));
  EXPECT_EQ(RunJson({"events", "base"})["records"].size(), 2u);
}

TEST_F(Statctl, StatusPrintsHealthInUnitsForPeople) {
  const Finished done = Run({"status"});
  EXPECT_EQ(done.code, 0);
  EXPECT_THAT(done.out, AllOf(HasSubstr("state           ready"), HasSubstr("2 h 5 min"),
                              HasSubstr("3.0 MiB used, 5.0 GiB free"), HasSubstr("1,234,567")));
  EXPECT_EQ(RunJson({"status"})["records_total"], 1234567);
  EXPECT_THAT(
      done.out,
      AllOf(HasSubstr(
                "lost by agents  1,203 records, in all stored runs: buffer_full 1,200, closed 3"),
            HasSubstr("lag             4,000 records (1.0 MiB) received and not yet durable"),
            HasSubstr("retention       removes runs older than 30 d 0 h, and the oldest runs above "
                      "200.0 GiB"),
            HasSubstr("retention note  the clock moved"), HasSubstr("kept            base"),
            HasSubstr("removed next    old (1.0 MiB, written "),
            HasSubstr("older (0 B, written ")));
  EXPECT_EQ(RunJson({"status"})["dropped_by_cause"]["closed"], 3);
  EXPECT_EQ(RunJson({"status"})["retention"]["next"][1]["run"], "older");
  EXPECT_THAT(Run({"status", "--format", "csv"}).out, HasSubstr("retention_runs_removed"));
}

TEST_F(Statctl, CheckpointSaysWhereItIsAndHowToRestoreIt) {
  const Finished done = Run({"checkpoint", "/backup"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, AllOf(HasSubstr("/backup on its machine: 12 files, 3.0 MiB"),
                              HasSubstr("statcollectord --restore-from /backup --data-dir NEW")));
  EXPECT_EQ(RunJson({"checkpoint", "/backup"})["files"], 12);
  const Finished relative = Run({"checkpoint", "backup"});
  EXPECT_EQ(relative.code, 2);
  EXPECT_THAT(relative.err, HasSubstr("relative"));
}

TEST_F(Statctl, KeepExemptsARunUntilItIsTurnedOff) {
  const auto kept = [this](const std::string& run) {
    const auto census = server_.store.Census();
    for (const AttemptTally& tally : *census) {
      if (tally.meta.run == run) return tally.kept;
    }
    return false;
  };
  const Finished done = Run({"keep", "base"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_TRUE(kept("base"));
  EXPECT_FALSE(kept("ort"));
  EXPECT_EQ(Run({"keep", "base", "--off"}).code, 0);
  EXPECT_FALSE(kept("base"));
  EXPECT_EQ(Run({"keep", "absent"}).code, 2);
}

TEST_F(Statctl, RecordSaysWhatWasAskedOfHowMany) {
  const Finished done = Run({"record", "base", "--steps", "5-9"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out + done.err,
              HasSubstr("2 ranks of run 'base' record steps 5-9 from the next step on"));
  EXPECT_EQ(server_.control.recorded_steps, "5-9");
  EXPECT_EQ(RunJson({"record", "base", "--steps", ""})["ranks"], 2);
  EXPECT_EQ(server_.control.recorded_steps, "");
  EXPECT_EQ(Run({"record", "base"}).code, 2) << "--steps is required";
  const Finished nobody = Run({"record", "nobody", "--steps", "1"});
  EXPECT_EQ(nobody.code, 2);
  EXPECT_THAT(nobody.err, HasSubstr("no run 'nobody'"));
}

class Exponents : public Statctl {
 protected:
  // Of blocks.1.ln2 in run base, rank 0: in step 4 a quarter is too small for f16.
  Exponents() {
    const AttemptId attempt = server_.store.Attempts("base")->at(0).id;
    RankMeta meta = server_.store.Ranks(attempt)->at(0);
    RecordBatch batch;
    batch.first_seq = meta.durable_seq + 1;
    batch.exponents = {
        {.step = 3, .activation = 1, .layout = 0, .lowest = -3, .counts = {4}},
        {.step = 4,
         .activation = 1,
         .layout = 0,
         .lowest = -40,
         .counts = std::vector<std::uint64_t>(40, 0)},
    };
    batch.exponents[1].counts.front() = 1;
    batch.exponents[1].counts.back() = 3;
    meta.durable_seq = batch.last_seq();
    EXPECT_TRUE(AppendBatch(server_.store, attempt, 0, batch, meta).ok());
  }
};

TEST_F(Exponents, AreSummedUpByTensorAndDrawnForOne) {
  const Finished summary = Run({"exponents", "base"});
  EXPECT_EQ(summary.code, 0) << summary.err;
  EXPECT_THAT(summary.out,
              HasSubstr("1 of 1 tensors of base have a step in which f16 would lose 1 %"));
  EXPECT_THAT(summary.out, ::testing::ContainsRegex("25\\.00 % +25\\.00 % +- +- +4 +4 +2 +blocks"));
  EXPECT_THAT(Run({"exponents", "base", "--dtype", "bf16"}).out, HasSubstr("0 of 1 tensors"));

  const Finished drawn = Run({"exponents", "base", "blocks.1.ln2"});
  EXPECT_EQ(drawn.code, 0) << drawn.err;
  EXPECT_THAT(drawn.out, AllOf(HasSubstr("blocks.1.ln2 (output), rank 0, step 4: f32"),
                               HasSubstr("2^-40 .. 2^-39 |"), HasSubstr("2^-2 .. 2^-1 |"),
                               HasSubstr("75.00 %")));
  EXPECT_THAT(drawn.out, ::testing::ContainsRegex("f8e4m3 +25\\.00 % +- +- +25\\.00 %"));
  const Finished one = Run({"exponents", "base", "blocks.1.ln2", "--step", "3", "--dtype", "e4m3"});
  EXPECT_THAT(one.out,
              AllOf(HasSubstr("2^-3 |"), HasSubstr("f8e4m3"), ::testing::Not(HasSubstr("bf16"))));
  EXPECT_EQ(RunJson({"exponents", "base", "blocks.1.ln2"})["records"].size(), 2u);
  EXPECT_EQ(RunJson({"exponents", "base"})["records"][0]["since_step"], 4);
  EXPECT_THAT(Run({"exponents", "base", "--format", "csv"}).out, HasSubstr("rank,step,"));
}

TEST_F(Exponents, WhatIsNotThereIsSaidWithWhatToDo) {
  EXPECT_THAT(Run({"exponents", "base2"}).out, HasSubstr("STATAGENT_EXPONENTS"));
  const Finished other = Run({"exponents", "base", "blocks.0.ln1"});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("the run has those of: blocks.1.ln2"));
  const Finished wrong = Run({"exponents", "base", "--dtype", "f32"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("expected f16, bf16, e4m3 or e5m2"));
}

class Captures : public Statctl {
 protected:
  Captures() : folder_(::testing::TempDir() + "statctl_captures_" + std::to_string(::getpid())) {
    std::filesystem::create_directories(folder_);
    for (const std::string run : {"base", "ort"}) {
      for (const std::uint32_t rank : {0u, 1u}) {
        Add(run, rank, 3, 1, {1, -2, run == "base" ? 3.0f : 3.5f, 4});
      }
    }
    Add("base", 0, 4, 1, {1, -2, 3, 4}, 8);
  }
  ~Captures() override { std::filesystem::remove_all(folder_); }

  // Of activation 1, blocks.1.ln2, which is 2 x 2.
  void Add(const std::string& run, std::uint32_t rank, std::uint64_t step, std::uint32_t activation,
           const std::vector<float>& values, std::size_t bytes = 16) {
    const AttemptId attempt = server_.store.Attempts(run)->at(0).id;
    RankMeta meta = server_.store.Ranks(attempt)->at(rank);
    const std::string all(reinterpret_cast<const char*>(values.data()), 16);
    std::uint32_t layout = 0;
    const SharedDefinitions definitions = *server_.store.Definitions(attempt, rank);
    for (const Layout& one : definitions->layouts) {
      if (one.shape.size() == 2) layout = one.id;
    }
    RecordBatch batch;
    batch.first_seq = meta.durable_seq + 1;
    batch.captures.push_back({.step = step,
                              .activation = activation,
                              .layout = layout,
                              .elements = 4,
                              .offset = 0,
                              .data = all.substr(0, bytes)});
    meta.durable_seq = batch.last_seq();
    ASSERT_TRUE(AppendBatch(server_.store, attempt, rank, batch, meta).ok());
  }
  std::string ReadFile(const std::string& name) const {
    std::ifstream file(folder_ + "/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  const std::string folder_;
};

TEST_F(Captures, WhatIsThereIsListedAndSavedWithoutAsking) {
  const Finished listed = Run({"captures", "base"});
  EXPECT_EQ(listed.code, 0) << listed.err;
  EXPECT_THAT(listed.out,
              AllOf(HasSubstr("blocks.1.ln2"), HasSubstr("2x2"), HasSubstr("8 B so far")));
  EXPECT_EQ(RunJson({"captures", "base"})["records"].size(), 3u);
  EXPECT_THAT(Run({"captures", "base2"}).out, HasSubstr("Nothing captured"));

  const Finished several =
      Run({"capture", "base", "blocks.1.ln2", "--step", "3", "--out", folder_ + "/one.npy"});
  EXPECT_EQ(several.code, 2);
  EXPECT_THAT(several.err, HasSubstr("several tensors were captured; choose one with --rank"));
  const Finished saved = Run({"capture", "base", "blocks.1.ln2", "--step", "3", "--rank", "1",
                              "--out", folder_ + "/one.npy"});
  EXPECT_EQ(saved.code, 0) << saved.err;
  EXPECT_THAT(saved.err, HasSubstr("saved blocks.1.ln2 (output, path '0'), step 3, rank 1"));
  const std::string npy = ReadFile("one.npy");
  EXPECT_THAT(npy, HasSubstr("'shape': (2, 2)"));
  const float expected[] = {1, -2, 3, 4};
  ASSERT_GE(npy.size(), 16u);
  EXPECT_EQ(npy.substr(npy.size() - 16), std::string(reinterpret_cast<const char*>(expected), 16));
  const Finished again = Run({"capture", "base", "blocks.1.ln2", "--step", "3", "--rank", "1",
                              "--out", folder_ + "/one.npy"});
  EXPECT_EQ(again.code, 2) << "not overwritten";
  EXPECT_THAT(again.err, HasSubstr("it exists"));
  EXPECT_EQ(
      Run({"capture", "base", "blocks.1.ln2", "--step", "3", "--out", folder_ + "/all/"}).code, 0);
  EXPECT_FALSE(ReadFile("all/blocks.1.ln2.step3.rank0.npy").empty());
  EXPECT_FALSE(ReadFile("all/blocks.1.ln2.step3.rank1.npy").empty());
  EXPECT_TRUE(server_.control.asked_captures.empty());

  const Finished half =
      Run({"capture", "base", "blocks.1.ln2", "--step", "4", "--out", folder_ + "/half.npy"});
  EXPECT_EQ(half.code, 2);
  EXPECT_THAT(half.err, HasSubstr("8 B of 16 B have arrived"));
  EXPECT_TRUE(ReadFile("half.npy").empty());
}

TEST_F(Captures, ARequestSaysExactlyWhatIsWanted) {
  const Finished asked = Run({"capture", "base", "blocks.1.ln2", "--step", "9", "--rank", "0",
                              "--kind", "output", "--path", "0", "--max-bytes", "77", "--no-wait"});
  EXPECT_EQ(asked.code, 0) << asked.err;
  ASSERT_EQ(server_.control.asked_captures.size(), 1u);
  EXPECT_EQ(server_.control.asked_captures[0].ToText(),
            "blocks.1.ln2@9:kind=output,path=0,bytes_max=77");
  const auto error = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"capture", "base", "blocks.1.ln2", "--no-wait"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished done = Run(arguments);
    EXPECT_EQ(done.code, 2);
    return done.err;
  };
  EXPECT_THAT(error({"--step", "9", "--kind", "weight"}),
              HasSubstr("it was seen as output path '0'"));
  EXPECT_THAT(error({"--step", "9", "--kind", "nothing"}), HasSubstr("nothing"));
  EXPECT_THAT(error({"--step", "9", "--mode", "test"}), HasSubstr("train, eval or init"));
  EXPECT_THAT(error({"--step", "9", "--max-bytes", "99999999999"}), HasSubstr("1..67108864"));
  EXPECT_THAT(error({}), HasSubstr("--step"));
  const Finished unknown = Run({"capture", "base", "blocks.1.ln3", "--step", "9"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("closest: blocks.1.ln2"));
  EXPECT_EQ(server_.control.asked_captures.size(), 1u);
}

TEST_F(Captures, DiffValuesSaysWhereTwoRunsDiffer) {
  const Finished differ = Run({"diff-values", "base", "ort", "blocks.1.ln2", "--step", "3"});
  EXPECT_EQ(differ.code, 1) << differ.err;
  EXPECT_THAT(differ.out, AllOf(HasSubstr("1 of 4 elements (25 %)"), HasSubstr("lie in [1:2, 0:1]"),
                                HasSubstr("[1, 0]")));
  const Json json =
      RunJson({"diff-values", "base", "ort", "blocks.1.ln2", "--step", "3", "--rank", "1"}, 1);
  EXPECT_EQ(json["verdict"], "differ");
  EXPECT_EQ(json["differ"], 1);
  EXPECT_EQ(json["largest"]["index"], Json({1, 0}));
  EXPECT_EQ(json["largest"]["absolute"], 0.5);
  EXPECT_EQ(Run({"diff-values", "base", "base", "blocks.1.ln2", "--step", "3"}).code, 0);
  EXPECT_EQ(
      Run({"diff-values", "base", "base", "blocks.1.ln2", "--step", "3", "--rank-b", "7"}).code, 2);
  const Finished missing = Run({"diff-values", "base", "base2", "blocks.1.ln2", "--step", "3"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, HasSubstr("not captured at step 3, rank 0"));
  EXPECT_EQ(Run({"diff-values", "base", "ort", "blocks.1.ln2", "--step", "4"}).code, 2)
      << "half of it";
}

TEST_F(Captures, DiffNamesTheCommandsThatShowTheValues) {
  const Finished diff = Run({"diff", "base", "ort"});
  EXPECT_EQ(diff.code, 1) << diff.err;
  EXPECT_THAT(diff.out, HasSubstr("STATAGENT_CAPTURES=blocks.1.ln2@3"));
  EXPECT_THAT(diff.out, HasSubstr("statctl values diff base-2 ort-2 blocks.1.ln2 --step 3"));
}

TEST_F(Statctl, RmWantsYesWithoutATerminal) {
  const Finished refused = Run({"rm", "ort"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--yes"));
  EXPECT_EQ(Run({"rm", "ort", "--yes"}).code, 0);
  EXPECT_THAT(*server_.store.ListRuns(), ElementsAre("base", "base2"));
}

TEST_F(Statctl, RmOfARunBeingWrittenWantsForce) {
  server_.control.SetOpenRun("ort");
  EXPECT_EQ(Run({"rm", "ort", "--yes"}).code, 2);
  EXPECT_EQ(Run({"rm", "ort", "--yes", "--force"}).code, 0);
}

TEST_F(Statctl, RmAsksOnATerminalAndTakesOnlyAYes) {
  for (const std::string answer : {"n", "", "base2"}) {
    Process process(Command({"rm", "base2"}), {}, Process::Input::kTerminal);
    process.AwaitOutput("[y/N]");
    process.Type(answer + "\n");
    EXPECT_EQ(process.Wait().code, 2) << answer;
  }
  EXPECT_EQ(server_.store.ListRuns()->size(), 3u);
  Process process(Command({"rm", "base2"}), {}, Process::Input::kTerminal);
  process.AwaitOutput("[y/N]");
  process.Type("y\n");
  EXPECT_EQ(process.Wait().code, 0);
  EXPECT_THAT(*server_.store.ListRuns(), ElementsAre("base", "ort"));
}

TEST_F(Statctl, InterruptWhileItAsksRemovesNothing) {
  Process process(Command({"rm", "base2"}), {}, Process::Input::kTerminal);
  process.AwaitOutput("[y/N]");
  process.Signal(SIGINT);
  const Finished done = process.Wait();
  EXPECT_EQ(done.code, 130);
  EXPECT_THAT(done.out, HasSubstr("\nstatctl: interrupted")) << "on a line of its own";
  EXPECT_EQ(server_.store.ListRuns()->size(), 3u);
}

TEST_F(Statctl, ColoursOnlyATerminalThatWantsThem) {
  EXPECT_THAT(RunOnTerminal({"diff", "base", "ort"}).out, HasSubstr("\x1b[1;31mDIVERGED\x1b[0m"));
  const std::string plain =
      RunOnTerminal({"diff", "base", "ort", "--quiet"}, {{"NO_COLOR", "1"}}).out;
  EXPECT_THAT(plain, AllOf(HasSubstr("DIVERGED"), Not(HasSubstr("\x1b"))));
  EXPECT_THAT(RunOnTerminal({"diff", "base", "ort", "-q"}, {{"TERM", "dumb"}}).out,
              Not(HasSubstr("\x1b")));
}

TEST_F(Statctl, FitsATerminalOf100Columns) {
  RunWriter a(server_.store, "long-a"), b(server_.store, "long-b");
  const std::string name =
      "transformer.encoder.layers.11.self_attention.query_key_value.projection_to_heads.with_more."
      "and_more";
  a.Observe(0, 0, Key(name), {.values = {1, 2}}).Commit();
  b.Observe(0, 0, Key(name), {.values = {1, 3}}).Commit();
  for (const std::string& line :
       Lines(RunOnTerminal({"diff", "long-a", "long-b"}, {{"NO_COLOR", "1"}}).out)) {
    if (line.find("comparing [") != std::string::npos) continue;  // rewritten in place
    const std::size_t word = line.find(name);
    if (word != std::string::npos) continue;  // in a sentence a name stays whole
    EXPECT_LE(line.size(), 101u) << line;     // and a carriage return
  }
  EXPECT_THAT(Run({"diff", "long-a", "long-b"}).out, Not(HasSubstr("..with")))
      << "never cut where a program may read";
}

}  // namespace
}  // namespace statcollect
