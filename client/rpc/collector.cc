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
  return impl_->Ask<v1::ListRunsResponse>([&](auto& context, auto& response) {
    return impl_->query().ListRuns(&context, {}, &response);
  });
}

Result<v1::GetRunResponse> Collector::GetRun(const v1::GetRunRequest& request) {
  return impl_->Ask<v1::GetRunResponse>([&](auto& context, auto& response) {
    return impl_->query().GetRun(&context, request, &response);
  });
}

namespace {

// Reads a stream of progress that ends with an answer, which `take` recognises and takes.
template <typename Response, typename Stream, typename Take>
grpc::Status ReadToTheEnd(Stream& stream, const std::function<void(const v1::Progress&)>& progress,
                          const Take& take) {
  Response response;
  while (stream.Read(&response)) {
    if (response.has_progress() && progress) progress(response.progress());
    take(response);
  }
  return stream.Finish();
}

Status NoReport(const std::string& address) {
  return {Code::kInternal,
          "the collector at " + address +
              " ended the answer without a report; are statctl and statcollectord of the same "
              "version?"};
}

}  // namespace

Result<v1::DiffReport> Collector::Diff(const v1::DiffRequest& request,
                                       const std::function<void(const v1::Progress&)>& progress) {
  bool answered = false;
  auto report = impl_->Ask<v1::DiffReport>([&](auto& context, v1::DiffReport& out) {
    const auto stream = impl_->query().Diff(&context, request);
    return ReadToTheEnd<v1::DiffResponse>(*stream, progress, [&](v1::DiffResponse& response) {
      if (!response.has_report()) return;
      answered = true;
      out = std::move(*response.mutable_report());
    });
  });
  if (report.ok() && !answered) return NoReport(address());
  return report;
}

Result<v1::NoiseProfile> Collector::SaveNoise(
    const v1::SaveNoiseRequest& request, const std::function<void(const v1::Progress&)>& progress) {
  bool answered = false;
  auto profile = impl_->Ask<v1::NoiseProfile>([&](auto& context, v1::NoiseProfile& out) {
    const auto stream = impl_->query().SaveNoise(&context, request);
    return ReadToTheEnd<v1::SaveNoiseResponse>(*stream, progress,
                                               [&](v1::SaveNoiseResponse& response) {
                                                 if (!response.has_report()) return;
                                                 answered = true;
                                                 out = std::move(*response.mutable_report());
                                               });
  });
  if (profile.ok() && !answered) return NoReport(address());
  return profile;
}

Result<v1::NoiseProfile> Collector::GetNoise(const v1::GetNoiseRequest& request) {
  return impl_->Ask<v1::NoiseProfile>([&](auto& context, auto& response) {
    return impl_->query().GetNoise(&context, request, &response);
  });
}

Result<v1::DeleteNoiseResponse> Collector::DeleteNoise(const v1::DeleteNoiseRequest& request) {
  return impl_->Ask<v1::DeleteNoiseResponse>([&](auto& context, auto& response) {
    return impl_->query().DeleteNoise(&context, request, &response);
  });
}

Result<v1::GetSeriesResponse> Collector::GetSeries(const v1::GetSeriesRequest& request) {
  return impl_->Ask<v1::GetSeriesResponse>([&](auto& context, auto& response) {
    return impl_->query().GetSeries(&context, request, &response);
  });
}

Result<v1::ListScalarsResponse> Collector::ListScalars(const v1::ListScalarsRequest& request) {
  return impl_->Ask<v1::ListScalarsResponse>([&](auto& context, auto& response) {
    return impl_->query().ListScalars(&context, request, &response);
  });
}

Result<v1::ListMemoryResponse> Collector::ListMemory(const v1::ListMemoryRequest& request) {
  return impl_->Ask<v1::ListMemoryResponse>([&](auto& context, auto& response) {
    return impl_->query().ListMemory(&context, request, &response);
  });
}

Result<v1::ListDensityResponse> Collector::ListDensity(const v1::ListDensityRequest& request) {
  return impl_->Ask<v1::ListDensityResponse>([&](auto& context, auto& response) {
    return impl_->query().ListDensity(&context, request, &response);
  });
}

Result<v1::ListExponentsResponse> Collector::ListExponents(
    const v1::ListExponentsRequest& request) {
  return impl_->Ask<v1::ListExponentsResponse>([&](auto& context, auto& response) {
    return impl_->query().ListExponents(&context, request, &response);
  });
}

Result<v1::ListEventsResponse> Collector::ListEvents(const v1::ListEventsRequest& request) {
  return impl_->Ask<v1::ListEventsResponse>([&](auto& context, auto& response) {
    return impl_->query().ListEvents(&context, request, &response);
  });
}

Result<v1::RanksReport> Collector::CheckRanks(
    const v1::CheckRanksRequest& request,
    const std::function<void(const v1::Progress&)>& progress) {
  bool answered = false;
  auto report = impl_->Ask<v1::RanksReport>([&](auto& context, v1::RanksReport& out) {
    const auto stream = impl_->query().CheckRanks(&context, request);
    return ReadToTheEnd<v1::CheckRanksResponse>(*stream, progress,
                                                [&](v1::CheckRanksResponse& response) {
                                                  if (!response.has_report()) return;
                                                  answered = true;
                                                  out = std::move(*response.mutable_report());
                                                });
  });
  if (report.ok() && !answered) return NoReport(address());
  return report;
}

Result<v1::ProposeMapResponse> Collector::ProposeMap(const v1::ProposeMapRequest& request) {
  return impl_->Ask<v1::ProposeMapResponse>([&](auto& context, auto& response) {
    return impl_->query().ProposeMap(&context, request, &response);
  });
}

Result<v1::GetZoomResponse> Collector::GetZoom(const v1::GetZoomRequest& request) {
  return impl_->Ask<v1::GetZoomResponse>([&](auto& context, auto& response) {
    return impl_->query().GetZoom(&context, request, &response);
  });
}

Result<v1::GetWeightsResponse> Collector::GetWeights(const v1::GetWeightsRequest& request) {
  return impl_->Ask<v1::GetWeightsResponse>([&](auto& context, auto& response) {
    return impl_->query().GetWeights(&context, request, &response);
  });
}

Result<v1::GetTopResponse> Collector::GetTop(const v1::GetTopRequest& request) {
  return impl_->Ask<v1::GetTopResponse>([&](auto& context, auto& response) {
    return impl_->query().GetTop(&context, request, &response);
  });
}

Result<v1::ConfigReport> Collector::CompareConfig(const v1::CompareConfigRequest& request) {
  return impl_->Ask<v1::ConfigReport>([&](auto& context, auto& response) {
    return impl_->query().CompareConfig(&context, request, &response);
  });
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
  return impl_->Ask<v1::ListCapturesResponse>([&](auto& context, auto& response) {
    return impl_->query().ListCaptures(&context, request, &response);
  });
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
  return impl_->Ask<v1::RequestCaptureResponse>([&](auto& context, auto& response) {
    return impl_->admin().RequestCapture(&context, request, &response);
  });
}

Result<v1::GetStatusResponse> Collector::GetStatus() {
  return impl_->Ask<v1::GetStatusResponse>([&](auto& context, auto& response) {
    return impl_->admin().GetStatus(&context, {}, &response);
  });
}

Result<v1::CreateLinkResponse> Collector::CreateLink() {
  return impl_->Ask<v1::CreateLinkResponse>([&](auto& context, auto& response) {
    return impl_->login().CreateLink(&context, {}, &response);
  });
}

Result<v1::DeleteRunResponse> Collector::DeleteRun(const v1::DeleteRunRequest& request) {
  return impl_->Ask<v1::DeleteRunResponse>([&](auto& context, auto& response) {
    return impl_->admin().DeleteRun(&context, request, &response);
  });
}

Result<v1::KeepRunResponse> Collector::KeepRun(const v1::KeepRunRequest& request) {
  return impl_->Ask<v1::KeepRunResponse>([&](auto& context, auto& response) {
    return impl_->admin().KeepRun(&context, request, &response);
  });
}

Result<v1::RecordStepsResponse> Collector::RecordSteps(const v1::RecordStepsRequest& request) {
  return impl_->Ask<v1::RecordStepsResponse>([&](auto& context, auto& response) {
    return impl_->admin().RecordSteps(&context, request, &response);
  });
}

Result<v1::CheckpointResponse> Collector::Checkpoint(const v1::CheckpointRequest& request) {
  return impl_->Ask<v1::CheckpointResponse>([&](auto& context, auto& response) {
    return impl_->admin().Checkpoint(&context, request, &response);
  });
}

Result<v1::ListAuditResponse> Collector::ListAudit(const v1::ListAuditRequest& request) {
  return impl_->Ask<v1::ListAuditResponse>([&](auto& context, auto& response) {
    return impl_->admin().ListAudit(&context, request, &response);
  });
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
