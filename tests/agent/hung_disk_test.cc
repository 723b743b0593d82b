// Ending is bounded, whatever the system calls of the process do: a spill disk whose writes never
// return, and a standard error that nobody reads.
#include <fcntl.h>
#include <limits.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>

#include <gtest/gtest.h>

#include "statagent/agent.h"

namespace {

std::atomic<bool> disk_hangs{false};
std::atomic<int> hanging{0};

bool IsSpillFile(int fd) {
  std::array<char, PATH_MAX> path{};
  const ssize_t size =
      readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path.data(), path.size());
  return size > 0 && std::string_view(path.data(), static_cast<std::size_t>(size)).find("/rank") !=
                         std::string_view::npos;
}

ssize_t WriteOrHang(int fd, const void* data, size_t size, off_t offset) {
  if (disk_hangs && IsSpillFile(fd)) {
    ++hanging;
    while (true) pause();
  }
  return syscall(SYS_pwrite64, fd, data, size, offset);
}

}  // namespace

// Instead of the C library's: the disk of this process.
extern "C" ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  return WriteOrHang(fd, data, size, offset);
}
extern "C" ssize_t pwrite64(int fd, const void* data, size_t size, off_t offset) {
  return WriteOrHang(fd, data, size, offset);
}

namespace statagent {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr std::array<std::int64_t, 1> kShape = {8};

// Nobody listens there.
Options Unreachable(const std::string& spill_dir = "") {
  Options options{
      .run = "base", .collector = "127.0.0.1:1", .rank = 0, .local_rank = 0, .world_size = 1};
  options.connect_timeout = milliseconds(100);
  options.spill_dir = spill_dir;
  return options;
}

std::unique_ptr<Agent> StartAndTrain(const std::string& folder, int steps) {
  auto agent = Agent::Start(Unreachable(folder));
  if (!agent.ok()) std::_Exit(20);
  const std::array<float, 8> values{};
  for (int step = 0; step < steps; ++step) {
    (void)(*agent)->Observe({.name = "fc1"},
                            {.data = values.data(), .dtype = DType::kF32, .shape = kShape});
    (*agent)->EndStep();
    if (steps > 1) std::this_thread::sleep_for(milliseconds(60));  // each a batch of its own
  }
  return *std::move(agent);
}

class HungDiskDeathTest : public ::testing::TestWithParam<int> {
 protected:
  HungDiskDeathTest() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    std::string pattern = ::testing::TempDir() + "/hung_disk_XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~HungDiskDeathTest() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
};

// What the processes of the tests do. They end with 0 if all is well.

void CloseOnAHungDisk(const std::string& folder, int steps) {
  alarm(30);
  disk_hangs = true;
  auto agent = StartAndTrain(folder, steps);
  while (steps > 1 && hanging == 0) std::this_thread::sleep_for(milliseconds(1));
  const auto began = steady_clock::now();
  const Status closed = agent->Close(seconds(2));
  const auto took = steady_clock::now() - began;
  if (closed.code() != Code::kDeadlineExceeded) std::_Exit(2);
  if (closed.message().find("does not answer") == std::string::npos) std::_Exit(3);
  if (hanging == 0) std::_Exit(4);
  if (took > seconds(20)) std::_Exit(5);
  const Counters c = agent->counters();
  if (c.produced == 0 || c.pending == 0) std::_Exit(6);
  const std::array<float, 8> values{};
  (void)agent->Observe({.name = "fc1"},
                       {.data = values.data(), .dtype = DType::kF32, .shape = kShape});
  agent.reset();
  std::exit(0);
}

void ExitOnAHungDisk(const std::string& folder, int steps) {
  alarm(30);
  disk_hangs = true;
  Agent* leaked = StartAndTrain(folder, steps).release();
  if (leaked->counters().produced == 0) std::_Exit(2);
  std::exit(0);
}

// The pipe is full, and nobody reads it.
void TrainWithABlockedStandardError() {
  alarm(30);
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) std::_Exit(20);
  fcntl(ends[1], F_SETFL, O_NONBLOCK);
  const std::string page(4096, 'x');
  while (write(ends[1], page.data(), page.size()) > 0) {
  }
  fcntl(ends[1], F_SETFL, 0);
  dup2(ends[1], STDERR_FILENO);
  auto agent = Agent::Start(Unreachable());  // says that there is no collector
  if (!agent.ok()) std::_Exit(2);
  (void)(*agent)->LogScalar("loss", 1);
  (*agent)->EndStep();
  if ((*agent)->Close(milliseconds(300)).ok()) std::_Exit(3);  // says what is lost
  Agent* leaked = Agent::Start(Unreachable())->release();
  (void)leaked->LogScalar("loss", 1);
  std::exit(0);
}

// One step waits in memory until the end writes it; with many, the batcher hangs in training.
TEST_P(HungDiskDeathTest, CloseGivesUpAndLeavesTheThreadsBehind) {
  EXPECT_EXIT(CloseOnAHungDisk(folder_, GetParam()), ::testing::ExitedWithCode(0), "");
}

TEST_P(HungDiskDeathTest, TheProcessEnds) {
  EXPECT_EXIT(ExitOnAHungDisk(folder_, GetParam()), ::testing::ExitedWithCode(0), "");
}

INSTANTIATE_TEST_SUITE_P(Steps, HungDiskDeathTest, ::testing::Values(1, 16));

TEST(BlockedStandardErrorDeathTest, NeitherTrainingNorTheEndWaits) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(TrainWithABlockedStandardError(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace statagent
