#include "client/rpc/collector.h"

#include <utility>

#include <grpcpp/create_channel.h>

#include "client/rpc/collector_impl.h"
#include "client/rpc/credentials.h"
#include "common/names.h"
#include "common/parse.h"
#include "common/unix_address.h"

namespace statcollect::client {
namespace {

constexpr int kAnswerBytesMax = 1 << 30;  // a long series or a full diff is large
// gRPC gives an attempt to connect up after this time: a distant or busy collector takes a second.
// Connect gives up earlier.
constexpr int kAttemptMillis = 20'000;

}  // namespace

std::shared_ptr<grpc::Channel> MakeCollectorChannel(const std::string& address,
                                                    const tls::Material& tls) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kAnswerBytesMax);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY,
                   0);  // a collector is near; proxies of the environment are for the web
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);  // so is one that was started again
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kAttemptMillis);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  return grpc::CreateCustomChannel(TargetOf(address), MakeCredentials(address, tls), arguments);
}

Status ValidateAddress(const std::string& address, const std::string& flag) {
  if (IsUnixAddress(address)) return SocketPath(flag, address).status();
  const auto parsed = ParseHostPort(address);
  if (parsed && parsed->port > 0 && parsed->host.find_first_of(" /@\t\r\n") == std::string::npos)
    return Status::Ok();
  return {Code::kInvalidArgument,
          flag +
              ": expected HOST:PORT such as 127.0.0.1:7433 or [::1]:7433, or unix:/PATH, found '" +
              Printable(address) + "'"};
}

Result<tls::Material> LoadTls(const tls::Files& files, const tls::Names& names) {
  if (files.authorities.empty() && !(files.certificate.empty() && files.key.empty()))
    return Status(Code::kInvalidArgument, "TLS: " + names.certificate + " is given without " +
                                              names.authorities +
                                              "; expected the collector's ca.pem, too; add it");
  return tls::Load(files, names);
}

Collector::Collector(CollectorOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
Collector::~Collector() = default;

Status Collector::Locate() { return impl_->Locate(); }

Result<v1::ListRunsResponse> Collector::ListRuns() {
  return impl_->Ask(&v1::Query::Stub::ListRuns, v1::ListRunsRequest());
}

Result<v1::GetRunResponse> Collector::GetRun(const v1::GetRunRequest& request) {
  return impl_->Ask(&v1::Query::Stub::GetRun, request);
}

Result<v1::DiffReport> Collector::Diff(const v1::DiffRequest& request,
                                       const std::function<void(const v1::Progress&)>& progress) {
  return impl_->AskWithProgress(&v1::Query::Stub::Diff, request, progress);
}

Result<v1::NoiseProfile> Collector::SaveNoise(
    const v1::SaveNoiseRequest& request, const std::function<void(const v1::Progress&)>& progress) {
  return impl_->AskWithProgress(&v1::Query::Stub::SaveNoise, request, progress);
}

Result<v1::NoiseProfile> Collector::GetNoise(const v1::GetNoiseRequest& request) {
  return impl_->Ask(&v1::Query::Stub::GetNoise, request);
}

Result<v1::DeleteNoiseResponse> Collector::DeleteNoise(const v1::DeleteNoiseRequest& request) {
  return impl_->Ask(&v1::Query::Stub::DeleteNoise, request);
}

Result<v1::GetSeriesResponse> Collector::GetSeries(const v1::GetSeriesRequest& request) {
  return impl_->Ask(&v1::Query::Stub::GetSeries, request);
}

Result<v1::ListScalarsResponse> Collector::ListScalars(const v1::ListScalarsRequest& request) {
  return impl_->Ask(&v1::Query::Stub::ListScalars, request);
}

Result<v1::ListMemoryResponse> Collector::ListMemory(const v1::ListMemoryRequest& request) {
  return impl_->Ask(&v1::Query::Stub::ListMemory, request);
}

Result<v1::ListDensityResponse> Collector::ListDensity(const v1::ListDensityRequest& request) {
  return impl_->Ask(&v1::Query::Stub::ListDensity, request);
}

Result<v1::ListExponentsResponse> Collector::ListExponents(
    const v1::ListExponentsRequest& request) {
  return impl_->Ask(&v1::Query::Stub::ListExponents, request);
}

Result<v1::ListEventsResponse> Collector::ListEvents(const v1::ListEventsRequest& request) {
  return impl_->Ask(&v1::Query::Stub::ListEvents, request);
}

Result<v1::RanksReport> Collector::CheckRanks(
    const v1::CheckRanksRequest& request,
    const std::function<void(const v1::Progress&)>& progress) {
  return impl_->AskWithProgress(&v1::Query::Stub::CheckRanks, request, progress);
}

Result<v1::ProposeMapResponse> Collector::ProposeMap(const v1::ProposeMapRequest& request) {
  return impl_->Ask(&v1::Query::Stub::ProposeMap, request);
}

Result<v1::GetZoomResponse> Collector::GetZoom(const v1::GetZoomRequest& request) {
  return impl_->Ask(&v1::Query::Stub::GetZoom, request);
}

Result<v1::GetWeightsResponse> Collector::GetWeights(const v1::GetWeightsRequest& request) {
  return impl_->Ask(&v1::Query::Stub::GetWeights, request);
}
Result<v1::GetTokensResponse> Collector::GetTokens(const v1::GetTokensRequest& request) {
  return impl_->Ask(&v1::Query::Stub::GetTokens, request);
}

Result<v1::GetTopResponse> Collector::GetTop(const v1::GetTopRequest& request) {
  return impl_->Ask(&v1::Query::Stub::GetTop, request);
}

Result<v1::ConfigReport> Collector::CompareConfig(const v1::CompareConfigRequest& request) {
  return impl_->Ask(&v1::Query::Stub::CompareConfig, request);
}

Status Collector::FollowEvents(const v1::ListEventsRequest& request,
                               const std::function<void(const v1::FollowEventsResponse&)>& take) {
  return impl_->Run([&](grpc::ClientContext& context) {
    const auto stream = impl_->query().FollowEvents(&context, request);
    for (v1::FollowEventsResponse message; stream->Read(&message);) take(message);
    return stream->Finish();
  });
}

Status Collector::ReadRecords(const v1::ReadRecordsRequest& request,
                              const std::function<Status(const v1::ReadRecordsResponse&)>& take) {
  Status failure;
  const Status answered = impl_->Run([&](grpc::ClientContext& context) {
    const auto stream = impl_->query().ReadRecords(&context, request);
    v1::ReadRecordsResponse message;
    while (failure.ok() && stream->Read(&message)) {
      failure = take(message);
      if (!failure.ok()) context.TryCancel();
    }
    return stream->Finish();
  });
  return failure.ok() || answered.code() == Code::kCancelled ? answered : failure;
}

Result<v1::ListCapturesResponse> Collector::ListCaptures(const v1::ListCapturesRequest& request) {
  return impl_->Ask(&v1::Query::Stub::ListCaptures, request);
}

Status Collector::ReadCapture(const v1::ReadCaptureRequest& request,
                              const std::function<void(v1::ReadCaptureResponse&)>& take) {
  return impl_->Run([&](grpc::ClientContext& context) {
    const auto stream = impl_->query().ReadCapture(&context, request);
    for (v1::ReadCaptureResponse message; stream->Read(&message);) take(message);
    return stream->Finish();
  });
}

Result<v1::RequestCaptureResponse> Collector::RequestCapture(
    const v1::RequestCaptureRequest& request) {
  return impl_->Ask(&v1::Admin::Stub::RequestCapture, request);
}

Result<v1::GetStatusResponse> Collector::GetStatus() {
  return impl_->Ask(&v1::Admin::Stub::GetStatus, v1::GetStatusRequest());
}

Result<v1::CreateLinkResponse> Collector::CreateLink() {
  return impl_->Ask(&v1::Login::Stub::CreateLink, v1::CreateLinkRequest());
}

Result<v1::DeleteRunResponse> Collector::DeleteRun(const v1::DeleteRunRequest& request) {
  return impl_->Ask(&v1::Admin::Stub::DeleteRun, request);
}

Result<v1::KeepRunResponse> Collector::KeepRun(const v1::KeepRunRequest& request) {
  return impl_->Ask(&v1::Admin::Stub::KeepRun, request);
}

Result<v1::RecordStepsResponse> Collector::RecordSteps(const v1::RecordStepsRequest& request) {
  return impl_->Ask(&v1::Admin::Stub::RecordSteps, request);
}

Result<v1::CheckpointResponse> Collector::Checkpoint(const v1::CheckpointRequest& request) {
  return impl_->Ask(&v1::Admin::Stub::Checkpoint, request);
}

Result<v1::ListAuditResponse> Collector::ListAudit(const v1::ListAuditRequest& request) {
  return impl_->Ask(&v1::Admin::Stub::ListAudit, request);
}

Collector::CancelScope::CancelScope(Collector& collector, std::function<void()> cancel)
    : collector_(collector) {
  collector_.impl_->SetCancel(std::move(cancel));
}
Collector::CancelScope::~CancelScope() { collector_.impl_->SetCancel(nullptr); }

bool Collector::WaitUnlessCancelled(std::chrono::milliseconds time) {
  return impl_->WaitUnlessCancelled(time);
}
bool Collector::Cancel() { return impl_->Cancel(); }
Collector::Task::Task(Collector& collector) : collector_(collector) {
  collector_.impl_->CountTask(1);
}
Collector::Task::~Task() { collector_.impl_->CountTask(-1); }
const std::string& Collector::address() const { return impl_->address(); }
bool Collector::passing() const { return impl_->passing(); }
const std::string& Collector::token_file() const { return impl_->token_file(); }
const std::string& Collector::project() const { return impl_->project(); }
const tls::Material& Collector::tls() const { return impl_->tls(); }
bool Collector::uses_tls() const { return !tls().authorities.empty() && !IsUnixAddress(address()); }

}  // namespace statcollect::client
