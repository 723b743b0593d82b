// The agent as a training process has it, against a real gRPC server.
#include "statagent/agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/fake_collector.h"

namespace statagent {
namespace {

using statcollect::testing::FakeCollector;
using statcollect::testing::MemoryStore;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;

constexpr std::array<std::int64_t, 2> kShape = {4, 8};

struct Activation {
  std::vector<float> values = std::vector<float>(32, 0.5f);
  TensorView view() const { return {.data = values.data(), .dtype = DType::kF32, .shape = kShape}; }
};

Options For(const std::string& collector) {
  return {.run = "base", .collector = collector, .rank = 0, .local_rank = 0, .world_size = 1};
}

std::unique_ptr<Agent> StartOrDie(Options options) {
  auto agent = Agent::Start(std::move(options));
  EXPECT_TRUE(agent.ok()) << agent.status().message();
  return agent.ok() ? *std::move(agent) : nullptr;
}

bool Balanced(const Counters& c) {
  std::uint64_t dropped = 0;
  for (const auto& [cause, n] : c.dropped) dropped += n;
  return c.produced == c.acked + dropped + c.pending;
}

// One step of a model of two layers: 3 records.
void Step(Agent* agent, const Activation& activation, int step) {
  EXPECT_TRUE(agent->Observe({.name = "fc1"}, activation.view()).ok());
  EXPECT_TRUE(agent->LogScalar("loss", 1.0 / (step + 1)).ok());
  agent->EndStep();
}

// A port where nobody listens.
std::string UnusedAddress() {
  MemoryStore store;
  FakeCollector server(&store);
  return server.address();
}

// Accepts connections and never answers: a stopped process, or one that is not a collector.
class MuteListener {
 public:
  MuteListener() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(socket_, 16), 0);
    EXPECT_EQ(getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~MuteListener() { close(socket_); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  const int socket_;
  int port_ = 0;
};

TEST(Agent, EverythingHandedOverArrivesOnceAndInOrder) {
  MemoryStore store;
  FakeCollector server(&store);
  const Activation activation;
  auto agent = StartOrDie(For(server.address()));
  for (int step = 0; step < 50; ++step) Step(agent.get(), activation, step);
  EXPECT_TRUE(agent->LogEvent("note", "hello", {{"a", "b"}}).ok());
  EXPECT_TRUE(agent->Flush(seconds(30)).ok());
  EXPECT_EQ(agent->counters().acked, 151u);
  EXPECT_TRUE(agent->Close(seconds(30)).ok());
  EXPECT_TRUE(Balanced(agent->counters()));

  const auto session = store.Only();
  EXPECT_EQ(session.error, "");
  EXPECT_EQ(session.info.run, "base");
  EXPECT_EQ(session.watermark, 151u);
  EXPECT_EQ(Observations(session), 50u);
  EXPECT_EQ(Scalars(session).size(), 50u);
  EXPECT_EQ(Scalars(session)[49].step, 49u);
  EXPECT_EQ(Steps(session).size(), 50u);
  EXPECT_EQ(Events(session).at(0).fields.at("a"), "b");
  ASSERT_EQ(session.activations.size(), 1u);
  EXPECT_EQ(session.activations[0].key.name, "fc1");
  EXPECT_EQ(session.batches.at(0).stats.stats.at(0).mean, 0.5);
  ASSERT_TRUE(session.goodbye.has_value());
  EXPECT_EQ(session.goodbye->produced, 151u);
  EXPECT_EQ(session.goodbye->acked, 151u);
}

TEST(Agent, ResumesAfterTheCollectorWasRestartedWithoutLossOrDuplicate) {
  MemoryStore store;
  auto server = std::make_unique<FakeCollector>(&store);
  const int port = server->port();
  const Activation activation;
  auto agent = StartOrDie(For(server->address()));
  std::uint64_t restarts = 0;
  for (int step = 0; step < 300; ++step) {
    Step(agent.get(), activation, step);
    if (step % 100 == 50) {
      EXPECT_TRUE(store.WaitFor([](const auto& s) { return s.watermark > 0; }));
      server.reset();
      for (int i = 0; i < 20; ++i) Step(agent.get(), activation, step);
      server = std::make_unique<FakeCollector>(&store, port);
      ASSERT_TRUE(server->running());
      ++restarts;
    }
  }
  EXPECT_EQ(restarts, 3u);
  const std::uint64_t expected = 3 * (300 + 3 * 20);
  const Status closed = agent->Close(seconds(60));
  EXPECT_TRUE(closed.ok()) << closed.message();
  EXPECT_EQ(agent->counters().acked, expected);
  const auto session = store.Only();
  EXPECT_EQ(session.error, "");
  EXPECT_EQ(session.watermark, expected);
  const auto steps = Steps(session);
  ASSERT_EQ(steps.size(), expected / 3);
  for (std::size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i].step, i);
}

TEST(Agent, TellsWhoeverStartsThatTheRunIsTaken) {
  MemoryStore store;
  FakeCollector server(&store, 0,
                       {.hello = {grpc::StatusCode::ALREADY_EXISTS,
                                  "run 'base' has 12 steps; use another name, replace or append"}});
  const auto agent = Agent::Start(For(server.address()));
  ASSERT_FALSE(agent.ok());
  EXPECT_EQ(agent.status().code(), Code::kAlreadyExists);
  EXPECT_EQ(agent.status().message(),
            "run 'base' has 12 steps; use another name, replace or append");
}

TEST(Agent, FailsToStartWithoutACollectorOnlyIfItIsRequired) {
  Options options = For(UnusedAddress());
  options.required = true;
  options.connect_timeout = milliseconds(300);
  const auto required = Agent::Start(options);
  ASSERT_FALSE(required.ok());
  EXPECT_EQ(required.status().code(), Code::kUnavailable);
  EXPECT_THAT(required.status().message(), HasSubstr(options.collector));

  options.required = false;
  auto agent = StartOrDie(options);
  Step(agent.get(), {}, 0);
  EXPECT_EQ(agent->counters().pending, 3u);
  const Status closed = agent->Close(milliseconds(100));
  EXPECT_EQ(closed.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(closed.message(),
              AllOf(HasSubstr("give close a longer timeout"), Not(HasSubstr("close("))))
      << "C, C++ and Python read it";
  EXPECT_EQ(agent->counters().dropped.at("closed"), 3u);
  EXPECT_TRUE(Balanced(agent->counters()));
}

TEST(Agent, RecordsWaitForACollectorThatStartsLater) {
  MemoryStore store;
  int port = 0;
  {
    FakeCollector server(&store);
    port = server.port();
  }
  auto agent = StartOrDie(For("127.0.0.1:" + std::to_string(port)));
  Step(agent.get(), {}, 0);
  FakeCollector server(&store, port);
  ASSERT_TRUE(server.running());
  EXPECT_TRUE(agent->Flush(seconds(30)).ok());
  EXPECT_EQ(store.Only().watermark, 3u);
}

TEST(Agent, ClosingIsBoundedWhenTheCollectorIsAwaySilentOrSlow) {
  MemoryStore store;
  FakeCollector silent(&store, 0, {.acknowledge = false});
  MuteListener mute;
  for (const std::string& collector : {UnusedAddress(), silent.address(), mute.address()}) {
    Options options = For(collector);
    options.connect_timeout = milliseconds(200);
    auto agent = StartOrDie(options);
    Step(agent.get(), {}, 0);
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_FALSE(agent->Close(milliseconds(300)).ok());
    const auto took = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(took, seconds(5)) << collector;
    EXPECT_EQ(agent->counters().pending, 0u);
    EXPECT_TRUE(Balanced(agent->counters()));
  }
}

TEST(Agent, CountsWhatDoesNotFitAndReportsIt) {
  MemoryStore store;
  int port = 0;
  {
    FakeCollector server(&store);
    port = server.port();
  }
  Options options = For("127.0.0.1:" + std::to_string(port));
  options.buffer_records_max = 10;
  auto agent = StartOrDie(options);
  const Activation activation;
  // The window takes eight batches before the buffer fills.
  for (int i = 0; i < 20000 && agent->counters().dropped.empty(); ++i) {
    ASSERT_TRUE(agent->Observe({.name = "x"}, activation.view()).ok());
  }
  EXPECT_GT(agent->counters().dropped["buffer_full"], 0u);
  EXPECT_TRUE(Balanced(agent->counters()));
  agent->EndStep();
  FakeCollector server(&store, port);
  ASSERT_TRUE(server.running());
  EXPECT_TRUE(agent->Close(seconds(30)).ok());
  const auto events = Events(store.Only());
  const std::uint64_t reported = std::accumulate(
      events.begin(), events.end(), std::uint64_t{0}, [](std::uint64_t sum, const auto& event) {
        return sum + std::stoull(event.fields.at("count"));
      });
  EXPECT_EQ(events.at(0).kind, "records_dropped");
  EXPECT_EQ(reported, agent->counters().dropped.at("buffer_full"));
}

TEST(Agent, ManyThreadsRecordAtOnceAndTheBooksBalance) {
  MemoryStore store;
  FakeCollector server(&store);
  auto agent = StartOrDie(For(server.address()));
  std::atomic<bool> stop{false};
  std::thread auditor([&] {
    while (!stop) ASSERT_TRUE(Balanced(agent->counters()));
  });
  std::vector<std::thread> workers;
  for (std::uint32_t w = 0; w < 3; ++w) {
    workers.emplace_back([&, w] {
      const Activation activation;
      const std::string name = "layer" + std::to_string(w);
      for (int i = 0; i < 500; ++i) {
        EXPECT_TRUE(agent->Observe({.name = name}, activation.view()).ok());
        if (w == 0 && i % 10 == 0) agent->EndStep();
      }
    });
  }
  for (std::thread& t : workers) t.join();
  EXPECT_TRUE(agent->Close(seconds(60)).ok());
  stop = true;
  auditor.join();
  const auto session = store.Only();
  EXPECT_EQ(session.error, "");
  EXPECT_EQ(Observations(session), 1500u);
  EXPECT_EQ(agent->counters().acked, 1550u);
}

TEST(Agent, RefusesWhatMakesNoSenseAndRecordsNothingOfIt) {
  MemoryStore store;
  FakeCollector server(&store);
  auto agent = StartOrDie(For(server.address()));
  const Activation activation;
  TensorView bad = activation.view();
  bad.dtype = DType::kUnspecified;
  EXPECT_EQ(agent->Observe({.name = "x"}, bad).code(), Code::kInvalidArgument);
  bad = activation.view();
  bad.device = Device::kCuda;
  const Code code = agent->Observe({.name = "x"}, bad).code();
  EXPECT_TRUE(code == Code::kUnimplemented || code == Code::kInvalidArgument)
      << "without a GPU, and with one";
  EXPECT_EQ(agent->Observe({.name = ""}, activation.view()).code(), Code::kInvalidArgument);
  EXPECT_EQ(agent->Observe({.name = "x", .call = -2}, activation.view()).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(agent->Intern({.name = "x"}).status().code(), Code::kInvalidArgument)
      << "call must be given";
  EXPECT_EQ(agent->Observe(4711, activation.view()).code(), Code::kInvalidArgument);
  EXPECT_EQ(agent->counters().produced, 0u);
  EXPECT_TRUE(agent->Close(seconds(30)).ok());
  EXPECT_TRUE(agent->Observe({.name = "late"}, activation.view()).ok()) << "counted, not raised";
  EXPECT_EQ(agent->counters().dropped.at("closed"), 1u);
}

TEST(Agent, TakesEveryKindOfTensor) {
  MemoryStore store;
  FakeCollector server(&store);
  auto agent = StartOrDie(For(server.address()));
  alignas(16) const std::array<unsigned char, 1024> zeros{};
  const std::array<std::int64_t, 2> shape = {3, 5}, strides = {1, 3}, empty = {0, 5};
  for (int dtype = 1; dtype < statcollect::kDTypeCount; ++dtype) {
    const std::string name = "t" + std::to_string(dtype);
    const TensorView view{.data = zeros.data(),
                          .dtype = static_cast<DType>(dtype),
                          .shape = shape,
                          .strides = strides};
    EXPECT_TRUE(agent->Observe({.name = name}, view).ok()) << dtype;
    EXPECT_TRUE(
        agent->Observe({.name = name + ".empty"}, {.dtype = view.dtype, .shape = empty}).ok());
    EXPECT_TRUE(
        agent->Observe({.name = name + ".scalar"}, {.data = zeros.data(), .dtype = view.dtype})
            .ok());
  }
  agent->EndStep();
  const Status closed = agent->Close(seconds(30));
  EXPECT_TRUE(closed.ok()) << closed.message();
  EXPECT_EQ(store.Only().error, "");
  EXPECT_EQ(Observations(store.Only()), 3u * (statcollect::kDTypeCount - 1));
}

TEST(Agent, DisabledDoesNothing) {
  setenv("STATAGENT_DISABLE", "1", 1);
  auto agent = StartOrDie({});
  unsetenv("STATAGENT_DISABLE");
  EXPECT_TRUE(agent->Observe({.name = "x"}, {}).ok());
  EXPECT_FALSE(agent->StepWanted());
  agent->EndStep();
  EXPECT_EQ(agent->counters().produced, 0u);
  EXPECT_TRUE(agent->Flush(seconds(1)).ok());
  EXPECT_TRUE(agent->Close(seconds(1)).ok());
}

// Of each thread of the agent's: its name and which signals it blocks. Waits until there are
// `count` that run: a thread is named by the one that starts it, and the C library starts it with
// every signal blocked, even those of its own faults.
std::map<std::string, std::uint64_t> AgentThreads(std::size_t count) {
  std::map<std::string, std::uint64_t> threads;
  const auto deadline = steady_clock::now() + seconds(30);
  while (threads.size() < count && steady_clock::now() < deadline) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream status(entry.path() / "status");
      std::string line, name;
      while (std::getline(status, line)) {
        if (line.starts_with("Name:")) name = line.substr(6);
        if (!line.starts_with("SigBlk:") || !name.starts_with("statagent-")) continue;
        const std::uint64_t blocked = std::stoull(line.substr(8), nullptr, 16);
        if ((blocked >> (SIGSEGV - 1) & 1) == 0) threads[name] = blocked;
      }
    }
  }
  return threads;
}

TEST(Agent, ItsThreadsLeaveTheSignalsToTheProgram) {
  MemoryStore store;
  FakeCollector server(&store);
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  auto agent = StartOrDie(For(server.address()));
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (int signal = 1; signal <= SIGRTMAX; ++signal) {
    EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal))
        << "the caller's own mask is as it was: signal " << signal;
  }
  const auto threads = AgentThreads(3);
  EXPECT_THAT(threads,
              ElementsAre(Key("statagent-batch"), Key("statagent-read"), Key("statagent-send")));
  for (const auto& [name, blocked] : threads) {
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD}) {
      EXPECT_TRUE(blocked >> (signal - 1) & 1) << name << " takes signal " << signal;
    }
  }
}

// Runs the function in a forked child; its exit code.
int InChild(const std::function<int()>& function) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(30);
    std::_Exit(function());
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST(Agent, IsInertInAForkedChildAndGoesOnInTheParent) {
  MemoryStore store;
  FakeCollector server(&store);
  auto agent = StartOrDie(For(server.address()));
  const Activation activation;
  Step(agent.get(), activation, 0);
  EXPECT_EQ(InChild([&] {
              if (!agent->Observe({.name = "x"}, activation.view()).ok()) return 1;
              agent->EndStep();
              if (agent->counters().produced != 0 || agent->StepWanted()) return 2;
              if (!agent->Flush(seconds(10)).ok() || !agent->Close(seconds(10)).ok()) return 3;
              if (Agent::Start(For(server.address())).status().code() != Code::kFailedPrecondition)
                return 4;
              if (!Compute(activation.view()).ok()) return 5;
              agent.reset();
              return 0;
            }),
            0);
  Step(agent.get(), activation, 1);
  EXPECT_TRUE(agent->Close(seconds(30)).ok());
  EXPECT_EQ(store.sessions(), 1u);
  EXPECT_EQ(store.Only().watermark, 6u);
}

// These run in a process of their own, because they end it.
TEST(AgentAtExitDeathTest, FlushesWhenTheProcessExitsWithAnOpenAgent) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        static MemoryStore* const store = new MemoryStore;
        static FakeCollector* const server = new FakeCollector(store);
        // Registered before the agent's own, so it runs after.
        std::atexit(
            [] { std::_Exit(store->Only().watermark == 3 && store->Only().goodbye ? 0 : 7); });
        Agent* leaked = StartOrDie(For(server->address())).release();
        Step(leaked, {}, 0);
        std::exit(5);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(AgentAtExitDeathTest, ExitsSoonWithoutACollector) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        Agent* leaked = StartOrDie(For("127.0.0.1:1")).release();
        Step(leaked, {}, 0);
        alarm(10);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace statagent
