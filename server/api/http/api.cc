#include "server/api/http/api.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/message.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/server.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <nlohmann/json.hpp>

#include "common/checksum.h"
#include "common/names.h"
#include "common/project.h"
#include "common/thread_annotations.h"
#include "proto/json.h"
#include "server/access/token.h"
#include "server/api/guard.h"
#include "server/api/http/openapi.h"
#include "server/api/http/request.h"
#include "server/api/http/routes.h"
#include "server/api/http/session.h"
#include "server/api/worker_pool.h"
#include "server/http/gzip.h"

namespace statcollect::api {
namespace {

using google::protobuf::Message;
using google::protobuf::MessageFactory;
using grpc::ByteBuffer;

constexpr std::size_t kMessageBytesMax = 4000;
constexpr std::size_t kAnswersWaitingMax = 1 << 20;

HttpResponse ErrorResponse(Code code, const std::string& message) {
  HttpResponse response{.status = HttpStatusOf(code)};
  const nlohmann::ordered_json body = {{"error", Printable(message, kMessageBytesMax)},
                                       {"code", CodeName(code)}};
  response.body = DumpJson(body) + "\n";
  if (response.status == 429 || response.status == 503) response.headers["Retry-After"] = "1";
  return response;
}

HttpResponse ErrorResponse(int status, Code code, const std::string& message) {
  HttpResponse response = ErrorResponse(code, message);
  response.status = status;
  return response;
}

std::unique_ptr<Message> NewMessage(const google::protobuf::Descriptor& type) {
  return std::unique_ptr<Message>(MessageFactory::generated_factory()->GetPrototype(&type)->New());
}

ByteBuffer Serialized(const Message& message) {
  const std::string bytes = message.SerializeAsString();
  const grpc::Slice slice(bytes);
  return {&slice, 1};
}

bool Parse(ByteBuffer& bytes, Message& message) {
  grpc::ProtoBufferReader reader(&bytes);
  return reader.status().ok() && message.ParseFromZeroCopyStream(&reader);
}

constexpr char kLinesType[] = "application/x-ndjson", kEventsType[] = "text/event-stream";

// A server-sent event with the cursor as its id; a comment, which readers skip, if the message says
// nothing.
std::string EventText(const Message& message) {
  const auto* const cursor = message.GetDescriptor()->FindFieldByName("cursor");
  const std::string id = message.GetReflection()->GetString(message, cursor);
  std::unique_ptr<Message> rest(message.New());
  rest->CopyFrom(message);
  rest->GetReflection()->ClearField(rest.get(), cursor);
  const auto* const caught_up = rest->GetDescriptor()->FindFieldByName("caught_up");
  rest->GetReflection()->ClearField(rest.get(), caught_up);
  if (rest->ByteSizeLong() == 0) return ": nothing new\n\n";
  return "id: " + id + "\nevent: runs\ndata: " + DumpJson(ToJson(message), -1) + "\n\n";
}

// Of answers of this build, which are compared with each other only.
std::string EtagOf(const std::string& bytes) {
  return "\"" + std::to_string(Crc32c(bytes)) + "-" + std::to_string(bytes.size()) + "\"";
}

// The report in a stream's message; null if it only tells progress.
const Message* ReportIn(const Message& message) {
  const auto* field = message.GetDescriptor()->FindFieldByName("report");
  const auto* reflection = message.GetReflection();
  return reflection->HasField(message, field) ? &reflection->GetMessage(message, field) : nullptr;
}

// Shared by the calls of an HttpApi.
struct Shared {
  explicit Shared(grpc::Server& server)
      : stub(server.InProcessChannel(Arguments())),
        pool({.what = "http answer", .threads = 2, .waiting_max = kAnswersWaitingMax}) {}
  static grpc::ChannelArguments Arguments() {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(std::numeric_limits<int>::max());
    return arguments;
  }
  // Runs it on the pool, or at once if that closes. What it holds ends with it, there: gRPC's
  // thread, which is still in here then, must not be the last to hold a call, and with it the
  // channel, whose end joins that thread.
  void Run(std::function<void()> work) {
    const auto run = [work = std::make_shared<std::function<void()>>(std::move(work))] {
      std::exchange(*work, nullptr)();
    };
    auto item = std::make_shared<WorkItem>([run](const WorkItem&) { run(); },
                                           [run](const Status&) { run(); });
    if (!pool.Submit(std::move(item)).ok()) run();
  }

  grpc::GenericStub stub;
  WorkerPool pool;
};

// One call of the gRPC server on behalf of one exchange. Owned by gRPC until OnDone, then by its
// last work.
class Call final : public grpc::ClientBidiReactor<ByteBuffer, ByteBuffer>,
                   public std::enable_shared_from_this<Call> {
 public:
  Call(Shared& shared, const HttpRoute& route, std::shared_ptr<HttpExchange> exchange, bool gzip,
       std::function<void(Call*)> done)
      : shared_(shared),
        route_(route),
        exchange_(std::move(exchange)),
        gzip_(gzip),
        done_(std::move(done)) {}

  // The call is checked like one from the network: with the caller's own token.
  void SetCaller(const HttpRequest& asked) {
    for (const std::string& field : asked.authorization) {
      // gRPC must not be given anything else as metadata; the gate has refused it where tokens are
      // required.
      const auto token = access::BearerToken(field);
      if (token && access::TokenId(*token))
        context_.AddMetadata("authorization", "Bearer " + std::string(*token));
    }
    const access::SessionCredential session = SessionOf(asked);
    if (asked.authorization.empty() && !session.empty())
      context_.AddMetadata(kSessionMetadata, SealSession(session));
    if (!asked.address.empty()) context_.AddMetadata(kPeerField, SealPeer(asked.address));
    if (!asked.certificate.empty())
      context_.AddMetadata(kCertificateField, SealCertificate(asked.certificate));
    // As with tokens: gRPC must be given names only.
    if (asked.project.size() == 1 && ValidateProjectName(asked.project.front()).ok())
      context_.AddMetadata(kProjectField, asked.project.front());
    if_none_match_ = asked.if_none_match;
  }

  void Start(const Message& request) {
    self_ = shared_from_this();
    request_ = Serialized(request);
    shared_.stub.PrepareBidiStreamingCall(&context_, route_.grpc_path(), grpc::StubOptions(), this);
    exchange_->OnGone([weak = weak_from_this()] {
      if (const auto call = weak.lock()) call->Cancel();
    });
    StartWriteLast(&request_, grpc::WriteOptions());
    StartRead(&received_);
    StartCall();
  }
  void Cancel() { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (IsStream()) {
      // The next message is read when the client has taken this one; until then the call is held.
      AddHold();
      shared_.Run([call = shared_from_this()] { call->WriteLine(); });
      return;
    }
    answer_ = std::exchange(received_, ByteBuffer());  // of a stream, the last one is the report
    StartRead(&received_);
  }

  bool IsStream() const {
    return route_.answer == HttpRoute::Answer::kLines ||
           route_.answer == HttpRoute::Answer::kEvents;
  }
  void WriteLine() {
    const auto message = NewMessage(*route_.method->output_type());
    if (!Parse(received_, *message)) return Broken();
    received_.Clear();
    const bool events = route_.answer == HttpRoute::Answer::kEvents;
    if (!std::exchange(begun_, true)) {
      HttpResponse head{
          .status = 200, .content_type = events ? kEventsType : kLinesType, .body = {}};
      if (events) head.headers["X-Accel-Buffering"] = "no";  // a proxy must not wait for more
      exchange_->Begin(std::move(head));
    }
    std::string text = events ? EventText(*message) : DumpJson(ToJson(*message), -1) + "\n";
    exchange_->Write(std::move(text), [call = shared_from_this()](bool taken) {
      if (!taken) call->Cancel();
      call->ReadOn();
    });
  }
  void Broken() {
    Cancel();
    ReadOn();
  }
  void ReadOn() {
    StartRead(&received_);
    RemoveHold();
  }

  void OnDone(const grpc::Status& status) override {
    shared_.Run([call = std::exchange(self_, nullptr), status]() mutable {
      call->Answer(status);
      call->exchange_.reset();
      const auto done = call->done_;
      done(call.get());
    });
  }

  void Answer(const grpc::Status& status) {
    const auto code = static_cast<Code>(status.error_code());
    if (begun_) return exchange_->End(status.ok());
    if (!status.ok()) return exchange_->Send(ErrorResponse(code, status.error_message()));
    if (IsStream()) {  // not one message
      return exchange_->Send(
          {.status = 200,
           .content_type = route_.answer == HttpRoute::Answer::kEvents ? kEventsType : kLinesType,
           .body = {}});
    }
    try {
      const auto message = NewMessage(*route_.method->output_type());
      const bool parsed = Parse(answer_, *message);
      const Message* answer = message.get();
      if (parsed && route_.answer == HttpRoute::Answer::kReport) answer = ReportIn(*message);
      if (!parsed || answer == nullptr)
        return exchange_->Send(ErrorResponse(Code::kInternal, "the query ended without an answer"));
      exchange_->Send(route_.answer == HttpRoute::Answer::kBytes
                          ? BytesAnswer(*answer)
                          : Packed({.status = 200, .body = DumpJson(ToJson(*answer)) + "\n"}));
    } catch (const std::bad_alloc&) {
      exchange_->Send(ErrorResponse(Code::kResourceExhausted,
                                    "the answer is too large for the collector's memory"));
    }
  }

  // With a validator: a page that has these bytes already gets none.
  HttpResponse BytesAnswer(const Message& answer) const {
    HttpResponse whole{.status = 200, .content_type = "application/octet-stream"};
    whole.body = answer.GetReflection()->GetString(answer, answer.GetDescriptor()->field(0));
    const std::string etag = EtagOf(whole.body);
    whole.headers = {
        {"ETag", etag}, {"Cache-Control", "private, no-cache"}, {"Vary", "Accept-Encoding"}};
    if (if_none_match_.find(etag) != std::string::npos) {
      whole.status = 304;
      whole.body.clear();
      return whole;
    }
    return Packed(std::move(whole));
  }

  HttpResponse Packed(HttpResponse whole) const {
    constexpr std::size_t kWorthIt = 4096;
    if (!gzip_ || whole.body.size() < kWorthIt) return whole;
    whole.body = Gzip(whole.body, 1);
    whole.headers["Content-Encoding"] = "gzip";
    return whole;
  }

  Shared& shared_;
  const HttpRoute& route_;
  std::shared_ptr<HttpExchange> exchange_;
  const bool gzip_;            // the client takes it
  std::string if_none_match_;  // as the client sent it
  const std::function<void(Call*)> done_;
  grpc::ClientContext context_;
  ByteBuffer request_, received_, answer_;
  bool begun_ = false;  // of kLines: the head is written
  std::shared_ptr<Call> self_;
};

std::string PathsText(const std::map<std::string, HttpRoute>& routes) {
  std::string known;
  for (const auto& [name, route] : routes)
    known += (known.empty() ? "" : ", ") + std::string(kHttpPrefix) + name;
  return known + ", " + std::string(kHttpPrefix) + "openapi.json";
}

bool IsJson(std::string type) {
  type = type.substr(0, type.find(';'));
  std::transform(type.begin(), type.end(), type.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  while (!type.empty() && type.back() == ' ') type.pop_back();
  return type == "application/json";
}

}  // namespace

class HttpApi::Impl {
 public:
  explicit Impl(grpc::Server& server)
      : shared_(server),
        routes_(MakeHttpRoutes()),
        openapi_(DumpJson(MakeOpenApi(routes_)) + "\n") {}

  ~Impl() { Close(); }
  void Close() {
    MutexLock lock(mutex_);
    closed_ = true;
    for (Call* call : calls_) call->Cancel();
    ended_.wait(mutex_, [this]() STATCOLLECT_REQUIRES(mutex_) { return calls_.empty(); });
  }

  void Serve(HttpRequest request, const std::shared_ptr<HttpExchange>& exchange) {
    const std::string name = request.path.substr(std::min(kHttpPrefix.size(), request.path.size()));
    if (name == "openapi.json") {
      if (request.method != "GET") return exchange->Send(NotAllowed("GET, HEAD"));
      return exchange->Send({.status = 200, .body = openapi_});
    }
    const auto found = routes_.find(name);
    if (found == routes_.end()) {
      return exchange->Send(ErrorResponse(
          Code::kNotFound,
          "no page '" + Printable(request.path) + "'; there are " + PathsText(routes_)));
    }
    const HttpRoute& route = found->second;
    if (request.method != "POST" && (request.method != "GET" || route.changes))
      return exchange->Send(NotAllowed(route.changes ? "POST" : "GET, HEAD, POST"));
    // A page of another origin cannot send this field without asking first, and no answer permits
    // it.
    if (route.changes && request.csrf != "1") {
      return exchange->Send(
          ErrorResponse(403, Code::kPermissionDenied,
                        std::string(kHttpPrefix) + name + ": found " +
                            (request.csrf.empty() ? "no field X-Statcollect-Csrf"
                                                  : "another value of X-Statcollect-Csrf") +
                            "; expected 'X-Statcollect-Csrf: 1' with every request that changes "
                            "something; add it: curl -H 'X-Statcollect-Csrf: 1' ..."));
    }
    auto message = NewMessage(*route.method->input_type());
    Status filled = FillFromQuery(request.query, *message);
    if (filled.ok() && request.method == "POST") {
      if (!request.query.empty())
        filled = {Code::kInvalidArgument,
                  "found parameters after '?'; expected them in the body of a POST"};
      else if (!IsJson(request.content_type))
        return exchange->Send(ErrorResponse(415, Code::kInvalidArgument,
                                            "found a body of type '" +
                                                Printable(request.content_type) +
                                                "'; expected Content-Type: application/json"));
      else
        filled = FillFromJson(request.body, *message);
    }
    if (filled.ok() && !request.last_event_id.empty())
      ContinueFrom(request.last_event_id, *message);
    if (!filled.ok())
      return exchange->Send(
          ErrorResponse(filled.code(), std::string(kHttpPrefix) + name + ": " + filled.message()));
    auto call =
        std::make_shared<Call>(shared_, route, exchange, AcceptsGzip(request.accept_encoding),
                               [this](Call* done) { Ended(done); });
    call->SetCaller(request);
    {
      MutexLock lock(mutex_);
      if (closed_)
        return exchange->Send(ErrorResponse(Code::kUnavailable, "the collector is shutting down"));
      calls_.insert(call.get());
      call->Start(*message);
    }
  }

 private:
  // An EventSource that connects again sends the id of the last event that it has got.
  static void ContinueFrom(const std::string& id, Message& request) {
    const auto* const cursor = request.GetDescriptor()->FindFieldByName("cursor");
    if (cursor == nullptr || !ValidateTensorName("Last-Event-ID", id).ok()) return;
    if (request.GetReflection()->GetString(request, cursor).empty())
      request.GetReflection()->SetString(&request, cursor, id);
  }
  static HttpResponse NotAllowed(const std::string& allowed) {
    HttpResponse response = ErrorResponse(405, Code::kUnimplemented, "expected " + allowed);
    response.headers["Allow"] = allowed;
    return response;
  }
  void Ended(Call* call) {
    MutexLock lock(mutex_);
    calls_.erase(call);
    ended_.notify_all();
  }

  Shared shared_;
  const std::map<std::string, HttpRoute> routes_;
  const std::string openapi_;
  Mutex mutex_;  // guards everything below
  ConditionVariable ended_;
  bool closed_ STATCOLLECT_GUARDED_BY(mutex_) = false;
  std::set<Call*> calls_ STATCOLLECT_GUARDED_BY(mutex_);
};

HttpApi::HttpApi(grpc::Server& server) : impl_(std::make_unique<Impl>(server)) {}
HttpApi::~HttpApi() = default;
void HttpApi::Close() { impl_->Close(); }

void HttpApi::Serve(HttpRequest request, const std::shared_ptr<HttpExchange>& exchange) {
  impl_->Serve(std::move(request), exchange);
}

}  // namespace statcollect::api
