#include "agent/export/grpc_exporter.h"

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/rpc_method.h>
#include <grpcpp/support/sync_stream.h>

#include "agent/export/wire.h"
#include "agent/export/worker_thread.h"
#include "common/project.h"
#include "common/token_file.h"
#include "common/unix_address.h"
#include "tls/files.h"
#include "tls/probe.h"

namespace statcollect {
namespace {

constexpr int kKeepaliveMs = 10'000;
constexpr int kKeepaliveTimeoutMs = 10'000;
constexpr int kConnectTimeoutMs = 10'000;
const tls::Names kTlsNames{.certificate = "STATAGENT_TLS_CERT",
                           .key = "STATAGENT_TLS_KEY",
                           .authorities = "STATAGENT_TLS_CA"};

// A channel of its own for every stream, with a connection of its own: the exporter's backoff is
// then the only one.
std::shared_ptr<grpc::ChannelCredentials> MakeCredentials(const std::string& address,
                                                          const tls::Material& material) {
  // A Unix socket is always plain: who may connect to it is a matter of its permissions.
  if (material.authorities.empty() || IsUnixAddress(address))
    return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = material.authorities;
  options.pem_private_key = material.key;
  options.pem_cert_chain = material.certificate;
  return grpc::SslCredentials(options);
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const tls::Material& material) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY,
                   0);  // the collector is near; a proxy for web pages is not meant for it
  return grpc::CreateCustomChannel(IsUnixAddress(address) ? UnixTarget(address) : address,
                                   MakeCredentials(address, material), arguments);
}

Status FromGrpc(const grpc::Status& status) {
  return Status(static_cast<Code>(status.error_code()), status.error_message());
}

grpc::ByteBuffer ToBuffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return {&slice, 1};
}

Result<wire::CollectorMessage> FromBuffer(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok())
    return Status(Code::kDataLoss, "read the collector's message: it cannot be decompressed");
  std::string bytes;
  for (const grpc::Slice& slice : slices)
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return wire::Decode(bytes);
}

using Call = grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

// As a generated stub opens a bidirectional stream.
std::unique_ptr<Call> OpenCall(const std::shared_ptr<grpc::Channel>& channel,
                               grpc::ClientContext* context) {
  const grpc::internal::RpcMethod method(wire::kStreamMethod,
                                         grpc::internal::RpcMethod::BIDI_STREAMING, channel);
  return std::unique_ptr<Call>(
      grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
          channel.get(), method, context));
}

// The reader's thread starts once the hello is on its way.
class GrpcStream final : public Stream {
 public:
  GrpcStream(const std::string& address, const std::string& token_file, const std::string& project,
             tls::Material material, StreamReceiver* receiver)
      : receiver_(receiver),
        address_(address),
        material_(std::move(material)),
        channel_(MakeChannel(address, material_)) {
    if (!project.empty()) context_.AddMetadata(kProjectField, project);
    if (!token_file.empty()) {
      const Result<std::string> token = ReadTokenFile(token_file);
      if (!token.ok()) {
        unreadable_ = token.status();
        return;
      }
      context_.AddMetadata("authorization", "Bearer " + *token);
    }
    // The call then begins with the hello, so that opening it does not wait for a connection.
    context_.set_initial_metadata_corked(true);
    call_ = OpenCall(channel_, &context_);
  }

  ~GrpcStream() override {
    if (finished_) return;
    context_.TryCancel();
    (void)Finish();
  }

  bool SendHello(const SessionInfo& session, std::uint64_t first_unacked_seq) override {
    if (call_ == nullptr || !call_->Write(ToBuffer(wire::EncodeHello(session, first_unacked_seq))))
      return false;
    reader_ = StartWorker("statagent-read", [this] { ReadAll(); });
    return true;
  }

  bool Send(const EncodedBatch& batch) override {
    return call_->Write(ToBuffer(wire::EncodeBatch(batch)));
  }

  bool SendGoodbye(const AgentCounters& counters) override {
    return call_->Write(ToBuffer(wire::EncodeGoodbye(counters))) && call_->WritesDone();
  }

  void Cancel() override { context_.TryCancel(); }

  Status Finish() override {
    finished_ = true;
    if (reader_.joinable()) {
      reader_.join();
    } else {
      receiver_->OnEnd();
    }
    if (call_ == nullptr) return unreadable_;
    const grpc::Status status = call_->Finish();
    return unreadable_.ok() ? Explain(status) : unreadable_;
  }

 private:
  // gRPC's words for a failed handshake do not say which certificate or name is wrong.
  Status Explain(const grpc::Status& status) const {
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE && !answered_) {
      const std::string why = tls::ExplainFailure(address_, material_, {.names = kTlsNames});
      if (!why.empty()) return Status(Code::kUnavailable, why);
    }
    return FromGrpc(status);
  }

  void ReadAll() {
    grpc::ByteBuffer buffer;
    while (call_->Read(&buffer)) {
      answered_ = true;
      const Result<wire::CollectorMessage> message = FromBuffer(buffer);
      if (!message.ok()) {
        unreadable_ = message.status();
        context_.TryCancel();
        continue;
      }
      if (message->welcome) receiver_->OnWelcome(*message->welcome);
      if (message->ack) receiver_->OnAck(*message->ack);
      if (message->directive) receiver_->OnDirective(*message->directive);
    }
    receiver_->OnEnd();
  }

  StreamReceiver* const receiver_;
  const std::string address_;
  const tls::Material material_;
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  std::unique_ptr<Call> call_;  // null: the token cannot be read
  std::thread reader_;
  Status unreadable_;      // the token file; or written by the reader, read after it has ended
  bool answered_ = false;  // written by the reader, read after it has ended
  bool finished_ = false;
};

// What cannot be sent because a certificate file is gone or damaged for now; the exporter tries
// again.
class FailedStream final : public Stream {
 public:
  FailedStream(Status why, StreamReceiver* receiver) : why_(std::move(why)), receiver_(receiver) {}
  bool SendHello(const SessionInfo&, std::uint64_t) override { return false; }
  bool Send(const EncodedBatch&) override { return false; }
  bool SendGoodbye(const AgentCounters&) override { return false; }
  void Cancel() override {}
  Status Finish() override {
    receiver_->OnEnd();
    return why_;
  }

 private:
  const Status why_;
  StreamReceiver* const receiver_;
};

class GrpcTransport final : public Transport {
 public:
  GrpcTransport(std::string address, std::string token_file, std::string project, tls::Files files)
      : address_(std::move(address)),
        token_file_(std::move(token_file)),
        project_(std::move(project)),
        files_(std::move(files)) {}

  std::unique_ptr<Stream> Open(StreamReceiver* receiver) override {
    auto material = tls::Load(files_, kTlsNames);
    if (!material.ok())
      return std::make_unique<FailedStream>(Status(Code::kUnavailable, material.status().message()),
                                            receiver);
    return std::make_unique<GrpcStream>(address_, token_file_, project_, *std::move(material),
                                        receiver);
  }

 private:
  const std::string address_;
  const std::string token_file_;
  const std::string project_;
  const tls::Files files_;
};

#ifdef STATAGENT_OWN_GRPC
// This copy of gRPC belongs to the library, and its statuses already contain what it would log.
void SilenceGrpc() {
  static const bool silenced = [] {
    gpr_set_log_function([](gpr_log_func_args*) {});
    return true;
  }();
  (void)silenced;
}
#else
void SilenceGrpc() {}
#endif

}  // namespace

Result<std::unique_ptr<Transport>> MakeGrpcTransport(std::string address, std::string token_file,
                                                     std::string project, TlsOptions tls) {
  tls::Files files{.certificate = std::move(tls.certificate),
                   .key = std::move(tls.key),
                   .authorities = std::move(tls.authorities)};
  if (const auto usable = tls::Load(files, kTlsNames); !usable.ok()) return usable.status();
  SilenceGrpc();
  return std::unique_ptr<Transport>(std::make_unique<GrpcTransport>(
      std::move(address), std::move(token_file), std::move(project), std::move(files)));
}

}  // namespace statcollect
