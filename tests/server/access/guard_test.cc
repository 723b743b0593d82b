// The check in front of real gRPC services and the HTTP listener: every method with every kind of
// token. The services behind it are the generated ones, which answer UNIMPLEMENTED: whoever gets
// that has passed.
#include "server/api/guard.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include "server/api/http/api.h"
#include "server/api/http/gate.h"
#include "server/api/http/routes.h"
#include "server/api/http/session.h"
#include "server/http/server.h"
#include "statcollect/v1/admin.grpc.pb.h"
#include "statcollect/v1/ingest.grpc.pb.h"
#include "statcollect/v1/login.grpc.pb.h"
#include "statcollect/v1/query.grpc.pb.h"
#include "statcollect/v1/transfer.grpc.pb.h"
#include "tests/server/access/security_page.h"
#include "tests/server/access/token_folder.h"

namespace statcollect {
namespace {

namespace asio = boost::asio;
using grpc::StatusCode;
using ::testing::HasSubstr;
using testing::TokenFolder;
using namespace std::chrono_literals;

// Reads to the end of the stream.
class OpenStream final : public v1::Ingest::CallbackService {
  class Reactor final : public grpc::ServerBidiReactor<v1::AgentMessage, v1::CollectorMessage> {
   public:
    Reactor() { StartRead(&message_); }
    void OnReadDone(bool ok) override { ok ? StartRead(&message_) : Finish(grpc::Status::OK); }
    void OnDone() override { delete this; }

   private:
    v1::AgentMessage message_;
  };
  grpc::ServerBidiReactor<v1::AgentMessage, v1::CollectorMessage>* Stream(
      grpc::CallbackServerContext*) override {
    return new Reactor;
  }
};

class GuardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    good_all_ = folder_.Create("ingest,read,capture,control,delete,admin");
    access_ = *folder_.Open();
    guard_ = std::make_unique<api::Guard>(*access_, 3);
    const auto wrap = [&](const google::protobuf::FileDescriptor& file, const char* name,
                          grpc::Service& service) {
      const auto* type = file.FindServiceByName(name);
      types_.push_back(type);
      guarded_.push_back(guard_->Wrap(*type, service));
    };
    wrap(*v1::AgentMessage::descriptor()->file(), "Ingest", ingest_);
    wrap(*v1::ListRunsRequest::descriptor()->file(), "Query", query_);
    wrap(*v1::GetStatusRequest::descriptor()->file(), "Admin", admin_);
    wrap(*v1::CreateLinkRequest::descriptor()->file(), "Login", login_);
    wrap(*v1::DescribeStoreRequest::descriptor()->file(), "Transfer", transfer_);
    grpc::ServerBuilder builder;
    guard_->AddAudit(builder);
    for (const auto& service : guarded_) builder.RegisterService(service.get());
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    channel_ = grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                   grpc::InsecureChannelCredentials());
    StartHttp();
  }
  void StartHttp() {
    api_ = std::make_unique<api::HttpApi>(*server_);
    std::map<std::string, HttpHandler> pages;
    for (const char* page : {"/", "/assets/", "/healthz", "/readyz", "/metrics", "/session/"})
      pages[page] = [](const std::string&) { return HttpResponse{}; };
    http_ = std::make_unique<HttpServer>(
        io_, pages, HttpLimits{},
        HttpServices{{std::string(api::kHttpPrefix),
                      [this](HttpRequest request, const auto& exchange) {
                        api_->Serve(std::move(request), exchange);
                      }}},
        api::MakeHttpGate(*access_, &foreign_));
    ASSERT_TRUE(http_->Start({.host = "127.0.0.1", .port = 0}).ok());
    thread_ = std::thread([this] { io_.run(); });
  }
  void TearDown() override {
    api_->Close();
    http_.reset();
    io_.stop();
    thread_.join();
    api_.reset();
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }

  // A call with `request` as its only message.
  grpc::Status Call(const std::string& method, const std::string& field,
                    const std::string& request = "",
                    const std::map<std::string, std::string>& more = {}) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + 20s);
    if (!field.empty()) context.AddMetadata("authorization", field);
    for (const auto& [name, value] : more) context.AddMetadata(name, value);
    grpc::GenericStub stub(channel_);
    grpc::CompletionQueue queue;
    const auto call = stub.PrepareCall(&context, method, &queue);
    void* tag = nullptr;
    bool ok = false;
    const auto wait = [&] { return queue.Next(&tag, &ok); };
    call->StartCall(nullptr);
    wait();
    const grpc::Slice slice(request);
    call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
    wait();
    grpc::Status status;
    call->Finish(&status, nullptr);
    wait();
    return status;
  }
  // The status line and what follows; sends no body unless it is told to.
  std::string Http(const std::string& head, const std::string& rest = "",
                   const std::string& host = "Host: 127.0.0.1\r\n") {
    asio::io_context io;
    asio::ip::tcp::socket socket(io);
    socket.connect({asio::ip::make_address("127.0.0.1"), http_->endpoint().port});
    asio::write(socket, asio::buffer(head + host + "Connection: close\r\n" + rest + "\r\n"));
    std::string answer;
    boost::system::error_code ignored;
    asio::read(socket, asio::dynamic_buffer(answer), ignored);
    return answer;
  }
  static std::string Field(const std::string& token) {
    return "Authorization: Bearer " + token + "\r\n";
  }
  std::vector<std::string> AuditLines() { return folder_.AuditLines(); }

  TokenFolder folder_;
  std::string good_all_;
  OpenStream ingest_;
  v1::Query::CallbackService query_;
  v1::Admin::CallbackService admin_;
  v1::Login::CallbackService login_;
  v1::Transfer::CallbackService transfer_;
  std::vector<const google::protobuf::ServiceDescriptor*> types_;
  std::unique_ptr<access::AccessControl> access_;
  std::unique_ptr<api::Guard> guard_;
  std::vector<std::unique_ptr<grpc::Service>> guarded_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  asio::io_context io_;
  ForeignCheck foreign_{ForeignRules{}};
  std::unique_ptr<api::HttpApi> api_;
  std::unique_ptr<HttpServer> http_;
  std::thread thread_;
};

// All scopes but one.
std::string AllBut(access::Scope scope) {
  access::ScopeSet scopes;
  for (std::size_t i = 0; i < access::kScopes; ++i) {
    if (i != static_cast<std::size_t>(scope)) scopes.Add(static_cast<access::Scope>(i));
  }
  return scopes.ToString();
}

// What a caller may come with, in the order of the tables' columns.
constexpr const char* kKinds[] = {"no token",      "no such form", "unknown token", "expired",
                                  "revoked token", "wrong scope",  "wrong project", "right scope"};
using Answers = std::vector<std::string>;  // one for each kind

// One line for each distinct row, in the order of their first names; the line of most names only
// counts them.
template <typename Kinds>
std::string TableOf(const std::string& first,
                    const std::vector<std::pair<std::string, Answers>>& rows, const Kinds& kinds) {
  std::vector<std::pair<Answers, std::vector<std::string>>> lines;
  for (const auto& [name, answers] : rows) {
    auto line =
        std::find_if(lines.begin(), lines.end(), [&](const auto& l) { return l.first == answers; });
    if (line == lines.end()) line = lines.insert(lines.end(), {answers, {}});
    line->second.push_back("`" + name + "`");
  }
  std::size_t most = 0;
  for (const auto& [answers, names] : lines) most = std::max(most, names.size());
  std::string text = "| " + first + " |", under = "|---|";
  for (const char* kind : kinds) {
    text += " " + std::string(kind) + " |";
    under += "---|";
  }
  text += "\n" + under + "\n";
  for (const auto& [answers, names] : lines) {
    std::string label;
    for (const std::string& name : names) label += (label.empty() ? "" : ", ") + name;
    if (names.size() == most && most > 1)
      label = "all " + std::to_string(most) + (lines.size() > 1 ? " others" : "");
    text += "| " + label + " |";
    for (const std::string& answer : answers) text += " " + answer + " |";
    text += "\n";
  }
  return text;
}

// Tokens of every kind; with every scope, so that only what is wrong with one can be the reason.
class Tokens {
 public:
  explicit Tokens(TokenFolder& folder)
      : expired_(folder.Create(kAll, folder.Now() - 1)), revoked_(folder.Create(kAll)) {
    folder.Revoke(revoked_);
    for (std::size_t i = 0; i < access::kScopes; ++i) {
      const auto scope = static_cast<access::Scope>(i);
      only_[scope] = folder.Create(std::string(access::ScopeName(scope)));
      all_but_[scope] = folder.Create(AllBut(scope));
    }
    elsewhere_ = folder.Create(kAll, {}, "elsewhere");
    folder.clock.Advance(1s);
  }
  // For a method with `scope`; a method that is open to everybody has no wrong scope.
  std::vector<std::string> ForKinds(std::optional<access::Scope> scope) const {
    const access::Scope needed = scope.value_or(access::Scope::kRead);
    return {"",         "stc_x",         "stc_0123456789ab_" + std::string(64, '0'),
            expired_,   revoked_,        all_but_.at(needed),
            elsewhere_, only_.at(needed)};
  }

 private:
  static constexpr const char* kAll = "ingest,read,capture,control,delete,admin";
  const std::string expired_, revoked_;
  std::string elsewhere_;
  std::map<access::Scope, std::string> only_, all_but_;
};

std::string NameOf(StatusCode code) {
  const bool passes =
      code == StatusCode::OK || code == StatusCode::UNIMPLEMENTED;  // of the generated service
  return passes ? "passes" : std::to_string(code);
}

TEST_F(GuardTest, EveryMethodOfEveryServiceWithEveryKindOfToken) {
  const Tokens tokens(folder_);
  const Answers expected = {"16", "16", "16", "16", "16", "7", "7", "passes"};
  std::vector<std::pair<std::string, Answers>> rows;
  for (const auto* type : types_) {
    for (int i = 0; i < type->method_count(); ++i) {
      const std::string method = "/" + type->full_name() + "/" + type->method(i)->name();
      SCOPED_TRACE(method);
      Answers answers;
      for (const std::string& token : tokens.ForKinds(access::FindRule(method)->scope))
        answers.push_back(NameOf(
            Call(method, token.empty() ? "" : "Bearer " + token, "", {{kProjectField, "here"}})
                .error_code()));
      EXPECT_EQ(answers, expected);
      rows.emplace_back(type->name() + "/" + type->method(i)->name(), answers);
    }
  }
  EXPECT_GT(rows.size(), 25U);
  testing::ExpectInPage(WALKS_PAGE, "walk over gRPC", TableOf("method", rows, kKinds));
}

// Every path, and whether it is for POST.
std::vector<std::pair<std::string, bool>> HttpPaths() {
  std::vector<std::pair<std::string, bool>> paths;
  for (const auto& [name, route] : api::MakeHttpRoutes())
    paths.emplace_back(std::string(api::kHttpPrefix) + name, route.changes);
  for (const access::MethodRule& rule : access::MethodRules()) {
    if (!rule.method.starts_with("/statcollect."))
      paths.emplace_back(std::string(rule.method), false);
  }
  return paths;
}

// The status of an answer. 501: UNIMPLEMENTED of the generated service behind the check.
std::string StatusOrPasses(const std::string& answer) {
  const std::string status = answer.substr(0, 12).substr(answer.find(' ') + 1);
  return status == "200" || status == "501" ? "passes" : status;
}

TEST_F(GuardTest, EveryHttpRouteWithEveryKindOfToken) {
  const Tokens tokens(folder_);
  std::vector<std::pair<std::string, Answers>> rows;
  for (const auto& [path, post] : HttpPaths()) {
    SCOPED_TRACE(path);
    const std::optional<access::Scope> scope = access::FindRule(api::MethodOfPath(path))->scope;
    const std::string head = (post ? "POST " : "GET ") + path + " HTTP/1.1\r\n";
    // The body is announced and never sent: who is refused is refused before it.
    const std::string body =
        post ? "X-Statcollect-Csrf: 1\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
             : "";
    Answers answers;
    for (const std::string& token : tokens.ForKinds(scope)) {
      const bool right = answers.size() + 1 == std::size(kKinds);
      answers.push_back(StatusOrPasses(
          Http(head + "X-Statcollect-Project: here\r\n" + (token.empty() ? "" : Field(token)),
               right && post ? body + "\r\n{}" : body)));
    }
    EXPECT_EQ(answers, scope ? Answers({"401", "401", "401", "401", "401", "403", "403", "passes"})
                             : Answers(std::size(kKinds), "passes"));
    rows.emplace_back(path, answers);
  }
  EXPECT_GT(rows.size(), 25U);
  testing::ExpectInPage(WALKS_PAGE, "walk over HTTP", TableOf("path", rows, kKinds));
}

TEST_F(GuardTest, EveryHttpRouteFromEveryKindOfPage) {
  const std::string host = "Host: 127.0.0.1\r\n";
  const std::vector<std::string> fields = {
      "Host: rebound.example\r\n",
      host + "Host: rebound.example\r\n",
      host + "Origin: https://evil.example\r\n",
      host + "Origin: null\r\n",
      host + "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: image\r\n",
      host +
          "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n",
      host + "Origin: http://127.0.0.1\r\nSec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: cors\r\n"};
  constexpr const char* kPages[] = {"name of others", "two hosts", "other origin", "origin `null`",
                                    "other site",     "a link",    "own page"};
  std::vector<std::pair<std::string, Answers>> rows;
  for (const auto& [path, post] : HttpPaths()) {
    SCOPED_TRACE(path);
    const std::string head = (post ? "POST " : "GET ") + path + " HTTP/1.1\r\n" + Field(good_all_);
    const std::string body =
        post ? "X-Statcollect-Csrf: 1\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
             : "";
    Answers answers;
    for (const std::string& page : fields) {
      const bool own = answers.size() + 1 == fields.size();
      answers.push_back(StatusOrPasses(Http(head, own && post ? body + "\r\n{}" : body, page)));
    }
    const bool probe = path == "/healthz" || path == "/readyz";
    const char* const linked = path == "/" ? "passes" : "403";
    EXPECT_EQ(answers,
              Answers({probe ? "passes" : "421", "400", "403", "403", "403", linked, "passes"}));
    rows.emplace_back(path, answers);
  }
  testing::ExpectInPage(WALKS_PAGE, "walk of foreign pages", TableOf("path", rows, kPages));
}

// The Cookie and X-Statcollect-Session fields of a browser that was logged in with the token.
class Browser {
 public:
  Browser(access::AccessControl& access, const std::string& token)
      : secrets_(LogIn(access, "Bearer " + token)) {}
  std::string Cookie() const {
    return "Cookie: other=1; statcollect_80=" + secrets_.cookie + "\r\n";
  }
  std::string Page() const { return "X-Statcollect-Session: " + secrets_.page + "\r\n"; }
  access::SessionCredential credential() const {
    return {.cookie = secrets_.cookie, .page = secrets_.page};
  }

 private:
  static access::SessionSecrets LogIn(access::AccessControl& access, const std::string& field) {
    const auto link = access.MakeLink({.authorization = {field},
                                       .method = "/statcollect.v1.Query/ListRuns",
                                       .address = "ipv4:127.0.0.1:1"});
    return access.LogIn(link.value(), "ipv4:127.0.0.1:1").value();
  }
  const access::SessionSecrets secrets_;
};

TEST_F(GuardTest, EveryHttpRouteWithEveryKindOfSession) {
  const std::string reader = folder_.Create("read"), revoked = folder_.Create("read");
  folder_.clock.Advance(1s);
  const Browser all(*access_, good_all_), reads(*access_, reader), other(*access_, reader),
      out(*access_, good_all_), gone(*access_, revoked);
  access_->LogOut(out.credential(), "ipv4:127.0.0.1:1");
  folder_.Revoke(revoked);
  folder_.clock.Advance(1s);
  const std::vector<std::string> fields = {all.Cookie(),
                                           all.Page(),
                                           all.Cookie() + other.Page(),
                                           out.Cookie() + out.Page(),
                                           gone.Cookie() + gone.Page(),
                                           reads.Cookie() + reads.Page(),
                                           all.Cookie() + all.Page()};
  constexpr const char* kSessions[] = {"cookie alone", "field alone",   "field of another",
                                       "logged out",   "revoked token", "scope `read`",
                                       "all scopes"};
  std::vector<std::pair<std::string, Answers>> rows;
  for (const auto& [path, post] : HttpPaths()) {
    SCOPED_TRACE(path);
    const std::string head = (post ? "POST " : "GET ") + path + " HTTP/1.1\r\n";
    const std::string body =
        post ? "X-Statcollect-Csrf: 1\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
             : "";
    const auto scope = access::FindRule(api::MethodOfPath(path))->scope;
    const std::string with_read = !scope || *scope == access::Scope::kRead ? "passes" : "403";
    Answers answers;
    for (const std::string& session : fields) {
      const bool passes = answers.size() + 1 == fields.size() ||
                          (answers.size() + 2 == fields.size() && with_read == "passes");
      answers.push_back(
          StatusOrPasses(Http(head + session, passes && post ? body + "\r\n{}" : body)));
    }
    EXPECT_EQ(answers, scope ? Answers({"401", "401", "401", "401", "401", with_read, "passes"})
                             : Answers(fields.size(), "passes"));
    rows.emplace_back(path, answers);
  }
  testing::ExpectInPage(WALKS_PAGE, "walk of sessions", TableOf("path", rows, kSessions));
  EXPECT_EQ(
      Call("/statcollect.v1.Query/ListRuns", "", "", {{api::kSessionMetadata, "a b"}}).error_code(),
      StatusCode::UNAUTHENTICATED)
      << "of the network";
}

TEST_F(GuardTest, HttpPathsBesideTheRoutesAreRefused) {
  EXPECT_THAT(Http("GET /assets/none HTTP/1.1\r\n"), HasSubstr("HTTP/1.1 404"))
      << "it may be asked for";
  EXPECT_THAT(Http("GET /assets HTTP/1.1\r\n" + Field(good_all_)), HasSubstr("HTTP/1.1 403"));
  EXPECT_THAT(Http("GET /nothing HTTP/1.1\r\n" + Field(good_all_)), HasSubstr("HTTP/1.1 403"));
  EXPECT_THAT(Http("GET /api/v1/runs?token=" + good_all_ + " HTTP/1.1\r\n"),
              HasSubstr("HTTP/1.1 400"));
}

TEST_F(GuardTest, ARequestThatCannotBeParsedIsRefusedForItsTokenFirst) {
  const std::string nonsense(1000, '\xff');
  EXPECT_EQ(Call("/statcollect.v1.Query/Diff", "", nonsense).error_code(),
            StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Call("/statcollect.v1.Admin/DeleteRun", "", nonsense).error_code(),
            StatusCode::UNAUTHENTICATED);
}

TEST_F(GuardTest, OpenStreamsEndSoonAfterTheirTokenIsRevoked) {
  const std::string token = folder_.Create("ingest"), other = folder_.Create("ingest");
  folder_.clock.Advance(1s);
  const auto stub = v1::Ingest::NewStub(channel_);
  grpc::ClientContext revoked_context, kept_context;
  revoked_context.AddMetadata("authorization", "Bearer " + token);
  kept_context.AddMetadata("authorization", "Bearer " + other);
  auto revoked = stub->Stream(&revoked_context);
  auto kept = stub->Stream(&kept_context);
  ASSERT_TRUE(revoked->Write({}));
  ASSERT_TRUE(kept->Write({}));
  folder_.Revoke(token);
  folder_.clock.Advance(1s);
  v1::CollectorMessage message;
  EXPECT_FALSE(revoked->Read(&message)) << "it goes on";
  EXPECT_FALSE(revoked->Finish().ok());
  ASSERT_TRUE(kept->WritesDone());
  EXPECT_FALSE(kept->Read(&message));
  EXPECT_TRUE(kept->Finish().ok());
}

TEST_F(GuardTest, ACallerHasOnlySoManyStreams) {
  const std::string token = folder_.Create("ingest"), other = folder_.Create("ingest");
  folder_.clock.Advance(1s);
  const auto stub = v1::Ingest::NewStub(channel_);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  const auto open = [&](const std::string& with) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    contexts.back()->AddMetadata("authorization", "Bearer " + with);
    auto stream = stub->Stream(contexts.back().get());
    (void)stream->Write({});
    return stream;
  };
  const auto end = [](auto& stream) {
    v1::CollectorMessage message;
    stream->WritesDone();
    while (stream->Read(&message)) {
    }
    return stream->Finish();
  };
  std::vector<decltype(open(token))> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(open(token));
  // Which of them comes first is the server's matter.
  for (int i = 0; i < 2000 && access_->counters().streams_refused == 0; ++i)
    std::this_thread::sleep_for(5ms);
  auto of_other = open(other);
  EXPECT_TRUE(end(of_other).ok()) << "another token has its own";
  int refused = 0;
  for (auto& stream : streams) {
    const grpc::Status status = end(stream);
    if (status.ok()) continue;
    ++refused;
    EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(status.error_message(),
                HasSubstr("token " + token.substr(4, 12) + " has 3 streams open"));
  }
  EXPECT_EQ(refused, 1);
  EXPECT_EQ(access_->counters().streams_refused, 1U);
  bool later = false;  // once the server, too, is done with the others
  for (int i = 0; i < 1000 && !later; ++i) {
    auto stream = open(token);
    later = end(stream).ok();
    if (!later) std::this_thread::sleep_for(5ms);
  }
  EXPECT_TRUE(later);
}

TEST_F(GuardTest, CallsThatChangeSomethingAreAuditedWithTheirObjectAndOutcome) {
  v1::DeleteRunRequest request;
  request.set_run("old-run");
  (void)Call("/statcollect.v1.Admin/DeleteRun", "Bearer " + good_all_, request.SerializeAsString());
  (void)Call("/statcollect.v1.Query/ListRuns", "Bearer " + good_all_);
  (void)Http(
      "POST /api/v1/noise_rm HTTP/1.1\r\n" + Field(good_all_),
      "X-Statcollect-Csrf: 1\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}");
  const auto lines = AuditLines();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_THAT(lines[0], HasSubstr("\"principal\":\"token " + good_all_.substr(4, 12) + "\""));
  EXPECT_THAT(lines[0], HasSubstr("\"address\":\"ipv4:127.0.0.1:"));
  EXPECT_THAT(lines[0],
              HasSubstr("\"method\":\"/statcollect.v1.Admin/DeleteRun\",\"object\":\"old-run\""));
  EXPECT_THAT(lines[0], HasSubstr("\"outcome\":\"error 12"));
  EXPECT_THAT(lines[1], HasSubstr("\"address\":\"ipv4:127.0.0.1:"))
      << "of the browser, not of the process";
  EXPECT_THAT(lines[1], HasSubstr("DeleteNoise"));
}

TEST_F(GuardTest, AProjectThatIsNoNameIsRefusedBeforeAnythingIsParsed) {
  const std::string nonsense(1000, '\xff');
  const auto refused =
      Call("/statcollect.v1.Query/Diff", "Bearer " + good_all_, nonsense, {{kProjectField, "a/b"}});
  EXPECT_EQ(refused.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr("project 'a/b'"));
  EXPECT_THAT(
      Http("GET /api/v1/runs HTTP/1.1\r\nX-Statcollect-Project: a/b\r\n" + Field(good_all_)),
      HasSubstr("HTTP/1.1 400"));
  EXPECT_THAT(
      Http("GET /api/v1/runs HTTP/1.1\r\nX-Statcollect-Project: a\r\nX-Statcollect-Project: b\r\n" +
           Field(good_all_)),
      HasSubstr("several projects"));
}

TEST_F(GuardTest, ACallerOfTheNetworkCannotChooseItsCertificate) {
  (void)Call("/statcollect.v1.Admin/KeepRun", "", "", {{api::kCertificateField, "somebody\n"}});
  ASSERT_EQ(AuditLines().size(), 1U);
  EXPECT_THAT(AuditLines()[0], HasSubstr("\"principal\":\"nobody\""));
}

TEST_F(GuardTest, ACallerOfTheNetworkCannotChooseTheAddressInTheLog) {
  (void)Call("/statcollect.v1.Admin/KeepRun", "", "", {{api::kPeerField, "ipv4:6.6.6.6:6"}});
  ASSERT_EQ(AuditLines().size(), 1U);
  EXPECT_THAT(AuditLines()[0], HasSubstr("ipv4:127.0.0.1:"));
}

}  // namespace
}  // namespace statcollect
