// The real daemon on a small disk that another program fills, three times.
#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>
#include <cerrno>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "proto/convert.h"
#include "server/store/rocksdb/rocksdb_store.h"
#include "statcollect/v1/admin.grpc.pb.h"
#include "statcollect/v1/ingest.grpc.pb.h"
#include "statcollect/v1/query.grpc.pb.h"
#include "tests/faults/daemon.h"
#include "tests/faults/writer.h"

namespace statcollect {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::AnyOf;
using testing::CheckWritersPrefix;
using testing::Daemon;
using testing::FreePort;
using ::testing::HasSubstr;
using testing::kWriterRecords;
using ::testing::StartsWith;
using testing::Writer;

constexpr std::uint32_t kWriters = 2;

// A file system of its own, in memory. Unmounted with the object.
class SmallDisk {
 public:
  explicit SmallDisk(const char* options) {
    std::string pattern = ::testing::TempDir() + "/statcollect_disk_XXXXXX";
    path_ = mkdtemp(pattern.data());
    mounted_ =
        mount("statcollect-test", path_.c_str(), "tmpfs", MS_NODEV | MS_NOSUID, options) == 0;
    error_ = mounted_ ? "" : std::strerror(errno);
  }
  ~SmallDisk() {
    if (mounted_) umount2(path_.c_str(), MNT_DETACH);
    fs::remove_all(path_);
  }
  SmallDisk(const SmallDisk&) = delete;

  const std::string& path() const { return path_; }
  const std::string& error() const { return error_; }
  // All but `left` bytes; others may write meanwhile.
  void Fill(std::uint64_t left) {
    const int fd = open(Ballast().c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    off_t size = 0;
    for (std::uint64_t chunk = 1 << 20; chunk >= 4096;) {
      if (fs::space(path_).available > left &&
          posix_fallocate(fd, size, static_cast<off_t>(chunk)) == 0) {
        size += static_cast<off_t>(chunk);
      } else {
        chunk /= 2;
      }
    }
    close(fd);
  }
  void Free() { fs::remove(Ballast()); }

 private:
  std::string Ballast() const { return path_ + "/ballast"; }

  std::string path_, error_;
  bool mounted_ = false;
};

// Which daemon: with small memtables it writes to the disk all the time, and so meets ENOSPC before
// it has looked how much space there is.
struct Subject {
  const char* name;
  const char* program;
  std::vector<std::string> variables;
  bool meets_no_space;
};

class DiskFullTest : public ::testing::TestWithParam<Subject> {
 protected:
  void SetUp() override {
    if (!disk_.error().empty())
      GTEST_SKIP() << "needs the right to mount a tmpfs: " << disk_.error() << "; run as root";
    const auto channel = grpc::CreateChannel(daemon_.address(), grpc::InsecureChannelCredentials());
    admin_ = v1::Admin::NewStub(channel);
    query_ = v1::Query::NewStub(channel);
    ingest_ = v1::Ingest::NewStub(channel);
  }

  std::string State() {
    grpc::ClientContext context;
    v1::GetStatusResponse status;
    const grpc::Status asked = admin_->GetStatus(&context, {}, &status);
    return asked.ok() ? status.state() : asked.error_message();
  }
  bool Becomes(const std::string& beginning) {
    const auto deadline = std::chrono::steady_clock::now() + 15s;
    while (!State().starts_with(beginning)) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(50ms);
    }
    return true;
  }
  // What a new agent gets as an answer.
  grpc::Status SayHello() {
    SessionInfo info;
    info.run = "another";
    info.world_size = 1;
    info.session = {9};
    v1::AgentMessage hello;
    *hello.mutable_hello() = ToWire(info, 1);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + 10s);
    const auto stream = ingest_->Stream(&context);
    v1::CollectorMessage answer;
    if (stream->Write(hello) && stream->Read(&answer)) context.TryCancel();
    return stream->Finish();
  }
  // The store itself makes space when it deletes what it has merged, and then rightly recovers:
  // that space is filled, too.
  grpc::Status FillUntilRefused(std::uint64_t left) {
    const auto deadline = std::chrono::steady_clock::now() + 15s;
    grpc::Status answered;
    do {
      disk_.Fill(left);
      EXPECT_TRUE(Becomes("read_only: ")) << State();
      answered = SayHello();
    } while (answered.error_code() == grpc::StatusCode::CANCELLED &&
             std::chrono::steady_clock::now() < deadline);
    return answered;
  }
  void ExpectAnswers(const std::vector<std::unique_ptr<Writer>>& writers) {
    std::vector<std::uint64_t> acked;
    for (const auto& writer : writers) acked.push_back(writer->acked());
    v1::GetRunRequest request;
    request.set_run("load");
    v1::GetRunResponse response;
    grpc::ClientContext context;
    const grpc::Status asked = query_->GetRun(&context, request, &response);
    ASSERT_TRUE(asked.ok()) << asked.error_message();
    for (const auto& rank : response.attempts(0).ranks())
      EXPECT_GE(rank.records(), acked[rank.rank()]);
    v1::GetSeriesRequest series;
    series.set_run("load");
    series.set_activation(testing::WriterActivation(3));
    v1::GetSeriesResponse points;
    grpc::ClientContext again;
    const grpc::Status read = query_->GetSeries(&again, series, &points);
    EXPECT_TRUE(read.ok()) << read.error_message();
    EXPECT_GE(static_cast<std::uint64_t>(points.records_size()),
              (acked[0] + acked[1]) / kWriterRecords - 2);
  }

  SmallDisk disk_{"size=96m,mode=0700"};
  // Its log is on the small disk, too.
  Daemon daemon_{GetParam().program, disk_.path() + "/data", FreePort()};
  std::unique_ptr<v1::Admin::Stub> admin_;
  std::unique_ptr<v1::Query::Stub> query_;
  std::unique_ptr<v1::Ingest::Stub> ingest_;
};

TEST_P(DiskFullTest, IngestIsRefusedQueriesGoOnAndIngestRecoversByItself) {
  ASSERT_TRUE(daemon_.Start(GetParam().variables));
  const pid_t pid = daemon_.pid();
  std::vector<std::unique_ptr<Writer>> writers;
  for (std::uint32_t rank = 0; rank < kWriters; ++rank) {
    statagent::Options options{.run = "load", .collector = daemon_.address(), .launch = "launch"};
    options.rank = rank;
    options.world_size = kWriters;
    writers.push_back(std::make_unique<Writer>(std::move(options), 1ms));
  }
  for (auto& writer : writers) writer->Run();
  const auto await_progress = [&] {
    for (auto& writer : writers) {
      const std::uint64_t before = writer->acked();
      const auto deadline = std::chrono::steady_clock::now() + 15s;
      while (writer->acked() < before + 100 && std::chrono::steady_clock::now() < deadline)
        std::this_thread::sleep_for(5ms);
      EXPECT_GE(writer->acked(), before + 100) << "rank " << writer->rank();
    }
  };
  await_progress();
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const grpc::Status refused =
        FillUntilRefused(round % 2 == 0 ? 0 : 512 << 10);  // the threshold is larger
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED)
        << refused.error_message();
    EXPECT_THAT(refused.error_message(), AnyOf(HasSubstr("free some"), HasSubstr("free space")));
    ExpectAnswers(writers);
    disk_.Free();
    ASSERT_TRUE(Becomes("ready")) << State();
    await_progress();
    ExpectAnswers(writers);
  }
  EXPECT_FALSE(daemon_.WaitFor(0ms)) << "it has recovered without a restart";
  EXPECT_EQ(daemon_.pid(), pid);
  std::ifstream log(daemon_.log_path());
  int reopened = 0;
  for (std::string line; std::getline(log, line);)
    reopened += line.find("again: there is space") != line.npos;
  std::cout << "the store was opened again " << reopened << " times after ENOSPC" << std::endl;
  if (GetParam().meets_no_space) {
    EXPECT_GT(reopened, 0);
  }

  for (auto& writer : writers) writer->Stop();
  for (auto& writer : writers) {
    const Status closed = writer->agent().Close(20s);
    EXPECT_TRUE(closed.ok()) << closed.message();
    EXPECT_EQ(writer->acked(), writer->steps() * kWriterRecords);
  }
  daemon_.Signal(SIGTERM);
  ASSERT_TRUE(daemon_.WaitFor(10s));
  auto store = OpenRocksDbStore(daemon_.data_dir());
  ASSERT_TRUE(store.ok()) << store.status().message();
  const auto attempts = (*store)->Attempts("load");
  ASSERT_EQ(attempts->size(), 1u);
  const auto ranks = (*store)->Ranks(attempts->front().id);
  for (const auto& [rank, meta] : *ranks) {
    EXPECT_EQ(CheckWritersPrefix(**store, attempts->front().id, rank, meta),
              writers[rank]->steps() * kWriterRecords);
  }
}

INSTANTIATE_TEST_SUITE_P(Daemons, DiskFullTest,
                         ::testing::Values(Subject{"Product", PRODUCT_DAEMON, {}, false},
                                           Subject{"SmallMemtables",
                                                   FAILPOINT_DAEMON,
                                                   {"STATCOLLECT_MEMTABLE_BYTES=65536"},
                                                   true}),
                         [](const auto& subject) { return std::string(subject.param.name); });

}  // namespace
}  // namespace statcollect
