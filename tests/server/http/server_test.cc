#include "server/http/server.h"

#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include "server/api/http/pages.h"

namespace statcollect {
namespace {

namespace asio = boost::asio;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class FakeControl : public CollectorControl {
 public:
  CollectorStatus GetStatus() override { return status; }
  Result<DeletedRun> DeleteRun(const std::string&, bool) override { return DeletedRun{}; }
  Status KeepRun(const std::string&, bool) override { return Status::Ok(); }
  Result<std::uint32_t> RecordSteps(const std::string&, const std::string&) override { return 0u; }
  Result<RequestedCapture> RequestCapture(const std::string&, const std::vector<std::uint32_t>&,
                                          const CaptureSpec&) override {
    return RequestedCapture();
  }
  Result<MadeCheckpoint> Checkpoint(const std::string&) override { return MadeCheckpoint{}; }
  bool IsStreamOpen(std::uint32_t, std::uint32_t) override { return false; }
  CollectorStatus status{
      .version = "9.9", .data_dir = "<d&ir>", .state = "ready", .records_total = 41};
};

class HttpServerTest : public testing::Test {
 protected:
  void SetUp() override { StartServer({}); }
  void TearDown() override {
    server_.reset();
    io_->stop();
    thread_.join();
  }

  void StartServer(HttpLimits limits) {
    io_ = std::make_unique<asio::io_context>();
    server_ = std::make_unique<HttpServer>(*io_, MakePages(control_), limits);
    ASSERT_TRUE(server_->Start({.host = "127.0.0.1", .port = 0}).ok());
    thread_ = std::thread([this] { io_->run(); });
  }

  // Sends raw bytes, returns all that comes back until the server closes.
  std::string Send(const std::string& request) {
    asio::io_context io;
    asio::ip::tcp::socket socket(io);
    socket.connect({asio::ip::make_address("127.0.0.1"), server_->endpoint().port});
    boost::system::error_code ignored;
    asio::write(socket, asio::buffer(request), ignored);
    std::string answer;
    asio::read(socket, asio::dynamic_buffer(answer), ignored);
    return answer;
  }
  std::string Get(const std::string& target, const std::string& method = "GET") {
    return Send(method + " " + target + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  }

  FakeControl control_;
  std::unique_ptr<asio::io_context> io_;
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
};

TEST_F(HttpServerTest, ServesHealthAndReadiness) {
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200 OK"));
  EXPECT_THAT(Get("/readyz?verbose"), StartsWith("HTTP/1.1 200 OK"));
  control_.status.state = "read_only: disk full";
  EXPECT_THAT(Get("/readyz"), StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(Get("/readyz"), HasSubstr("disk full"));
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200 OK"));
}

TEST_F(HttpServerTest, ServesMetrics) {
  EXPECT_THAT(Get("/metrics"), HasSubstr("\nstatcollect_records_total 41\n"));
}

TEST_F(HttpServerTest, MetricsTellLossesByCauseLagAndRetention) {
  control_.status.dropped_by_cause = {{"buffer_full", 12}, {"a\"b", 1}};
  control_.status.backlog_oldest_millis = 1500;
  control_.status.retention.runs_removed = 3;
  control_.status.retention.note = "held";
  const std::string metrics = Get("/metrics");
  for (const char* line :
       {"statcollect_dropped_records{cause=\"buffer_full\"} 12",
        "statcollect_dropped_records{cause=\"a\\\"b\"} 1", "statcollect_backlog_oldest_seconds 1.5",
        "statcollect_retention_runs_removed_total 3", "statcollect_retention_held 1"}) {
    EXPECT_THAT(metrics, HasSubstr("\n" + std::string(line) + "\n"));
  }
}

TEST_F(HttpServerTest, FreeSpaceThatIsUnknownIsNotAMetric) {
  control_.status.disk_free_bytes = 0;
  EXPECT_THAT(Get("/metrics"), HasSubstr("\nstatcollect_disk_free_bytes 0\n"));
  control_.status.disk_free_bytes.reset();
  EXPECT_THAT(Get("/metrics"), Not(HasSubstr("statcollect_disk_free_bytes")));
}

TEST_F(HttpServerTest, AnswersHeadWithoutBody) {
  const std::string answer = Get("/healthz", "HEAD");
  EXPECT_THAT(answer, HasSubstr("Content-Length: 16"));
  EXPECT_THAT(answer, Not(HasSubstr("\"ok\"")));
}

TEST_F(HttpServerTest, RefusesWhatItDoesNotServe) {
  EXPECT_THAT(Get("/../../etc/passwd"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Get("/nope"), HasSubstr("/healthz"));
  EXPECT_THAT(Get("/healthz", "DELETE"), StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(Send("POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabcde"),
              StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(Send("GET /healthz HTTP/1.1\r\nX: " + std::string(20000, 'x') + "\r\n\r\n"),
              StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(Send("\x01\x02 garbage\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200 OK")) << "still serves others";
}

TEST_F(HttpServerTest, KeepsAConnectionForMoreThanOneRequest) {
  const std::string answer = Send(
      "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\nConnection: "
      "close\r\n\r\n");
  EXPECT_NE(answer.find("HTTP/1.1 200 OK"), answer.rfind("HTTP/1.1 200 OK"));
}

TEST_F(HttpServerTest, SaysWhoHoldsThePort) {
  HttpServer second(*io_, {});
  const Status started = second.Start(server_->endpoint());
  EXPECT_EQ(started.code(), Code::kUnavailable);
  EXPECT_THAT(started.message(), HasSubstr(server_->endpoint().ToString()));
  EXPECT_THAT(started.message(), HasSubstr("--http"));
}

TEST_F(HttpServerTest, EndsAPageForAReaderThatTakesTooLittleInItsTime) {
  constexpr std::size_t kBytes = 64 << 20;
  const auto page = [](const std::string&) {
    return HttpResponse{.body = std::string(kBytes, 'x')};
  };
  HttpServer server(*io_, {{"/large", page}},
                    {.idle_seconds_max = 2, .bytes_per_second_min = 1 << 30});
  ASSERT_TRUE(server.Start({.host = "127.0.0.1", .port = 0}).ok());
  asio::io_context io;
  asio::ip::tcp::socket socket(io);
  socket.open(asio::ip::tcp::v4());
  socket.set_option(asio::socket_base::receive_buffer_size(16 << 10));
  socket.connect({asio::ip::make_address("127.0.0.1"), server.endpoint().port});
  asio::write(socket, asio::buffer(std::string("GET /large HTTP/1.1\r\nHost: x\r\n\r\n")));
  std::size_t read = 0;
  boost::system::error_code ended;
  std::vector<char> piece(128 << 10);
  while (!ended && read < kBytes) {  // all of it would take 10 s
    read += socket.read_some(asio::buffer(piece), ended);
    std::this_thread::sleep_for(
        std::chrono::milliseconds(20));  // far less than the limit between two reads
  }
  EXPECT_TRUE(ended);
  EXPECT_LT(read, kBytes);
}

TEST_F(HttpServerTest, ClosesConnectionsOverTheCap) {
  TearDown();
  StartServer({.connections_max = 2});
  asio::io_context io;
  std::vector<asio::ip::tcp::socket> held;
  const asio::ip::tcp::endpoint address(asio::ip::make_address("127.0.0.1"),
                                        server_->endpoint().port);
  for (int i = 0; i < 2; ++i) {
    held.emplace_back(io).connect(address);
    // An answer proves that the connection has been accepted and counted.
    asio::write(held.back(), asio::buffer(std::string("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")));
    char byte;
    asio::read(held.back(), asio::buffer(&byte, 1));
  }
  EXPECT_EQ(Get("/healthz"), "");
  EXPECT_THAT(held.size(), 2u);
}

}  // namespace
}  // namespace statcollect
