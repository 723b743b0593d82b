// The real daemon, ended with SIGKILL at random moments and at every failpoint, under load from
// real agents.
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "server/store/rocksdb/rocksdb_store.h"
#include "statcollect/v1/query.grpc.pb.h"
#include "tests/faults/daemon.h"
#include "tests/faults/writer.h"
#include "tests/support/fault_environment.h"

namespace statcollect {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using testing::CheckWritersPrefix;
using testing::Daemon;
using testing::FaultRounds;
using testing::FaultSeed;
using testing::FreePort;
using testing::kWriterActivations;
using testing::kWriterRecords;
using testing::Writer;

constexpr std::uint32_t kWriters = 4;
constexpr int kMoreTries = 6;

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// As the sources name them.
std::set<std::string> Failpoints() {
  std::set<std::string> names;
  const std::regex place("STATCOLLECT_FAILPOINT\\(\"([^\"]+)\"\\)");
  for (const auto& entry : fs::recursive_directory_iterator(SERVER_SOURCES)) {
    if (!entry.is_regular_file()) continue;
    const std::string text = ReadFile(entry.path());
    for (std::sregex_iterator it(text.begin(), text.end(), place), end; it != end; ++it)
      names.insert((*it)[1]);
  }
  return names;
}

TEST(Failpoints, AreInTheTestsDaemonAndNotInTheProduct) {
  const std::string with = ReadFile(FAILPOINT_DAEMON), without = ReadFile(PRODUCT_DAEMON);
  ASSERT_GT(without.size(), 100'000u);
  ASSERT_GT(Failpoints().size(), 10u);
  for (const std::string& name : Failpoints()) {
    EXPECT_NE(with.find(name), std::string::npos) << name;
    EXPECT_EQ(without.find(name), std::string::npos) << name;
  }
  EXPECT_EQ(without.find("STATCOLLECT_FAILPOINT"), std::string::npos);
  EXPECT_EQ(without.find("STATCOLLECT_MEMTABLE_BYTES"), std::string::npos);
}

class KillTest : public ::testing::Test {
 protected:
  KillTest() : random_(FaultSeed()) {
    std::string pattern = ::testing::TempDir() + "/statcollect_kill_XXXXXX";
    directory_ = mkdtemp(pattern.data());
    daemon_ = std::make_unique<Daemon>(FAILPOINT_DAEMON, directory_ + "/data", FreePort());
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    stub_ = v1::Query::NewStub(grpc::CreateCustomChannel(
        daemon_->address(), grpc::InsecureChannelCredentials(), arguments));
  }
  ~KillTest() override {
    daemon_.reset();
    fs::remove_all(directory_);
  }

  // `failpoint`: empty or "name:n".
  bool Start(const std::string& failpoint = "") {
    std::vector<std::string> variables = {"STATCOLLECT_MEMTABLE_BYTES=65536"};
    if (!failpoint.empty()) variables.push_back("STATCOLLECT_FAILPOINT=" + failpoint);
    const bool ready = daemon_->Start(variables);
    if (ready) slowest_start_ = std::max(slowest_start_, daemon_->ready_after);
    return ready;
  }

  statagent::Options OptionsOf(const std::string& run, std::uint32_t rank, std::uint32_t world) {
    statagent::Options options{
        .run = run, .collector = daemon_->address(), .launch = run + "-launch"};
    options.rank = rank;
    options.world_size = world;
    options.connect_timeout = 10s;
    return options;
  }

  // A launch after the other under one name, each removing the one before.
  void RunChurn(const std::stop_token& stop) {
    for (int launch = 0; !stop.stop_requested(); ++launch) {
      statagent::Options options = OptionsOf("churn", 0, 1);
      options.launch = "launch " + std::to_string(launch);
      options.if_exists = "replace";
      options.connect_timeout = 500ms;
      Writer writer(std::move(options), 100us);
      for (int step = 0; step < 20 && !stop.stop_requested(); ++step) writer.WriteStep();
      (void)writer.agent().Close(500ms);
    }
  }

  std::map<std::uint32_t, std::uint64_t> StoredRecords() {
    v1::GetRunRequest request;
    request.set_run("load");
    v1::GetRunResponse response;
    for (int attempt = 0; attempt < 50; ++attempt) {
      grpc::ClientContext context;
      context.set_wait_for_ready(true);
      context.set_deadline(std::chrono::system_clock::now() + 10s);
      if (stub_->GetRun(&context, request, &response).ok()) break;
      std::this_thread::sleep_for(20ms);
    }
    std::map<std::uint32_t, std::uint64_t> records;
    for (const auto& attempt : response.attempts()) {
      for (const auto& rank : attempt.ranks()) records[rank.rank()] = rank.records();
    }
    return records;
  }

  // Until each has been acknowledged something since the daemon came back, or the daemon is gone.
  void AwaitProgress(const std::vector<std::unique_ptr<Writer>>& writers) {
    std::vector<std::uint64_t> before;
    for (const auto& writer : writers) before.push_back(writer->acked());
    const auto begin = std::chrono::steady_clock::now(), deadline = begin + 30s;
    for (std::size_t i = 0; i < writers.size(); ++i) {
      while (writers[i]->acked() == before[i]) {
        if (daemon_->WaitFor(0ms)) return;
        ASSERT_LT(std::chrono::steady_clock::now(), deadline)
            << "rank " << i << " gets nothing acknowledged";
        std::this_thread::sleep_for(2ms);
      }
    }
    slowest_progress_ = std::max(slowest_progress_, std::chrono::steady_clock::now() - begin);
  }

  // One kill under load, at a failpoint or (without a name) at a random moment; then a start, after
  // which nothing acknowledged is missing. True: it died there.
  bool KillOnce(const std::string& place, const std::vector<std::unique_ptr<Writer>>& writers,
                bool patient = false) {
    daemon_->Kill();  // the quiet one of the round before
    const bool often = place.starts_with("commit.") || place.starts_with("ack.");
    const bool stopping = place.starts_with("stop.");
    const std::uint64_t passes = patient || stopping ? 1 : 1 + random_() % (often ? 30 : 2);
    bool died = true;
    if (Start(place.empty() ? "" : place + ":" + std::to_string(passes))) {
      AwaitProgress(writers);
      if (place.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(random_() % 150));
      if (stopping) daemon_->Signal(SIGTERM);
      int status = 0;
      died = !place.empty() && daemon_->WaitFor(patient ? 20s : 4s, &status);
      if (died && WIFEXITED(status)) died = false;  // it came to its end without passing
      daemon_->Kill();
    } else {
      EXPECT_TRUE(daemon_->WaitFor(1s));
    }
    std::vector<std::uint64_t> acked;
    for (const auto& writer : writers) acked.push_back(writer->acked());
    EXPECT_TRUE(Start());
    auto stored = StoredRecords();
    for (std::uint32_t rank = 0; rank < kWriters; ++rank)
      EXPECT_GE(stored[rank], acked[rank]) << "rank " << rank << ": acknowledged and lost";
    return died;
  }

  std::mt19937_64 random_;
  std::string directory_;
  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<v1::Query::Stub> stub_;
  std::chrono::steady_clock::duration slowest_start_{}, slowest_progress_{};
};

TEST_F(KillTest, NothingAcknowledgedIsLostAndNothingIsThereTwice) {
  ASSERT_TRUE(Start());
  std::vector<std::unique_ptr<Writer>> writers;
  for (std::uint32_t rank = 0; rank < kWriters; ++rank)
    writers.push_back(std::make_unique<Writer>(OptionsOf("load", rank, kWriters), 2ms));
  for (auto& writer : writers) writer->Run();
  std::jthread churn([&](const std::stop_token& stop) { RunChurn(stop); });

  const std::set<std::string> names = Failpoints();
  std::vector<std::string> plan(names.begin(), names.end());
  plan.resize(
      std::max<std::size_t>(FaultRounds(plan.size() + 8), plan.size()));  // the others: at random
  for (std::size_t i = names.size(); i < plan.size(); ++i) {
    if (i % 3 == 0)
      plan[i] = *std::next(names.begin(), static_cast<std::ptrdiff_t>(random_() % names.size()));
  }
  std::shuffle(plan.begin(), plan.end(), random_);
  std::map<std::string, int> died;  // by place
  std::size_t rounds = 0;
  for (const std::string& place : plan) {
    if (HasFailure()) break;
    SCOPED_TRACE("round " + std::to_string(++rounds) + " " + place);
    if (KillOnce(place, writers) && !place.empty()) ++died[place];
  }
  // What takes some luck to pass in a round, once more until it was passed.
  for (const std::string& place : names) {
    for (int tries = 0; died[place] == 0 && tries < kMoreTries && !HasFailure();
         ++tries, ++rounds) {
      SCOPED_TRACE("once more: " + place);
      if (KillOnce(place, writers, /*patient=*/true)) ++died[place];
    }
  }

  churn.request_stop();
  churn.join();
  for (auto& writer : writers) writer->Stop();
  std::uint64_t total = 0;
  for (auto& writer : writers) {
    const Status closed = writer->agent().Close(20s);
    EXPECT_TRUE(closed.ok()) << closed.message();
    const auto counters = writer->agent().counters();
    EXPECT_EQ(counters.produced, writer->steps() * kWriterRecords);
    EXPECT_EQ(counters.acked, counters.produced);
    EXPECT_EQ(StoredRecords()[writer->rank()], counters.produced);
    total += counters.produced;
  }
  constexpr std::uint64_t kSteps = 100'000;  // an answer has a million rows at most
  std::map<std::uint32_t, std::uint64_t> points;
  for (const auto& writer : writers) {
    for (std::uint64_t first = 0; first < writer->steps(); first += kSteps) {
      v1::GetSeriesRequest request;
      request.set_run("load");
      request.set_activation(testing::WriterActivation(7));
      request.add_ranks(writer->rank());
      request.set_steps(std::to_string(first) + "-" + std::to_string(first + kSteps - 1));
      v1::GetSeriesResponse response;
      grpc::ClientContext context;
      const grpc::Status asked = stub_->GetSeries(&context, request, &response);
      EXPECT_TRUE(asked.ok()) << asked.error_message();
      for (const auto& point : response.records()) EXPECT_EQ(point.step(), points[point.rank()]++);
    }
  }
  for (const auto& writer : writers) EXPECT_EQ(points[writer->rank()], writer->steps());
  daemon_->Signal(SIGTERM);
  EXPECT_TRUE(daemon_->WaitFor(60s));

  auto store = OpenRocksDbStore(daemon_->data_dir());
  ASSERT_TRUE(store.ok()) << store.status().message();
  const auto runs = (*store)->ListRuns();
  for (const std::string& run : *runs) {
    const auto attempts = (*store)->Attempts(run);
    for (const AttemptMeta& attempt : *attempts) {
      const auto ranks = (*store)->Ranks(attempt.id);
      for (const auto& [rank, meta] : *ranks) {
        SCOPED_TRACE("run " + run + ", attempt " + std::to_string(attempt.id) + ", rank " +
                     std::to_string(rank));
        const std::uint64_t records = CheckWritersPrefix(**store, attempt.id, rank, meta);
        EXPECT_TRUE(run != "load" || records == writers[rank]->steps() * kWriterRecords);
      }
    }
  }
  int at_failpoints = 0;
  std::string quiet;
  for (const std::string& name : names) {
    at_failpoints += died[name];
    if (died[name] == 0) quiet += " " + name;
  }
  std::cout << rounds << " kills, " << at_failpoints << " of them at " << names.size()
            << " failpoints (not passed in time:" << (quiet.empty() ? " none" : quiet) << "); "
            << total << " records of " << kWriters << " ranks; slowest start "
            << std::chrono::duration_cast<std::chrono::milliseconds>(slowest_start_).count()
            << " ms, slowest first acknowledgement of all ranks after it "
            << std::chrono::duration_cast<std::chrono::milliseconds>(slowest_progress_).count()
            << " ms" << std::endl;
  EXPECT_EQ(quiet, "")
      << "failpoints that were never passed: the load does not reach them any more";
  EXPECT_LT(slowest_start_, 10s);
}

}  // namespace
}  // namespace statcollect
