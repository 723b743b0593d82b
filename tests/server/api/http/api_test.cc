// The HTTP twins over real sockets, with the real services behind them and a store whose scans can
// be held.
#include "server/api/http/api.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <nlohmann/json.hpp>

#include "server/api/http/routes.h"
#include "server/http/server.h"
#include "tests/server/api/query_server.h"
#include "tests/server/query/run_writer.h"

namespace statcollect {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Key;
using ::testing::Not;
using testing::QueryServer;
using testing::RunWriter;
using ::testing::StartsWith;
using Json = nlohmann::json;
using namespace std::chrono_literals;

class HttpApiTest : public ::testing::Test {
 protected:
  void SetUp() override { Start({}); }
  void Start(const QueryLimits& limits, HttpLimits http_limits = {}) {
    Stop();
    server_ = std::make_unique<QueryServer>(limits);
    for (const char* run : {"base", "ort"}) {
      RunWriter writer(server_->store, run, 2);
      for (std::uint32_t rank = 0; rank < 2; ++rank) {
        for (std::uint64_t step = 0; step < 6; ++step) {
          writer.Observe(rank, step, Key("ln"),
                         {.values = {1, 2, 3, run[0] == 'o' && step > 2 ? 5. : 4.}});
          writer.Scalar(rank, step, "loss", 1);
        }
      }
      writer.Commit();
    }
    api_ = std::make_unique<api::HttpApi>(server_->grpc_server());
    io_ = std::make_unique<asio::io_context>();
    http_ = std::make_unique<HttpServer>(
        *io_,
        std::map<std::string, HttpHandler>{
            {"/healthz", [](const std::string&) { return HttpResponse{}; }}},
        http_limits,
        HttpServices{
            {std::string(api::kHttpPrefix), [this](HttpRequest request, const auto& exchange) {
               api_->Serve(std::move(request), exchange);
             }}});
    ASSERT_TRUE(http_->Start({.host = "127.0.0.1", .port = 0}).ok());
    thread_ = std::thread([this] { io_->run(); });
  }
  void Stop() {
    if (!server_) return;
    server_->gate.Release();
    api_->Close();
    http_.reset();
    io_->stop();
    thread_.join();
    api_.reset();
    server_.reset();
    io_.reset();
  }
  void TearDown() override { Stop(); }

  tcp::socket Connect() {
    tcp::socket socket(client_);
    socket.connect({asio::ip::make_address("127.0.0.1"), http_->endpoint().port});
    return socket;
  }
  tcp::socket Begin(const std::string& request) {
    tcp::socket socket = Connect();
    boost::system::error_code ignored;
    asio::write(socket, asio::buffer(request), ignored);
    return socket;
  }
  static std::string Rest(tcp::socket& socket) {
    std::string answer;
    boost::system::error_code ignored;
    asio::read(socket, asio::dynamic_buffer(answer), ignored);
    return answer;
  }
  std::string Send(const std::string& request) {
    tcp::socket socket = Begin(request);
    return Rest(socket);
  }
  // Whether it has an answer that was not read.
  static bool IsAnswered(const tcp::socket& socket) { return socket.available() > 0; }
  static std::size_t Answered(const std::vector<tcp::socket>& sockets) {
    return static_cast<std::size_t>(std::count_if(sockets.begin(), sockets.end(), IsAnswered));
  }
  template <typename Condition>
  static bool Await(const Condition& condition, std::chrono::milliseconds longest) {
    const auto until = std::chrono::steady_clock::now() + longest;
    while (!condition() && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(5ms);
    return condition();
  }
  // While the pool is held: asks until one is refused, so that all places to wait are taken. Those
  // that wait are among them.
  std::vector<tcp::socket> AskUntilRefused(const std::string& request) {
    std::vector<tcp::socket> asked;
    do asked.push_back(Begin(request));
    while (!Await([&] { return Answered(asked) > 0; }, 100ms) && asked.size() < 300);
    return asked;
  }
  static std::string GetText(const std::string& target, const std::string& method = "GET") {
    return method + " /api/v1/" + target + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  }
  std::string Get(const std::string& target, const std::string& method = "GET") {
    return Send(GetText(target, method));
  }
  std::string Post(const std::string& target, const std::string& body,
                   const std::string& type = "application/json") {
    return Send("POST /api/v1/" + target +
                " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: " + type +
                "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  static Json Body(const std::string& answer) {
    return Json::parse(answer.substr(answer.find("\r\n\r\n") + 4), nullptr, false);
  }

  asio::io_context client_;
  std::unique_ptr<QueryServer> server_;
  std::unique_ptr<api::HttpApi> api_;
  std::unique_ptr<asio::io_context> io_;
  std::unique_ptr<HttpServer> http_;
  std::thread thread_;
};

TEST_F(HttpApiTest, AnswersByGetAndPostAlike) {
  const std::string get = Get("diff?run_a=base&run_b=ort");
  EXPECT_THAT(get, StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(Body(get)["verdict"], "diverged");
  EXPECT_EQ(Body(get)["first"]["step"], 3);
  EXPECT_EQ(Body(Post("diff", R"({"run_a":"base","run_b":"ort"})")), Body(get));
  EXPECT_EQ(Body(Get("runs"))["runs"].size(), 2u);
  EXPECT_EQ(Body(Get("status"))["version"], "9.8.7");
  EXPECT_THAT(get, Not(HasSubstr("Access-Control"))) << "no other origin may read it";
}

// What the description marks as required is what a request is refused without.
TEST_F(HttpApiTest, RequiredParametersAreThoseThatItRefusesToMiss) {
  const std::map<std::string, std::string> values = {{"run", "base"},
                                                     {"run_a", "base"},
                                                     {"run_b", "ort"},
                                                     {"activation", "ln"},
                                                     {"repeats", "ort"}};
  const Json paths = Body(Get("openapi.json"))["paths"];
  std::size_t required = 0;
  for (const auto& [path, verbs] : paths.items()) {
    const std::string name = path.substr(std::string("/api/v1/").size());
    if (!verbs.contains("get") || name == "live") continue;  // which has no end
    std::vector<std::string> needed;
    for (const Json& parameter : verbs["get"]["parameters"]) {
      if (parameter["required"]) needed.push_back(parameter["name"]);
    }
    const auto ask = [&](const std::string& without) {
      std::string query;
      for (const std::string& parameter : needed) {
        if (parameter != without) query += "&" + parameter + "=" + values.at(parameter);
      }
      return Get(name + "?" + query);
    };
    EXPECT_THAT(ask(""), Not(StartsWith("HTTP/1.1 400 ")))
        << name << ": something else is required";
    for (const std::string& parameter : needed)
      EXPECT_THAT(ask(parameter), Not(StartsWith("HTTP/1.1 200 ")))
          << name << " without " << parameter;
    required += needed.size();
  }
  EXPECT_GT(required, 12u);
  const Json diff = Body(Get("openapi.json"))["components"]["schemas"]["DiffRequest"];
  EXPECT_EQ(diff["required"], Json({"run_a", "run_b"})) << "also of the body of a POST";
}

TEST_F(HttpApiTest, StreamsRecordsAsLines) {
  const std::string answer = Get("records?run=base");
  EXPECT_THAT(answer, AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("application/x-ndjson"),
                            HasSubstr("chunked")));
  EXPECT_THAT(answer, HasSubstr("\r\n0\r\n\r\n")) << "whole";
  const std::string old = Send("GET /api/v1/records?run=base HTTP/1.0\r\n\r\n");
  const std::string body = old.substr(old.find("\r\n\r\n") + 4);
  std::size_t lines = 0;
  for (std::size_t at = 0; at < body.size(); at = body.find('\n', at) + 1, ++lines)
    EXPECT_TRUE(Json::parse(body.substr(at, body.find('\n', at) - at), nullptr, false).is_object());
  EXPECT_GE(lines, 1u);
}

// A stream of events, message by message.
class Events {
 public:
  explicit Events(tcp::socket socket) : socket_(std::move(socket)) {}
  // The next message; null if the stream ends, or none comes in half a minute.
  Json Next() {
    return ReadTo("\n\n", "data: ") ? Json::parse(Take("data: ", "\n\n"), nullptr, false) : Json();
  }
  // Everything in front of the first event's data.
  std::string Head() {
    ReadTo("data: ", "");
    return text_.substr(0, text_.find("data: "));
  }

 private:
  // Whether `end` has been read, behind `begin`.
  bool ReadTo(const std::string& end, const std::string& begin) {
    const auto until = std::chrono::steady_clock::now() + 30s;
    for (;;) {
      const std::size_t at = text_.find(begin);
      if (at != std::string::npos && text_.find(end, at) != std::string::npos) return true;
      while (socket_.available() == 0) {
        if (std::chrono::steady_clock::now() >= until) return false;
        std::this_thread::sleep_for(5ms);
      }
      std::string some(socket_.available(), '\0');
      boost::system::error_code failed;
      some.resize(socket_.read_some(asio::buffer(some), failed));
      text_ += some;
    }
  }
  std::string Take(const std::string& begin, const std::string& end) {
    const std::size_t from = text_.find(begin) + begin.size(), to = text_.find(end, from);
    std::string taken = text_.substr(from, to - from);
    text_.erase(0, to + end.size());
    return taken;
  }

  tcp::socket socket_;
  std::string text_;
};

std::vector<std::string> RunsOf(const Json& message) {
  std::vector<std::string> names;
  if (!message.is_object()) return {"no message"};
  for (const Json& change : message["runs"]) names.push_back(change["run"]["run"]);
  return names;
}

TEST_F(HttpApiTest, SendsEventsAsTheyCome) {
  Start({.live_interval = 20ms});
  Events page(Begin("GET /api/v1/live HTTP/1.1\r\nHost: x\r\n\r\n"));
  const std::string head = page.Head();
  EXPECT_THAT(head, AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("text/event-stream"),
                          HasSubstr("no-store"), HasSubstr("event: runs\n")));
  const std::string id =
      head.substr(head.find("id: ") + 4, head.find("\nevent") - head.find("id: ") - 4);
  const Json first = page.Next();
  EXPECT_THAT(RunsOf(first), ElementsAre("base", "ort"));
  EXPECT_EQ(first["whole"], true);
  EXPECT_EQ(first["cursor"], id);
  server_->runs.Changed("base");
  const Json second = page.Next();
  EXPECT_THAT(RunsOf(second), ElementsAre("base"));
  EXPECT_EQ(second["whole"], false);
  Events again(Begin("GET /api/v1/live HTTP/1.1\r\nHost: x\r\nLast-Event-ID: " + id + "\r\n\r\n"));
  EXPECT_EQ(again.Next(), second) << "from where it was";
  EXPECT_THAT(Get("live?runs=../x"), StartsWith("HTTP/1.1 400 "));
}

TEST_F(HttpApiTest, SendsEventsOfARunUntilItIsGone) {
  Start({.live_interval = 20ms});
  Events page(Begin("GET /api/v1/live?runs=ort HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_THAT(RunsOf(page.Next()), ElementsAre("ort"));
  const AttemptId ort = server_->store.Attempts("ort")->front().id;
  for (int records = 1; records <= 5; ++records) {
    ASSERT_TRUE(
        server_->store.PutRank(ort, 0, {.records = static_cast<std::uint64_t>(records)}).ok());
    ASSERT_TRUE(server_->store.PutRank(ort, 1, {.records = 0}).ok());
    server_->runs.Changed("ort");
    const Json grown = page.Next();
    ASSERT_THAT(RunsOf(grown), ElementsAre("ort"));
    EXPECT_EQ(grown["runs"][0]["run"]["records"], records);
  }
  ASSERT_TRUE(server_->store.DropAttempts({&ort, 1}).ok());
  server_->runs.Changed("ort");
  const Json gone = page.Next();
  EXPECT_THAT(RunsOf(gone), IsEmpty());
  EXPECT_EQ(gone["removed"], Json({"ort"}));
}

TEST_F(HttpApiTest, BytesHaveAnEtag) {
  const std::string tile = Get("heatmap?run_a=base&run_b=ort");
  EXPECT_THAT(tile, AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("application/octet-stream"),
                          HasSubstr("\r\n\r\nSCHM")));
  const std::size_t at = tile.find("ETag: ") + 6;
  const std::string etag = tile.substr(at, tile.find("\r\n", at) - at);
  const std::string same = Send(
      "GET /api/v1/heatmap?run_a=base&run_b=ort HTTP/1.1\r\nConnection: close\r\nIf-None-Match: " +
      etag + "\r\n\r\n");
  EXPECT_THAT(same, AllOf(StartsWith("HTTP/1.1 304 "), Not(HasSubstr("SCHM"))));
  EXPECT_THAT(Get("heatmap?run_a=base&run_b=ort&column=9"),
              AllOf(StartsWith("HTTP/1.1 400 "), HasSubstr("expected 0..0")));
}

TEST_F(HttpApiTest, ChangesNeedAFieldThatForeignPagesCannotSend) {
  const auto change = [&](const std::string& name, const std::string& field) {
    const std::string body = R"({"run":"ort"})";
    return Send("POST /api/v1/" + name +
                " HTTP/1.1\r\nConnection: close\r\nContent-Type: application/json\r\n" + field +
                "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  };
  for (const char* name : {"rm", "keep", "noise_rm", "noise_save"}) {
    for (const char* field : {"", "X-Statcollect-Csrf: 0\r\n"})
      EXPECT_THAT(change(name, field),
                  AllOf(StartsWith("HTTP/1.1 403 "), HasSubstr("X-Statcollect-Csrf: 1")))
          << name;
  }
  EXPECT_THAT(Get("rm?run=ort"), StartsWith("HTTP/1.1 405 "));
  EXPECT_EQ(Body(Get("runs"))["runs"].size(), 2u);
  EXPECT_THAT(change("keep", "X-Statcollect-Csrf: 1\r\n"), StartsWith("HTTP/1.1 200 "));
  const Json removed = Body(change("rm", "X-Statcollect-Csrf: 1\r\n"));
  EXPECT_EQ(removed["attempts"], 1);
  EXPECT_EQ(Body(Get("runs"))["runs"].size(), 1u);
}

TEST_F(HttpApiTest, MapsFailuresToStatuses) {
  EXPECT_THAT(Get("show?run=nobody"), StartsWith("HTTP/1.1 404 "));
  EXPECT_EQ(Body(Get("show?run=nobody"))["code"], "not_found");
  EXPECT_THAT(Get("show?run=../x"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Get("diff?run_a=base&run_b=ort&tolerance=-1"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Get("diff?run=base"),
              AllOf(StartsWith("HTTP/1.1 400 "), HasSubstr("there are run_a, run_b")));
  EXPECT_THAT(Get("nothing"), AllOf(StartsWith("HTTP/1.1 404 "), HasSubstr("/api/v1/diff")));
  EXPECT_THAT(Get("runs", "DELETE"),
              AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("Allow: GET, HEAD, POST")));
  EXPECT_THAT(Post("diff", "run_a=base", "application/x-www-form-urlencoded"),
              StartsWith("HTTP/1.1 415 "));
  EXPECT_THAT(Post("diff", "{"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Post("diff", std::string((1 << 20) + 1, ' ')), StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(Get("diff?run_a=" + std::string(20'000, 'x')), StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(Get("records?run=nobody"), StartsWith("HTTP/1.1 404 "));
}

TEST_F(HttpApiTest, HeadHasTheLengthAndNoBody) {
  const std::string head = Get("runs", "HEAD"), whole = Get("runs");
  const std::string length = whole.substr(whole.find("Content-Length"), 22);
  EXPECT_THAT(head, HasSubstr(length));
  EXPECT_EQ(head.substr(head.find("\r\n\r\n")), "\r\n\r\n");
}

TEST_F(HttpApiTest, AnswersPipelinedRequestsInOrder) {
  std::string requests;
  for (int i = 0; i < 20; ++i)
    requests += "GET /api/v1/" + std::string(i % 2 == 0 ? "runs" : "show?run=base") +
                " HTTP/1.1\r\nHost: x\r\n\r\n";
  const std::string answer =
      Send(requests + "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  std::size_t answers = 0, at = 0;
  for (; (at = answer.find("HTTP/1.1 200 OK", at)) != std::string::npos; ++at) ++answers;
  EXPECT_EQ(answers, 21u);
  EXPECT_LT(answer.find("\"runs\""), answer.find("\"summary\""));
}

TEST_F(HttpApiTest, SimpleQuestionsAreAnsweredWhileDiffsFillThePoolAndMoreAreToldToWait) {
  Start({.threads = 2, .waiting_max = 2});
  server_->gate.Hold();
  std::vector<tcp::socket> diffs;
  for (int i = 0; i < 2; ++i) diffs.push_back(Begin(GetText("diff?run_a=base&run_b=ort")));
  server_->gate.AwaitScans(2);
  EXPECT_THAT(Get("runs"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Get("show?run=base"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Get("status"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Send("GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
              StartsWith("HTTP/1.1 200 "));
  for (int i = 0; i < 2; ++i) diffs.push_back(Begin(GetText("diff?run_a=base&run_b=ort")));
  std::vector<tcp::socket> more = AskUntilRefused(GetText("diff?run_a=base&run_b=ort"));
  ASSERT_GT(Answered(more), 0u);
  const auto refused = std::find_if(more.begin(), more.end(), IsAnswered);
  EXPECT_THAT(Rest(*refused), AllOf(StartsWith("HTTP/1.1 429 "), HasSubstr("Retry-After: 1"),
                                    HasSubstr("resource_exhausted")));
  server_->gate.Release();
  for (tcp::socket& diff : diffs) {
    const std::string done = Rest(diff);
    EXPECT_THAT(done.substr(0, 13), ::testing::AnyOf("HTTP/1.1 200 ", "HTTP/1.1 429 "));
  }
}

TEST_F(HttpApiTest, ClosedConnectionCancelsTheQuestion) {
  Start({.threads = 1, .waiting_max = 1});
  server_->gate.Hold();
  {
    tcp::socket running = Begin(GetText("diff?run_a=base&run_b=ort"));
    server_->gate.AwaitScans(1);
    const std::vector<tcp::socket> waiting = AskUntilRefused(GetText("diff?run_a=base&run_b=ort"));
    ASSERT_GT(Answered(waiting), 0u);
  }
  // The place of the one that waited becomes free, although the pool's thread is held: of two
  // questions one is refused at once then, the other waits; until then both are refused.
  std::vector<tcp::socket> two;
  const auto until = std::chrono::steady_clock::now() + 30s;
  do {
    two.clear();
    for (int i = 0; i < 2; ++i) two.push_back(Begin(GetText("series?run=base&activation=ln")));
    ASSERT_TRUE(Await([&] { return Answered(two) > 0; }, 30s));
  } while (Await([&] { return Answered(two) == 2; }, 1s) &&
           std::chrono::steady_clock::now() < until);
  ASSERT_EQ(Answered(two), 1u) << "neither refused nor answered yet";
  server_->gate.Release();
  EXPECT_THAT(Rest(two[0].available() == 0 ? two[0] : two[1]), StartsWith("HTTP/1.1 200 "));
  EXPECT_LT(server_->gate.scans(), 12)
      << "the diff that ran stopped early: it would have made 24 scans or more";
}

TEST_F(HttpApiTest, ClientThatReadsNothingIsGivenUpAndOthersAreServed) {
  Start({}, {.idle_seconds_max = 1});
  RunWriter writer(server_->store, "large", 1);
  for (int i = 0; i < 10'000; ++i)
    writer.Observe(0, 0, Key("layer" + std::to_string(i)), {.values = {1, 2}});
  writer.Commit();
  tcp::socket slow = Connect();
  slow.set_option(asio::socket_base::receive_buffer_size(65536));
  asio::write(slow, asio::buffer(GetText("top?run=large&count=10000")));
  EXPECT_THAT(Get("runs"), StartsWith("HTTP/1.1 200 "));
  slow.wait(tcp::socket::wait_read);  // the answer has begun, however busy the machine is
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  const std::string got = Rest(slow);
  EXPECT_THAT(got, StartsWith("HTTP/1.1 200 "));
  EXPECT_TRUE(Body(got).is_discarded()) << "cut off";
  const std::string whole = Get("top?run=large&count=10000");
  EXPECT_EQ(Body(whole)["records"].size(), 10'000u);
}

TEST_F(HttpApiTest, ClosingCancelsWhatIsUnderWayAndRefusesTheRest) {
  server_->gate.Hold();
  tcp::socket running = Begin(GetText("diff?run_a=base&run_b=ort"));
  server_->gate.AwaitScans(1);
  api_->Close();
  EXPECT_THAT(Rest(running), StartsWith("HTTP/1.1 499 "));
  EXPECT_THAT(Get("runs"), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("Retry-After")));
}

}  // namespace
}  // namespace statcollect
