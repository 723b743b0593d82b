#include "server/api/guard.h"

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <google/protobuf/message.h>
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security_constants.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>
#include <grpcpp/support/server_interceptor.h>

#include "common/project.h"
#include "common/thread_annotations.h"
#include "server/access/current.h"
#include "server/access/token.h"
#include "server/api/calls.h"

namespace statcollect::api {
namespace {

using google::protobuf::MethodDescriptor;
using grpc::ByteBuffer;
using grpc::internal::MethodHandler;
using grpc::internal::RpcMethod;

constexpr std::chrono::milliseconds kRecheckInterval{500};

std::string_view View(grpc::string_ref text) { return {text.data(), text.size()}; }

std::vector<std::string_view> FieldsOf(const grpc::ServerContextBase& context, const char* name) {
  std::vector<std::string_view> found;
  const auto [begin, end] = context.client_metadata().equal_range(name);
  for (auto field = begin; field != end; ++field) found.push_back(View(field->second));
  return found;
}

// What nobody outside this process knows.
const std::string& PeerSeal() {
  static const auto* seal = new std::string(access::MakeToken().value() + " ");
  return *seal;
}

// What HTTP says on the in-process channel; absent: nothing, or it is not from there.
std::optional<std::string_view> SealedField(const grpc::ServerContextBase& context,
                                            const char* name) {
  const auto fields = FieldsOf(context, name);
  if (fields.size() != 1 || !fields.front().starts_with(PeerSeal())) return std::nullopt;
  return fields.front().substr(PeerSeal().size());
}

// Of the network's connection, or what HTTP says.
std::string AddressOf(const grpc::ServerContextBase& context) {
  const auto told = SealedField(context, kPeerField);
  return told ? std::string(*told) : context.peer();
}

// "COOKIE PAGE"; points into the context.
access::SessionCredential SessionIn(const grpc::ServerContextBase& context) {
  const auto told = SealedField(context, kSessionMetadata);
  const std::size_t blank = told ? told->find(' ') : std::string_view::npos;
  if (blank == std::string_view::npos) return {};
  return {.cookie = told->substr(0, blank), .page = told->substr(blank + 1)};
}

// Of the connection's certificate, or what HTTP says.
std::vector<std::string> CertificateOf(const grpc::ServerContextBase& context) {
  std::vector<std::string> names;
  if (const auto told = SealedField(context, kCertificateField)) {
    std::istringstream lines{std::string(*told)};
    for (std::string name; std::getline(lines, name);) names.push_back(name);
    return names;
  }
  const auto peer = context.auth_context();
  if (peer == nullptr || !peer->IsPeerAuthenticated()) return names;
  for (const char* property : {GRPC_X509_SAN_PROPERTY_NAME, GRPC_X509_CN_PROPERTY_NAME}) {
    for (const grpc::string_ref& name : peer->FindPropertyValues(property))
      names.emplace_back(View(name));
    if (!names.empty()) break;
  }
  return names;
}

// The views are into the context and `address`.
access::Caller CallerOf(const grpc::ServerContextBase& context, std::string_view method,
                        std::string_view address) {
  return {.authorization = FieldsOf(context, "authorization"),
          .method = method,
          .address = address,
          .certificate = CertificateOf(context),
          .project = FieldsOf(context, kProjectField),
          .session = SessionIn(context)};
}

// The calls that stay open, and a thread that ends those whose token is no longer valid.
// Thread-safe.
class OpenCalls {
 public:
  OpenCalls(access::AccessControl& access, std::size_t streams_max)
      : access_(access), streams_max_(streams_max), thread_([this] { Watch(); }) {}
  ~OpenCalls() {
    {
      MutexLock lock(mutex_);
      closing_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }
  OpenCalls(const OpenCalls&) = delete;
  OpenCalls& operator=(const OpenCalls&) = delete;

  // Absent: the caller has too many.
  std::optional<std::uint64_t> Add(const access::Principal& principal, grpc_call* call) {
    MutexLock lock(mutex_);
    if (streams_max_ > 0 && !principal.IsNobody()) {
      std::size_t& open = of_callers_[principal.Name()];
      if (open >= streams_max_) return std::nullopt;
      ++open;
    }
    grpc_call_ref(call);
    calls_.emplace(++last_, Open{principal, call});
    return last_;
  }
  Status TooMany(const access::Principal& principal) const {
    return {Code::kResourceExhausted,
            principal.Name() + " has " + std::to_string(streams_max_) +
                " streams open; expected fewer (statcollectord --token-streams-max); end some, or "
                "use another token; an agent tries again by itself"};
  }
  void Remove(std::uint64_t id) {
    grpc_call* call = nullptr;
    {
      MutexLock lock(mutex_);
      const auto taken = calls_.extract(id);
      call = taken.mapped().call;
      const auto of = of_callers_.find(taken.mapped().principal.Name());
      if (of != of_callers_.end() && --of->second == 0) of_callers_.erase(of);
    }
    grpc_call_unref(call);
  }

 private:
  struct Open {
    access::Principal principal;
    grpc_call* call;
  };

  void Watch() {
    MutexLock lock(mutex_);
    while (!closing_) {
      changed_.wait_for(mutex_, kRecheckInterval,
                        [this]() STATCOLLECT_REQUIRES(mutex_) { return closing_; });
      for (const auto& [id, open] : calls_) {
        const Status valid = access_.StillValid(open.principal);
        // The client is told why when it comes back.
        if (!valid.ok())
          grpc_call_cancel_with_status(open.call, GRPC_STATUS_UNAUTHENTICATED,
                                       valid.message().c_str(), nullptr);
      }
    }
  }

  access::AccessControl& access_;
  const std::size_t streams_max_;
  Mutex mutex_;  // guards everything below
  std::map<std::string, std::size_t> of_callers_
      STATCOLLECT_GUARDED_BY(mutex_);  // open ones, by name
  ConditionVariable changed_;
  bool closing_ STATCOLLECT_GUARDED_BY(mutex_) = false;
  std::uint64_t last_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, Open> calls_ STATCOLLECT_GUARDED_BY(mutex_);
  std::thread thread_;
};

// Ends its call at once.
template <typename Base>
class RefusedCall final : public Base {
 public:
  explicit RefusedCall(const Status& why) { this->Finish(ToGrpc(why)); }
  void OnDone() override { delete this; }
};

using Parameter = MethodHandler::HandlerParameter;

// Parses the request with the handler and runs it.
void ParseAndRun(MethodHandler& handler, const Parameter& from, bool has_request,
                 std::function<void()> at_end) {
  void* request = nullptr;
  void* data = nullptr;
  grpc::Status parsed;
  if (has_request) {
    request = handler.Deserialize(from.call->call(), static_cast<grpc_byte_buffer*>(from.request),
                                  &parsed, &data);
  }
  handler.RunHandler(
      Parameter(from.call, from.server_context, request, parsed, data, std::move(at_end)));
}

// A method of the service, behind the check. gRPC hands it the request's bytes, because it does not
// parse.
class GuardedMethod final : public MethodHandler {
 public:
  GuardedMethod(access::AccessControl& access, OpenCalls& open_calls, const char* name,
                RpcMethod::RpcType type, MethodHandler& method)
      : access_(access), open_calls_(open_calls), name_(name), type_(type), method_(method) {}

  void* Deserialize(grpc_call*, grpc_byte_buffer* request, grpc::Status*, void**) override {
    return request;
  }

  void RunHandler(const Parameter& call) override {
    const std::string address = AddressOf(*call.server_context);
    auto allowed = access_.Check(CallerOf(*call.server_context, name_, address));
    if (!allowed.ok()) return Refuse(call, allowed.status());
    const access::Principal principal = *std::move(allowed);
    const access::PrincipalScope current(
        principal);  // the handlers start their method before they return
    if (type_ == RpcMethod::NORMAL_RPC)
      return ParseAndRun(method_, call, true, call.call_requester);
    const auto id = open_calls_.Add(principal, call.call->call());
    if (!id) {
      access_.CountRefusedStream();
      return Refuse(call, open_calls_.TooMany(principal));
    }
    auto at_end = [&open_calls = open_calls_, id = *id, next = call.call_requester] {
      open_calls.Remove(id);
      next();
    };
    ParseAndRun(method_, call, type_ == RpcMethod::SERVER_STREAMING, std::move(at_end));
  }

 private:
  // The handlers are used only while RunHandler runs. With ByteBuffer, their parsing keeps the
  // bytes.
  void Refuse(const Parameter& call, const Status& why) {
    using Context = grpc::CallbackServerContext;
    if (type_ == RpcMethod::NORMAL_RPC) {
      grpc::internal::CallbackUnaryHandler<ByteBuffer, ByteBuffer> refusing(
          [&](Context*, const ByteBuffer*, ByteBuffer*) {
            return new RefusedCall<grpc::ServerUnaryReactor>(why);
          });
      return ParseAndRun(refusing, call, true, call.call_requester);
    }
    if (type_ == RpcMethod::SERVER_STREAMING) {
      grpc::internal::CallbackServerStreamingHandler<ByteBuffer, ByteBuffer> refusing(
          [&](Context*, const ByteBuffer*) {
            return new RefusedCall<grpc::ServerWriteReactor<ByteBuffer>>(why);
          });
      return ParseAndRun(refusing, call, true, call.call_requester);
    }
    grpc::internal::CallbackBidiHandler<ByteBuffer, ByteBuffer> refusing([&](Context*) {
      return new RefusedCall<grpc::ServerBidiReactor<ByteBuffer, ByteBuffer>>(why);
    });
    ParseAndRun(refusing, call, false, call.call_requester);
  }

  access::AccessControl& access_;
  OpenCalls& open_calls_;
  const char* const name_;
  const RpcMethod::RpcType type_;
  MethodHandler& method_;
};

RpcMethod::RpcType TypeOf(const MethodDescriptor& method) {
  if (method.client_streaming())
    return method.server_streaming() ? RpcMethod::BIDI_STREAMING : RpcMethod::CLIENT_STREAMING;
  return method.server_streaming() ? RpcMethod::SERVER_STREAMING : RpcMethod::NORMAL_RPC;
}

// The methods of another service, in its order.
class GuardedService final : public grpc::Service {
 public:
  GuardedService(access::AccessControl& access, OpenCalls& open_calls,
                 const google::protobuf::ServiceDescriptor& type, grpc::Service& service) {
    names_.reserve(static_cast<std::size_t>(type.method_count()));  // gRPC keeps pointers to them
    for (int i = 0; i < type.method_count(); ++i) {
      const MethodDescriptor& method = *type.method(i);
      const char* name = names_.emplace_back("/" + type.full_name() + "/" + method.name()).c_str();
      AddMethod(new grpc::internal::RpcServiceMethod(name, TypeOf(method), nullptr));
      MarkMethodCallback(
          i, new GuardedMethod(access, open_calls, name, TypeOf(method), HandlerOf(service, i)));
    }
  }

 private:
  // A service shows its handlers to its derived classes only.
  static MethodHandler& HandlerOf(grpc::Service& service, int index) {
    constexpr auto kGet = &GuardedService::GetHandler;
    return *(service.*kGet)(index);
  }

  std::vector<std::string> names_;
};

std::string BytesOf(grpc_byte_buffer* buffer) {
  std::string bytes;
  grpc_byte_buffer_reader reader;
  if (buffer == nullptr || grpc_byte_buffer_reader_init(&reader, buffer) == 0) return bytes;
  for (grpc_slice* part = nullptr; grpc_byte_buffer_reader_peek(&reader, &part) != 0;) {
    bytes.append(reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(*part)),
                 GRPC_SLICE_LENGTH(*part));
  }
  grpc_byte_buffer_reader_destroy(&reader);
  return bytes;
}

// What a request is about: its run, profile or folder.
std::string ObjectOf(const google::protobuf::Descriptor& type, const std::string& request) {
  const std::unique_ptr<google::protobuf::Message> message(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(&type)->New());
  if (!message->ParseFromString(request)) return {};
  for (const char* name : {"run", "name", "directory"}) {
    const auto* field = type.FindFieldByName(name);
    if (field != nullptr && field->type() == google::protobuf::FieldDescriptor::TYPE_STRING)
      return message->GetReflection()->GetString(*message, field);
  }
  return {};
}

// "/pkg.Service/Method".
const MethodDescriptor* FindMethod(std::string name) {
  if (!name.empty()) name.erase(0, 1);
  for (char& c : name) c = c == '/' ? '.' : c;
  return google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(name);
}

// Writes down what became of one call. What Guard refused is written already.
class Auditor final : public grpc::experimental::Interceptor {
 public:
  Auditor(access::AccessControl& access, grpc::ServerContextBase& context, const char* method)
      : access_(access), context_(context), method_(method) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using Point = grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(Point::POST_RECV_MESSAGE)) {
      const MethodDescriptor* method = FindMethod(method_);
      if (method != nullptr)
        object_ = ObjectOf(*method->input_type(),
                           BytesOf(static_cast<grpc_byte_buffer*>(methods->GetRecvMessage())));
    }
    if (methods->QueryInterceptionHookPoint(Point::PRE_SEND_STATUS))
      Write(methods->GetSendStatus());
    methods->Proceed();
  }

 private:
  void Write(const grpc::Status& status) {
    if (status.error_code() == grpc::UNAUTHENTICATED ||
        status.error_code() == grpc::PERMISSION_DENIED)
      return;
    const std::string address = AddressOf(context_);
    const access::Caller caller = CallerOf(context_, method_, address);
    access_.audit().Write({.principal = access_.NameOf(caller),
                           .address = address,
                           .method = method_,
                           .object = object_,
                           .project = access_.ProjectOf(caller),
                           .outcome = status.ok() ? "ok"
                                                  : "error " + std::to_string(status.error_code()) +
                                                        ": " + status.error_message()});
  }

  access::AccessControl& access_;
  grpc::ServerContextBase& context_;
  const std::string method_;
  std::string object_;
};

class AuditorFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit AuditorFactory(access::AccessControl& access) : access_(access) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    const access::MethodRule* rule = access::FindRule(info->method());
    if (rule == nullptr || !rule->audited) return nullptr;
    return new Auditor(access_, *info->server_context(), info->method());
  }

 private:
  access::AccessControl& access_;
};

}  // namespace

std::string SealPeer(const std::string& address) { return PeerSeal() + address; }

std::string SealCertificate(const std::vector<std::string>& names) {
  std::string sealed = PeerSeal();
  for (const std::string& name : names) sealed += name + "\n";
  return sealed;
}

std::string SealSession(const access::SessionCredential& session) {
  return PeerSeal() + std::string(session.cookie) + " " + std::string(session.page);
}

class Guard::Impl {
 public:
  Impl(access::AccessControl& access, std::size_t streams_max)
      : access(access), open_calls(access, streams_max) {}
  access::AccessControl& access;
  OpenCalls open_calls;
};

Guard::Guard(access::AccessControl& access, std::size_t streams_max)
    : impl_(std::make_unique<Impl>(access, streams_max)) {}
Guard::~Guard() = default;

std::unique_ptr<grpc::Service> Guard::Wrap(const google::protobuf::ServiceDescriptor& type,
                                           grpc::Service& service) {
  return std::make_unique<GuardedService>(impl_->access, impl_->open_calls, type, service);
}

void Guard::AddAudit(grpc::ServerBuilder& builder) {
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> factories;
  factories.push_back(std::make_unique<AuditorFactory>(impl_->access));
  builder.experimental().SetInterceptorCreators(std::move(factories));
}

}  // namespace statcollect::api
