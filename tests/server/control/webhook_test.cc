// The webhook against real listeners: one that answers, one that refuses, one that hangs, and none
// at all.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/streambuf.hpp>
#include <boost/asio/write.hpp>

#include "server/control/address_list.h"
#include "server/control/webhook.h"
#include "server/control/webhook_signature.h"

namespace statcollect {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using namespace std::chrono_literals;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

// Answers each connection with the next of `answers`; an empty one hangs until the listener is
// gone.
class Listener {
 public:
  explicit Listener(std::vector<std::string> answers)
      : answers_(std::move(answers)),
        acceptor_(io_, tcp::endpoint(asio::ip::make_address("127.0.0.1"), 0)) {
    thread_ = std::thread([this] { Serve(); });
  }
  ~Listener() { thread_.join(); }
  std::string url() const {
    return "http://127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port()) + "/hook";
  }
  std::vector<std::string> requests() {
    std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void Serve() {
    std::vector<std::unique_ptr<tcp::socket>> hanging;
    for (const std::string& answer : answers_) {
      auto socket = std::make_unique<tcp::socket>(io_);
      acceptor_.accept(*socket);
      std::string request(4096, '\0');
      boost::system::error_code error;
      request.resize(socket->read_some(asio::buffer(request), error));
      {
        std::lock_guard lock(mutex_);
        requests_.push_back(request);
      }
      if (answer.empty()) {
        hanging.push_back(std::move(socket));
      } else {
        asio::write(*socket, asio::buffer(answer), error);
      }
    }
  }

  const std::vector<std::string> answers_;
  asio::io_context io_;
  tcp::acceptor acceptor_;
  std::mutex mutex_;
  std::vector<std::string> requests_;
  std::thread thread_;
};

const std::string kOk = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
const std::string kBusy = "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

class WebhookTest : public ::testing::Test {
 protected:
  void Start(const std::string& url, std::chrono::milliseconds timeout = 20s) {
    webhook_ = std::make_unique<Webhook>(ParseWebhook(url).value(),
                                         WebhookOptions{.queue_max = 3,
                                                        .timeout = timeout,
                                                        .pauses = {20ms, 20ms},
                                                        .log = [this](const std::string& line) {
                                                          std::lock_guard lock(mutex_);
                                                          lines_.push_back(line);
                                                        }});
  }
  std::vector<std::string> lines() {
    std::lock_guard lock(mutex_);
    return lines_;
  }
  bool Eventually(const std::function<bool()>& condition) {
    for (int n = 0; n < 4000 && !condition(); ++n) std::this_thread::sleep_for(5ms);
    return condition();
  }

  std::mutex mutex_;
  std::vector<std::string> lines_;
  std::unique_ptr<Webhook> webhook_;
};

TEST_F(WebhookTest, PostsJsonInOrder) {
  Listener listener({kOk, kOk});
  Start(listener.url());
  webhook_->Post("{\"n\":1}");
  webhook_->Post("{\"n\":2}");
  ASSERT_TRUE(Eventually([&] { return webhook_->counters().sent == 2; }));
  ASSERT_EQ(listener.requests().size(), 2u);
  EXPECT_THAT(listener.requests()[0], HasSubstr("POST /hook HTTP/1.1\r\n"));
  EXPECT_THAT(listener.requests()[0], HasSubstr("application/json"));
  EXPECT_THAT(listener.requests()[0], HasSubstr("{\"n\":1}"));
  EXPECT_THAT(listener.requests()[1], HasSubstr("{\"n\":2}"));
}

TEST_F(WebhookTest, TriesAgainAfterARefusalAndAfterSilence) {
  Listener listener({kBusy, "", kOk});
  Start(listener.url(), 150ms);
  webhook_->Post("{}");
  ASSERT_TRUE(Eventually([&] { return webhook_->counters().sent == 1; }));
  EXPECT_EQ(webhook_->counters().failed, 2u);
  EXPECT_EQ(webhook_->counters().dropped, 0u);
}

TEST_F(WebhookTest, GivesUpOnOneThatHangsAndGoesOnWithTheNext) {
  Listener listener({"", "", "", kOk});
  Start(listener.url(), 150ms);
  const auto begin = std::chrono::steady_clock::now();
  webhook_->Post("{\"n\":1}");
  webhook_->Post("{\"n\":2}");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 100ms) << "nobody waits";
  ASSERT_TRUE(Eventually([&] { return webhook_->counters().sent == 1; }));
  EXPECT_EQ(webhook_->counters().failed, 3u);
  EXPECT_EQ(webhook_->counters().dropped, 1u);
}

TEST_F(WebhookTest, ABoundedNumberWaitsWhereNobodyListens) {
  std::string url;
  {
    asio::io_context io;
    const tcp::acceptor free(io, tcp::endpoint(asio::ip::make_address("127.0.0.1"), 0));
    url = "http://127.0.0.1:" + std::to_string(free.local_endpoint().port());
  }
  Start(url);
  for (int n = 0; n < 50; ++n) webhook_->Post("{}");
  EXPECT_GE(webhook_->counters().dropped, 40u);
  EXPECT_TRUE(Eventually([&] { return webhook_->counters().dropped == 50; }));
  EXPECT_EQ(webhook_->counters().sent, 0u);
}

TEST_F(WebhookTest, SaysWhyAnHttpsAddressWithoutTlsCannotBeReached) {
  Listener listener({kOk, kOk, kOk});
  Start("https" + listener.url().substr(4));
  webhook_->Post("{}");
  ASSERT_TRUE(Eventually([&] { return webhook_->counters().dropped == 1; }));
  EXPECT_EQ(webhook_->counters().failed, 3u);
  ASSERT_EQ(lines().size(), 3u);
  EXPECT_THAT(lines()[0], HasSubstr("alarm webhook https://127.0.0.1:"));
  EXPECT_THAT(lines()[0], ContainsRegex("(SSL|TLS).*; trying again$"));
  EXPECT_THAT(lines()[2], EndsWith("; the alarm is not sent"));
}

TEST_F(WebhookTest, DoesNotFollowRedirects) {
  Listener other({kOk});
  Listener listener(
      {"HTTP/1.1 302 Found\r\nLocation: " + other.url() + "\r\nContent-Length: 0\r\n\r\n", kOk});
  Start(listener.url());
  webhook_->Post("{\"n\":1}");
  ASSERT_TRUE(Eventually([&] { return webhook_->counters().sent == 1; }));
  EXPECT_EQ(webhook_->counters().failed, 1u);
  EXPECT_THAT(lines(), ElementsAre(HasSubstr("got HTTP status 302; expected 2xx")));
  EXPECT_TRUE(other.requests().empty());
  Start(other.url());  // lets the other listener end
  webhook_->Post("{}");
  ASSERT_TRUE(Eventually([&] { return webhook_->counters().sent == 1; }));
}

TEST_F(WebhookTest, IsSatisfiedWithTheHeaderOfAnAnswerWhoseBodyNeverComes) {
  Listener listener({"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"});
  Start(listener.url());
  webhook_->Post("{}");
  ASSERT_TRUE(Eventually([&] { return webhook_->counters().sent == 1; }));
  EXPECT_EQ(webhook_->counters().failed, 0u);
}

TEST_F(WebhookTest, StopsAtOnceDuringAnAttemptAndDuringAPause) {
  for (const std::string& answer : {std::string(), kBusy}) {
    Listener listener({answer});
    Webhook webhook(ParseWebhook(listener.url()).value(), {.timeout = 60s, .pauses = {60s}});
    webhook.Post("{}");
    ASSERT_TRUE(Eventually([&] { return listener.requests().size() == 1; }));
    ASSERT_TRUE(answer.empty() || Eventually([&] { return webhook.counters().failed == 1; }));
    // Its destructor returns, or this test runs into its time limit.
  }
}

TEST(ParseWebhook, TakesHostPortAndPath) {
  const auto target = ParseWebhook("http://[::1]:9000/a/b?c=d").value();
  EXPECT_EQ(target.host, "::1");
  EXPECT_EQ(target.port, "9000");
  EXPECT_EQ(target.path, "/a/b?c=d");
  EXPECT_EQ(ParseWebhook("http://hooks").value().port, "80");
  EXPECT_EQ(ParseWebhook("http://hooks").value().path, "/");
  EXPECT_EQ(ParseWebhook("https://hooks/x").value().port, "443");
}

TEST(ParseWebhook, RefusesWhatItCannotReach) {
  for (const char* url : {"ftp://hooks/x", "file:///etc/passwd", "http://h:0/", "hooks:80",
                          "http://", "http://:80/", "http://h:99999/", "http://h:x/", "http://a b/",
                          "http://user@h/", "http://h/\r\nHost: evil"}) {
    EXPECT_FALSE(ParseWebhook(url).ok()) << url;
  }
}

// --- signature, addresses, and what is shown

std::string SecretFile(const std::string& content, int mode = 0600) {
  std::string path = ::testing::TempDir() + "secretXXXXXX";
  const int file = mkstemp(path.data());
  EXPECT_GE(file, 0);
  EXPECT_EQ(write(file, content.data(), content.size()), static_cast<ssize_t>(content.size()));
  EXPECT_EQ(fchmod(file, static_cast<mode_t>(mode)), 0);
  close(file);
  return path;
}

// By: printf '%s' '1700000000.{"n":1}' | openssl dgst -sha256 -hmac 0123456789abcdef
TEST(WebhookSignature, IsThatOfOpenssl) {
  EXPECT_EQ(WebhookSignature("0123456789abcdef", 1'700'000'000, "{\"n\":1}"),
            "v1=d9a22bdcfdab07f3be7c84c30003fdc81a4c25420850e983eb235d7e17846231");
}

TEST(WebhookSecret, SaysWhatIsWrongWithTheFile) {
  EXPECT_EQ(ReadWebhookSecret(SecretFile("0123456789abcdef\n")).value(), "0123456789abcdef");
  EXPECT_THAT(ReadWebhookSecret(SecretFile("short\n")).status().message(),
              HasSubstr("only 5 characters"));
  EXPECT_THAT(ReadWebhookSecret(SecretFile(std::string(5000, 's'))).status().message(),
              HasSubstr("more than"));
  EXPECT_EQ(ReadWebhookSecret(SecretFile("0123456789abcdef", 0644)).status().code(),
            Code::kPermissionDenied);
  EXPECT_THAT(ReadWebhookSecret("/nowhere").status().message(), HasSubstr("No such file"));
  EXPECT_THAT(ReadWebhookSecret("/dev/null").status().message(), HasSubstr("not a plain file"));
}

TEST_F(WebhookTest, SignsWithTheSecretOfTheFileAsItIsThen) {
  Listener listener({kOk, kOk});
  const std::string path = SecretFile("0123456789abcdef");
  webhook_ = std::make_unique<Webhook>(ParseWebhook(listener.url()).value(),
                                       WebhookOptions{.secret_file = path});
  webhook_->Post("{\"n\":1}");
  ASSERT_TRUE(Eventually([&] { return webhook_->counters().sent == 1; }));
  std::ofstream(path) << "another secret of the receiver";
  webhook_->Post("{\"n\":1}");
  ASSERT_TRUE(Eventually([&] { return webhook_->counters().sent == 2; }));
  const std::vector<std::string> secrets = {"0123456789abcdef", "another secret of the receiver"};
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string request = listener.requests()[i];
    const std::string field = "X-Statcollect-Timestamp: ";
    const std::size_t at = request.find(field);
    ASSERT_NE(at, std::string::npos) << request;
    const std::int64_t time = std::stoll(request.substr(at + field.size()));
    EXPECT_THAT(request, HasSubstr("X-Statcollect-Signature: " +
                                   WebhookSignature(secrets[i], time, "{\"n\":1}")));
    EXPECT_THAT(request, ::testing::Not(HasSubstr(secrets[i])));
  }
}

TEST_F(WebhookTest, ConnectsOnlyToAllowedNetworks) {
  Listener listener({kOk});
  const auto post = [&](const std::string& allowed) {
    webhook_ = std::make_unique<Webhook>(
        ParseWebhook(listener.url()).value(),
        WebhookOptions{.allowed = AddressList::Parse("--allow", allowed).value(),
                       .pauses = {},
                       .log = [this](const std::string& line) {
                         std::lock_guard lock(mutex_);
                         lines_.push_back(line);
                       }});
    webhook_->Post("{}");
    return Eventually(
               [&] { return webhook_->counters().sent + webhook_->counters().dropped == 1; }) &&
           webhook_->counters().sent == 1;
  };
  EXPECT_FALSE(post("192.0.2.0/24"));
  ASSERT_FALSE(lines().empty());
  EXPECT_THAT(lines().back(), HasSubstr("its address 127.0.0.1 is in none of the networks"));
  EXPECT_TRUE(post("192.0.2.0/24, 127.0.0.0/8"));
}

TEST_F(WebhookTest, ARedirectIsAFailureAndNotFollowed) {
  Listener listener(
      {"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\nConnection: "
       "close\r\n\r\n",
       kOk});
  Start(listener.url());
  webhook_->Post("{}");
  ASSERT_TRUE(Eventually([&] { return webhook_->counters().sent == 1; }));
  EXPECT_THAT(lines().at(0), HasSubstr("got HTTP status 302"));
}

TEST(WebhookTarget, IsShownWithoutWhatMayBeSecret) {
  EXPECT_EQ(ParseWebhook("https://hooks.example.org/services/T0/SECRET?key=SECRET")->shown,
            "https://hooks.example.org:443/...");
  EXPECT_EQ(ParseWebhook("http://[::1]:9000/")->shown, "http://[::1]:9000/");
  for (const char* url : {"ftp://host/SECRET", "https://me:SECRET@host/SECRET",
                          "https://host:0/SECRET", "host/SECRET"})
    EXPECT_THAT(ParseWebhook(url).status().message(), ::testing::Not(HasSubstr("SECRET"))) << url;
}

TEST(AddressList, TakesNetworksOfBothKinds) {
  const auto contains = [](const std::string& list, const std::string& address) {
    const bool v6 = address.find(':') != std::string::npos;
    sockaddr_storage storage{};
    storage.ss_family = v6 ? AF_INET6 : AF_INET;
    void* const to = v6 ? static_cast<void*>(&reinterpret_cast<sockaddr_in6&>(storage).sin6_addr)
                        : static_cast<void*>(&reinterpret_cast<sockaddr_in&>(storage).sin_addr);
    EXPECT_EQ(inet_pton(storage.ss_family, address.c_str(), to), 1);
    return AddressList::Parse("--allow", list)
        .value()
        .Contains(reinterpret_cast<sockaddr&>(storage));
  };
  EXPECT_TRUE(contains("10.0.0.0/8", "10.255.1.2"));
  EXPECT_FALSE(contains("10.0.0.0/8", "11.0.0.0"));
  EXPECT_TRUE(contains("192.0.2.128/25", "192.0.2.129"));
  EXPECT_FALSE(contains("192.0.2.128/25", "192.0.2.127"));
  EXPECT_TRUE(contains("192.0.2.7", "192.0.2.7"));
  EXPECT_FALSE(contains("192.0.2.7", "192.0.2.8"));
  EXPECT_TRUE(contains("fd00::/8", "fdab::1"));
  EXPECT_FALSE(contains("fd00::/8", "fe80::1"));
  EXPECT_TRUE(contains("10.0.0.0/8", "::ffff:10.1.1.1"));
  EXPECT_TRUE(contains("0.0.0.0/0", "8.8.8.8"));
  EXPECT_FALSE(contains("0.0.0.0/0", "2001:db8::1"));
  for (const char* bad :
       {"host", "10.0.0.0/33", "10.0.0.0/", "fd00::/129", "10.0.0/8", "1,,2", "10.0.0.0/-1"})
    EXPECT_FALSE(AddressList::Parse("--allow", bad).ok()) << bad;
}

}  // namespace
}  // namespace statcollect
