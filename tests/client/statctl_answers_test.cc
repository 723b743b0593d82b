// What statctl's commands say, one test for each answer that was once wrong or of no use.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/client/statctl_fixture.h"
#include "tests/server/query/run_writer.h"

namespace statcollect {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::Finished;
using ::testing::HasSubstr;
using testing::Key;
using testing::Lines;
using ::testing::Not;
using testing::RunWriter;
using ::testing::StartsWith;
using testing::Statctl;
using Json = nlohmann::json;

TEST_F(Statctl, WatchAgainstJudgesEveryStepAndNotTheNewestAlone) {
  // Steps 0..5 diverge, the newest one agrees: as where a step of its own holds a late scalar.
  for (const std::string run : {"first", "second"}) {
    RunWriter writer(server_.store, run);
    for (std::uint64_t step = 0; step < 6; ++step)
      writer.Observe(0, step, Key("fc"), {.values = {1, 2, run == "first" || step == 5 ? 3. : 5.}});
    writer.Commit();
  }
  const Json look = RunJson({"watch", "second", "--against", "first", "--once"});
  EXPECT_EQ(look["against"]["verdict"], "diverged");
  EXPECT_EQ(look["against"]["step"], 5);
  EXPECT_EQ(look["against"]["first_diverged"], 0);
  EXPECT_EQ(look["against"]["root"]["activation"], "fc");
  EXPECT_THAT(
      Run({"watch", "second", "--against", "first", "--once"}).out,
      HasSubstr("steps 0..5 against first: diverged; root so far (possible): step 0, rank 0, "
                "forward, fc (Module): numeric"));
  EXPECT_THAT(Run({"watch", "base2", "--against", "base", "--once"}).out,
              HasSubstr("steps 0..5 against base: identical"));
}

TEST_F(Statctl, WatchNamesTheStepsThatTheOtherRunLacks) {
  const auto write = [&](const std::string& run, std::uint64_t steps, bool ended) {
    RunWriter writer(server_.store, run);
    for (std::uint64_t step = 0; step < steps; ++step)
      writer.Observe(0, step, Key("fc"), {.values = {1, 2, 3}});
    if (!ended) writer.Unfinished(0);
    writer.Commit();
  };
  write("long", 9, true);
  write("short", 6, true);
  write("shorter", 3, false);
  EXPECT_THAT(
      Run({"watch", "long", "--against", "short", "--once"}).out,
      HasSubstr(
          "steps 0..5 against short: identical; steps 6..8 not compared: short ended before"));
  const Json look = RunJson({"watch", "long", "--against", "short", "--once"});
  EXPECT_EQ(look["against"]["step"], 5);
  EXPECT_EQ(look["against"]["not_compared"], "6-8");
  EXPECT_THAT(Run({"watch", "long", "--against", "shorter", "--once"}).out,
              HasSubstr("..8 not compared"));
  EXPECT_THAT(Run({"watch", "short", "--against", "long", "--once"}).out,
              Not(HasSubstr("not compared")));
  EXPECT_FALSE(RunJson({"watch", "short", "--against", "long", "--once"})["against"].contains(
      "not_compared"));
  EXPECT_THAT(Run({"watch", "long", "--against", "nobody", "--once"}).out,
              HasSubstr("not compared with nobody: "));
}

TEST_F(Statctl, ConfigOfOneRunSaysNothingAboutASecondOne) {
  const auto lines = Lines(Run({"config", "base", "--format", "csv"}).out);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0], "category,key,a\r");
  EXPECT_EQ(lines[1], "optimizer,lr,0.1\r");
  const Json report = RunJson({"config", "base"});
  ASSERT_EQ(report["items"].size(), 3u);
  for (const Json& item : report["items"]) EXPECT_EQ(item["same"], true);
  EXPECT_EQ(Lines(Run({"config", "base", "ort", "--format", "csv"}).out)[0],
            "category,key,a,b,same\r");
}

TEST_F(Statctl, TopPrintsTheNumberThatItOrdersByOnce) {
  const auto header = [this](const std::string& by) {
    return Lines(Run({"top", "base", "--by", by}).out)[2];
  };
  EXPECT_EQ(Lines(Run({"top", "base"}).out)[1],
            "  Every row: kind output, class Module, dtype f32");
  EXPECT_EQ(header("l2"), "       l2  rank  activation    shape  min  max  mean      std");
  EXPECT_THAT(header("rms"), AllOf(HasSubstr("rms"), HasSubstr("l2")));
  EXPECT_THAT(Lines(Run({"top", "base", "--format", "csv"}).out)[0], HasSubstr("l2"))
      << "every number for programs";
}

TEST_F(Statctl, AnUnknownCommandIsCalledThatWithTheOneThatWasMeant) {
  const auto error = [this](const std::vector<std::string>& arguments) {
    const Finished done = Run(arguments);
    EXPECT_EQ(done.code, 2);
    return done.err;
  };
  EXPECT_EQ(error({"rums"}),
            "statctl: no command 'rums' (did you mean 'runs'?); statctl help lists all\n");
  EXPECT_EQ(error({"scalers", "base", "--name", "loss"}),
            "statctl: no command 'scalers' (did you mean 'scalars'?); statctl help lists all\n");
  EXPECT_EQ(error({"frobnicate"}), "statctl: no command 'frobnicate'; statctl help lists all\n");
  EXPECT_EQ(error({"noise", "sav", "base"}),
            "statctl: no command 'noise sav' (did you mean 'noise save'?); statctl help noise "
            "lists all\n");
  EXPECT_EQ(error({"help", "dif"}),
            "statctl: help: no command 'dif' (did you mean 'diff'?); statctl help lists all\n");
  EXPECT_THAT(error({"diff", "base", "ort", "more"}), HasSubstr("more"));
}

TEST_F(Statctl, AnUnknownOptionIsCalledThatWithTheOneThatWasMeant) {
  const auto error = [this](const std::vector<std::string>& arguments) {
    const Finished done = Run(arguments);
    EXPECT_EQ(done.code, 2);
    return done.err;
  };
  EXPECT_EQ(
      error({"diff", "base", "ort", "--tolerence", "3"}),
      "statctl: no option '--tolerence' (did you mean '--tolerance'?); see statctl help diff\n");
  EXPECT_EQ(error({"--colector=x:1", "runs"}),
            "statctl: no option '--colector' (did you mean '--collector'?); see statctl help "
            "runs\n");
  EXPECT_EQ(error({"diff", "base", "ort", "--frobnicate"}),
            "statctl: no option '--frobnicate'; see statctl help diff\n");
}

TEST_F(Statctl, EventsOfAKindThatDoesNotExistAreAnError) {
  const Finished typo = Run({"events", "base", "--kind", "norm_explosions"});
  EXPECT_EQ(typo.code, 2);
  EXPECT_EQ(typo.out, "");
  EXPECT_THAT(typo.err,
              AllOf(HasSubstr("no kind 'norm_explosions' (did you mean 'norm_explosion'?)"),
                    HasSubstr("expected one of alarm_cleared, "), HasSubstr("graph_transition")));
  const Finished none = Run({"events", "base", "--kind", "norm_explosion"});
  EXPECT_EQ(none.code, 0) << "there is such a kind, but it has not happened";
  EXPECT_EQ(none.out, "No events of that selection in base.\n");
  RunWriter(server_.store, "own")
      .Observe(0, 0, Key("x"), {.values = {1}})
      .Event(0, 0, "my_own_kind")
      .Commit();
  EXPECT_EQ(Run({"events", "own", "--kind", "my_own_kind"}).code, 0) << "what a program logs";
  EXPECT_EQ(
      Run({"events", "own", "--kind", "my_own_kind", "--rank", "0", "--since-step", "9"}).code, 0);
}

TEST_F(Statctl, ShowHasEventsBeforeAShortConfiguration) {
  std::map<std::string, std::string> config = {{"lr", "0.1"}, {"batch_size", "8"}};
  for (int i = 0; i < 90; ++i) config["module.blocks." + std::to_string(i) + ".eps"] = "1e-5";
  RunWriter(server_.store, "big")
      .Observe(0, 0, Key("x"), {.values = {1}})
      .Event(0, 0, "graph_transition", "a module appeared")
      .Config(0, config)
      .Commit();
  const std::string text = Run({"show", "big"}).out;
  EXPECT_LT(text.find("a module appeared"), text.find("Configuration (first 12 of 92)")) << text;
  EXPECT_THAT(text,
              AllOf(HasSubstr("  batch_size            8\n  lr                    0.1\n  module."),
                    HasSubstr("statctl config big lists all."), HasSubstr(", 1 step (0..0), ")));
  EXPECT_LT(Lines(text).size(), 40u);
  EXPECT_EQ(RunJson({"show", "big"})["config"].size(), 92u);
}

TEST_F(Statctl, ShowOfARunWithoutTensorsSaysSo) {
  RunWriter(server_.store, "plain").Scalar(0, 0, "loss", 1).Scalar(0, 1, "loss", 2).Commit();
  EXPECT_THAT(
      Run({"show", "plain"}).out,
      StartsWith("plain is finished: 1 of 1 ranks, no tensors, other records in steps 0..1, "));
}

TEST_F(Statctl, SeriesDrawsEachKindOnItsOwnAxis) {
  RunWriter writer(server_.store, "kinds");
  for (std::uint64_t step = 0; step < 4; ++step) {
    writer.Observe(0, step, Key("fc"), {.values = {1000. + static_cast<double>(step)}});
    writer.Observe(0, step, Key("fc", Kind::kGradOutput), {.values = {1e-6 * (1. + step)}});
  }
  writer.Commit();
  const std::string text = Run({"series", "kinds", "fc", "--stat", "l2"}).out;
  EXPECT_THAT(text, AllOf(HasSubstr("l2 of fc, output\n"), HasSubstr("l2 of fc, grad_output\n")));
  const auto axis = [&](const std::string& heading) {
    return Lines(text.substr(text.find(heading)))[1];
  };
  EXPECT_THAT(axis("l2 of fc, output"), HasSubstr("1003 |"));
  EXPECT_THAT(axis("l2 of fc, grad_output"), HasSubstr("4e-06 |"));
}

TEST_F(Statctl, MemoryPrintsALimitedNumberOfRowsAndHowToSeeAll) {
  RunWriter writer(server_.store, "large", 100);
  for (std::uint32_t rank = 0; rank < 100; ++rank) {
    for (std::uint64_t step = 0; step < 2; ++step) {
      for (const char* module : {"", "fc"}) {
        MemoryRecord record{
            .step = step, .phase = MemoryPhase::kPreForward, .device = "dev0", .module = module};
        record.present = BitOf(MemoryQuantity::kAllocated);
        record.bytes[0] = 1 << 20;
        writer.Memory(rank, std::move(record));
      }
    }
  }
  writer.Commit();
  const auto rows = [this](std::vector<std::string> more) {
    more.insert(more.begin(), {"memory", "large"});
    const Finished done = Run(more);
    EXPECT_EQ(done.code, 0) << done.err;
    const auto lines = Lines(done.out);
    return std::count_if(lines.begin(), lines.end(), [](const std::string& line) {
      return line.find("  pre_forward  ") != std::string::npos ||
             line.find("  fc  ") != std::string::npos;
    });
  };
  EXPECT_EQ(rows({}), 48) << "of the last step";
  EXPECT_THAT(Run({"memory", "large"}).out, HasSubstr("48 of 200 rows: --all shows all"));
  EXPECT_EQ(rows({"--step", "1"}), 48);
  EXPECT_EQ(rows({"--all"}), 200);
  EXPECT_EQ(rows({"--top", "5"}), 5);
  EXPECT_EQ(rows({"--modules"}), 48);
  EXPECT_THAT(Run({"memory", "large", "--modules"}).out,
              HasSubstr("48 of 100 rows: --all shows all"));
  EXPECT_EQ(rows({"--modules", "--all"}), 100);
  EXPECT_EQ(rows({"--rank", "7"}), 2);
  EXPECT_EQ(RunJson({"memory", "large"})["records"].size(), 200u) << "every record for programs";
}

// A port that answers every connection with the same bytes, once, and the first after a while.
class TalkingPort : public testing::SilentPort {
 public:
  explicit TalkingPort(std::string says, std::chrono::milliseconds first_delay = {})
      : thread_([this, says = std::move(says), delay = first_delay]() mutable {
          for (int fd = Accept(); fd >= 0; fd = Accept()) {
            char ignored[256];
            (void)!read(fd, ignored, sizeof ignored);
            std::this_thread::sleep_for(std::exchange(delay, {}));
            (void)!write(fd, says.data(), says.size());
            close(fd);
          }
        }) {}
  ~TalkingPort() {
    Shutdown();
    thread_.join();
  }

 private:
  std::thread thread_;
};

TEST_F(Statctl, WhyNoCollectorAnswersIsSaidWithItsOwnNextStep) {
  const auto error = [](const std::string& address) {
    const Finished done =
        testing::Process({STATCTL, "runs", "--collector", address, "--timeout", "3"}).Wait();
    EXPECT_EQ(done.code, 2);
    EXPECT_EQ(Lines(done.err).size(), 1u) << done.err;
    return done.err;
  };
  const TalkingPort http("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"),
      other("SSH-2.0-x\r\n");
  EXPECT_THAT(error(http.address()),
              AllOf(HasSubstr("it speaks HTTP; is it statcollectord's --http address?"),
                    HasSubstr("7433"), Not(HasSubstr("start one"))));
  EXPECT_THAT(error(other.address()),
              AllOf(HasSubstr("it does not speak gRPC"), Not(HasSubstr("start one"))));
  EXPECT_THAT(
      error("no-such-host.invalid:7433"),
      AllOf(HasSubstr("host 'no-such-host.invalid' is unknown"), Not(HasSubstr("start one"))));
  const testing::SilentPort silent;
  EXPECT_THAT(error(silent.address()), AllOf(HasSubstr("answered within 3 s"),
                                             HasSubstr("firewall"), Not(HasSubstr("start one"))));
  std::string closed;
  closed = testing::SilentPort().address();
  EXPECT_THAT(error(closed),
              AllOf(HasSubstr("Connection refused"), HasSubstr("start one with statcollectord")));
}

// Hands connections on to another port, and what comes from there so much later.
class DistantPort : public testing::SilentPort {
 public:
  DistantPort(std::string to, std::chrono::milliseconds delay)
      : thread_([this, to = std::move(to), delay] {
          std::vector<std::thread> connections;
          for (int fd = Accept(); fd >= 0; fd = Accept())
            connections.emplace_back([=] { HandOn(fd, ConnectTo(to), delay); });
          for (std::thread& connection : connections) connection.join();
        }) {}
  ~DistantPort() {
    Shutdown();
    thread_.join();
  }

 private:
  // "127.0.0.1:PORT"
  static int ConnectTo(const std::string& address) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port =
        htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to), 0) << address;
    return fd;
  }
  static void HandOn(int near, int far, std::chrono::milliseconds delay) {
    pollfd ends[2] = {{.fd = near, .events = POLLIN, .revents = 0},
                      {.fd = far, .events = POLLIN, .revents = 0}};
    for (bool open = true; open && poll(ends, 2, -1) > 0;) {
      for (int i = 0; i < 2; ++i) {
        if (ends[i].revents == 0) continue;
        char bytes[4096];
        const ssize_t got = read(ends[i].fd, bytes, sizeof bytes);
        if (i == 1) std::this_thread::sleep_for(delay);
        open =
            open && got > 0 && write(ends[1 - i].fd, bytes, static_cast<std::size_t>(got)) == got;
      }
    }
    close(near);
    close(far);
  }
  std::thread thread_;
};

TEST_F(Statctl, ACollectorThatIsFarAwayIsWaitedFor) {
  const DistantPort far(server_.address(), std::chrono::milliseconds(300));
  const Finished done = testing::Process({STATCTL, "runs", "--collector", far.address()}).Wait();
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("base2"));
}

TEST_F(Statctl, ACollectorThatIsTooBusyToAnswerIsNotTakenForAnotherServer) {
  // A settings frame without settings, as gRPC sends it first.
  const TalkingPort busy(std::string("\0\0\0\4\0\0\0\0\0", 9), std::chrono::milliseconds(600));
  const Finished done =
      testing::Process({STATCTL, "runs", "--collector", busy.address(), "--timeout", "0.5"}).Wait();
  EXPECT_EQ(done.code, 2);
  EXPECT_THAT(done.err,
              AllOf(HasSubstr("answered within 0.5 s"), Not(HasSubstr("does not speak gRPC"))));
}

TEST_F(Statctl, RunsAreFilteredAndSorted) {
  RunWriter(server_.store, "gpt-1").Scalar(0, 0, "loss", 1).Commit();
  RunWriter(server_.store, "gpt-2", 2)
      .Observe(0, 0, Key("x"), {.values = {1}})
      .Scalar(0, 0, "loss", 1)
      .Unfinished(0)
      .Commit();
  const auto names = [this](std::vector<std::string> more) {
    more.insert(more.begin(), "runs");
    std::vector<std::string> names;
    const Json answer = RunJson(more);
    for (const Json& run : answer["runs"]) names.push_back(run["run"]);
    return names;
  };
  EXPECT_THAT(names({}), ElementsAre("base", "base2", "gpt-1", "gpt-2", "ort"));
  EXPECT_THAT(names({"--filter", "gpt-*"}), ElementsAre("gpt-1", "gpt-2"));
  EXPECT_THAT(names({"--filter", "base?"}), ElementsAre("base2"));
  EXPECT_THAT(names({"--filter", "gpt-*", "--state", "finished"}), ElementsAre("gpt-1"));
  EXPECT_THAT(names({"--sort", "records"}), ElementsAre("base", "base2", "ort", "gpt-2", "gpt-1"));
  EXPECT_EQ(Run({"runs", "--state", "running", "--filter", "g*"}).out,
            "None of the 5 runs is named 'g*' and is running; there are finished, interrupted.\n");
  EXPECT_EQ(Run({"runs", "--state", "runing"}).code, 2);
  EXPECT_EQ(Run({"runs", "--sort", "size"}).code, 2);
}

TEST_F(Statctl, RmTakesSeveralNamesAndPatterns) {
  for (const char* run : {"try-1", "try-2", "try-3", "kept"})
    RunWriter(server_.store, run).Observe(0, 0, Key("x"), {.values = {1}}).Commit();
  const Finished refused = Run({"rm", "try-1", "base*"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("--yes to remove 'base' (finished, "),
                                 HasSubstr("'base2'"), HasSubstr("'try-1'")));
  const Finished unknown = Run({"rm", "try-1", "tri-*", "--yes"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("no run matches 'tri-*'; nothing was removed"));
  EXPECT_EQ(server_.store.ListRuns()->size(), 7u);
  const Json removed = RunJson({"rm", "try-*", "try-1", "ort", "--yes"})["removed"];
  ASSERT_EQ(removed.size(), 4u) << "each once";
  EXPECT_EQ(removed[0]["run"], "ort");
  EXPECT_EQ(removed[3]["run"], "try-3");
  EXPECT_THAT(*server_.store.ListRuns(), ElementsAre("base", "base2", "kept"));
  testing::Process process(Command({"rm", "base", "kept"}), {}, testing::Process::Input::kTerminal);
  process.AwaitOutput("Remove these 2 runs with all their data? [y/N]");
  process.Type("y\n");
  EXPECT_EQ(process.Wait().code, 0);
  EXPECT_THAT(*server_.store.ListRuns(), ElementsAre("base2"));
}

TEST_F(Statctl, ScalarsOfTwoRunsAreCompared) {
  RunWriter one(server_.store, "one"), two(server_.store, "two");
  for (std::uint64_t step = 0; step < 4; ++step) {
    one.Scalar(0, step, "loss", 0.4648).Scalar(0, step, "lr", 0.1);
    two.Scalar(0, step, "loss", step < 2 ? 0.4648 : 0.6197).Scalar(0, step, "lr", 0.1);
  }
  two.Scalar(0, 4, "loss", 1).Commit();
  one.Commit();
  const Finished done = Run({"scalars", "one", "--against", "two"});
  EXPECT_EQ(done.code, 1) << done.err;
  const auto lines = Lines(done.out);
  ASSERT_GT(lines.size(), 10u) << done.out;
  EXPECT_EQ(lines[0], "DIFFERENT one and two");
  EXPECT_THAT(
      done.out,
      AllOf(HasSubstr("loss, rank 0: first differs at step 2: 0.4648 and 0.6197 (+33 %); 2 of 4 "
                      "values differ; 1 in one run only"),
            HasSubstr("lr, rank 0: 4 values, none differs")));
  EXPECT_THAT(done.out, HasSubstr("  loss     2  0.4648  0.6197      0.1549   +33 %\n"));
  const Json json = RunJson({"scalars", "one", "--against", "two", "--name", "loss"}, 1);
  EXPECT_EQ(json["series"][0]["first_step"], 2);
  EXPECT_EQ(json["series"][0]["only_b"], 1);
  EXPECT_EQ(json["records"][4]["a"], nullptr);
  EXPECT_NEAR(json["records"][2]["relative"].get<double>(), 0.3333, 1e-4);
  EXPECT_EQ(Run({"scalars", "one", "--against", "two", "--name", "lr"}).code, 0);
  EXPECT_EQ(Run({"scalars", "one", "--against", "two", "--steps", "0-1"}).code, 0);
  EXPECT_EQ(Run({"scalars", "one", "--against", "nobody"}).code, 2);
  EXPECT_EQ(Run({"scalars", "one", "two"}).out, done.out);
  EXPECT_THAT(Run({"scalars", "one", "--against", "two", "--format", "csv"}).out,
              StartsWith("name,rank,step,micro_batch,a,b,difference,relative\r\nloss,0,0,0,0.4648,"
                         "0.4648,0.0,0.0\r\n"));
}

TEST_F(Statctl, LongNamesOfScalarsAreCutInTheMiddle) {
  RunWriter writer(server_.store, "long");
  const std::string name = "begin/" + std::string(1000, 'x') + "/end";
  for (int i = 0; i < 9; ++i) writer.Scalar(0, 0, name + std::to_string(i), 1);
  writer.Commit();
  for (const std::string& line : Lines(Run({"scalars", "long"}).out))
    EXPECT_LT(line.size(), 90u) << line;
  EXPECT_THAT(Run({"scalars", "long"}).out, AllOf(HasSubstr("begin/xxx"), HasSubstr("xxx/end3")));
  const std::string wide = Run({"scalars", "long", "--name", name + "1"}).out;
  EXPECT_THAT(Lines(wide)[0], AllOf(HasSubstr("begin/xxx"), HasSubstr("/end1 (rank 0)")));
  EXPECT_LT(Lines(wide)[0].size(), 60u);
  EXPECT_THAT(Run({"scalars", "long", "--format", "csv"}).out, HasSubstr(name))
      << "whole for programs";
}

}  // namespace
}  // namespace statcollect
