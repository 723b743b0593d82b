#include "client/rpc/collector.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "client/rpc/credentials.h"
#include "client/rpc/diagnose.h"
#include "client/rpc/token.h"
#include "common/names.h"
#include "common/parse.h"
#include "common/thread_annotations.h"
#include "common/unix_address.h"
#include "statcollect/v1/admin.grpc.pb.h"
#include "statcollect/v1/login.grpc.pb.h"
#include "statcollect/v1/query.grpc.pb.h"

namespace statcollect::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::system_clock;

constexpr int kAnswerBytesMax = 1 << 30;  // a long series or a full diff is large
constexpr std::size_t kMessageBytesMax = 4000;
// gRPC gives an attempt to connect up after this time: a distant or busy collector takes a second. Connect gives
// up earlier.
constexpr int kAttemptMillis = 20'000;
constexpr milliseconds kConnectSlice{50};  // how soon a cancelled connection attempt is noticed
constexpr std::string_view kLocalDeadline =
    "Deadline Exceeded";  // gRPC's own words; a collector's deadline has others

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const tls::Material& tls) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kAnswerBytesMax);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY,
                   0);  // a collector is near; proxies of the environment are for the web
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);  // so is one that was started again
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kAttemptMillis);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  return grpc::CreateCustomChannel(TargetOf(address), MakeCredentials(address, tls), arguments);
}

std::string Seconds(milliseconds time) {
  return fmt::format("{:g} s", static_cast<double>(time.count()) / 1000);
}

}  // namespace

Status ValidateAddress(const std::string& address) {
  if (IsUnixAddress(address)) return SocketPath("--collector", address).status();
  const auto parsed = ParseHostPort(address);
  if (parsed && parsed->port > 0 && parsed->host.find_first_of(" /@\t\r\n") == std::string::npos)
    return Status::Ok();
  return {Code::kInvalidArgument,
          "--collector: expected HOST:PORT such as 127.0.0.1:7433 or [::1]:7433, or unix:/PATH, found '" +
              Printable(address) + "'"};
}

Result<tls::Material> LoadTls(const tls::Files& files) {
  if (files.authorities.empty() && !(files.certificate.empty() && files.key.empty()))
    return Status(Code::kInvalidArgument, "TLS: " + kTlsFlags.certificate + " is given without " +
                                              kTlsFlags.authorities +
                                              "; expected the collector's ca.pem, too; add it");
  return tls::Load(files, kTlsFlags);
}

class Collector::Impl {
 public:
  explicit Impl(CollectorOptions options)
      : options_(std::move(options)),
        channel_(MakeChannel(options_.address, options_.tls)),
        query_(v1::Query::NewStub(channel_)),
        admin_(v1::Admin::NewStub(channel_)),
        login_(v1::Login::NewStub(channel_)) {}

  v1::Query::Stub& query() { return *query_; }
  v1::Admin::Stub& admin() { return *admin_; }
  v1::Login::Stub& login() { return *login_; }
  const std::string& address() const { return options_.address; }
  const std::string& token_file() const { return options_.token_file; }
  const std::string& project() const { return options_.project; }
  const tls::Material& tls() const { return options_.tls; }

  // Connects, sets deadline and cancellation, makes the call.
  template <typename Call>
  Status Run(Call&& call) {
    {
      MutexLock lock(mutex_);
      busy_ = true;
    }
    const auto begin = system_clock::now();
    grpc::ClientContext context;
    Status status = AddCaller(options_.token_file, options_.project, &context);
    if (status.ok()) status = Connect(begin);
    if (status.ok()) {
      if (options_.timeout.count() > 0) context.set_deadline(begin + options_.timeout);
      SetContext(&context);
      status = Explain(call(context));
      SetContext(nullptr);
    }
    MutexLock lock(mutex_);
    busy_ = false;
    return cancelled_ ? Status(Code::kCancelled, "interrupted") : status;
  }

  template <typename Response, typename Call>
  Result<Response> Ask(Call&& call) {
    Response response;
    const Status status = Run([&](grpc::ClientContext& context) { return call(context, response); });
    if (!status.ok()) return status;
    return response;
  }

  void SetCancel(std::function<void()> cancel) {
    MutexLock lock(mutex_);
    on_cancel_ = std::move(cancel);
  }

  bool Cancel() {
    MutexLock lock(mutex_);
    if (on_cancel_) {
      std::exchange(on_cancel_, nullptr)();
      return true;
    }
    if ((!busy_ && tasks_ == 0) || cancelled_) return false;
    cancelled_ = true;
    if (context_ != nullptr) context_->TryCancel();
    return true;
  }

  bool WaitUnlessCancelled(milliseconds time) {
    const auto deadline = system_clock::now() + time;
    while (!cancelled() && system_clock::now() < deadline) std::this_thread::sleep_for(kConnectSlice);
    return !cancelled();
  }

  void CountTask(int by) {
    MutexLock lock(mutex_);
    tasks_ += by;
  }

 private:
  void SetContext(grpc::ClientContext* context) {
    MutexLock lock(mutex_);
    context_ = context;
    if (cancelled_ && context != nullptr) context->TryCancel();
  }
  bool cancelled() {
    MutexLock lock(mutex_);
    return cancelled_;
  }

  // Waits for a connection. Evidence that no collector is there ends the wait immediately; silence, which may
  // be a slow network, does not.
  Status Connect(system_clock::time_point begin) {
    const milliseconds patience = options_.timeout.count() > 0
                                      ? std::min(options_.timeout, options_.connect_timeout)
                                      : options_.connect_timeout;
    const auto deadline = begin + patience;
    grpc_connectivity_state state = channel_->GetState(true);
    while (state != GRPC_CHANNEL_READY) {
      if (cancelled()) return {Code::kCancelled, "interrupted"};
      if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_SHUTDOWN) {
        const Diagnosis found = DiagnoseConnection(options_.address, options_.tls, patience);
        if (!found.silent || system_clock::now() >= deadline) return found.status;
      }
      const auto now = system_clock::now();
      if (now >= deadline) return DiagnoseConnection(options_.address, options_.tls, patience).status;
      channel_->WaitForStateChange(state, std::min(deadline, now + kConnectSlice));
      state = channel_->GetState(true);
    }
    return Status::Ok();
  }

  Status Explain(const grpc::Status& status) const {
    if (status.ok()) return Status::Ok();
    const std::string message = Printable(status.error_message(), kMessageBytesMax);
    const auto code = static_cast<Code>(status.error_code());
    const std::string address = Printable(options_.address);
    if (code == Code::kDeadlineExceeded && message == kLocalDeadline) {
      return {code, fmt::format("no answer from {} within {}; allow more with --timeout", address,
                                Seconds(options_.timeout))};
    }
    // A call that Cancel has not ended was ended by a collector that stops.
    if (code == Code::kUnavailable || code == Code::kCancelled) {
      return {Code::kUnavailable,
              fmt::format("lost the collector at {} ({}); is it being stopped? try again", address, message)};
    }
    if (code == Code::kUnimplemented) {
      return {code, fmt::format("{} answers, but does not support this query; expected the gRPC address of a "
                                "statcollectord of this statctl's version",
                                address)};
    }
    return {code, fmt::format("{} (collector {})", message, address)};
  }

  const CollectorOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Query::Stub> query_;
  const std::unique_ptr<v1::Admin::Stub> admin_;
  const std::unique_ptr<v1::Login::Stub> login_;
  Mutex mutex_;  // guards everything below
  grpc::ClientContext* context_ STATCOLLECT_GUARDED_BY(mutex_) = nullptr;
  std::function<void()> on_cancel_ STATCOLLECT_GUARDED_BY(mutex_);
  bool busy_ STATCOLLECT_GUARDED_BY(mutex_) = false;
  int tasks_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  bool cancelled_ STATCOLLECT_GUARDED_BY(mutex_) = false;
};

Collector::Collector(CollectorOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Collector::~Collector() = default;

Result<v1::ListRunsResponse> Collector::ListRuns() {
  return impl_->Ask<v1::ListRunsResponse>(
      [&](auto& context, auto& response) { return impl_->query().ListRuns(&context, {}, &response); });
}

Result<v1::GetRunResponse> Collector::GetRun(const v1::GetRunRequest& request) {
  return impl_->Ask<v1::GetRunResponse>(
      [&](auto& context, auto& response) { return impl_->query().GetRun(&context, request, &response); });
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

Result<v1::NoiseProfile> Collector::SaveNoise(const v1::SaveNoiseRequest& request,
                                              const std::function<void(const v1::Progress&)>& progress) {
  bool answered = false;
  auto profile = impl_->Ask<v1::NoiseProfile>([&](auto& context, v1::NoiseProfile& out) {
    const auto stream = impl_->query().SaveNoise(&context, request);
    return ReadToTheEnd<v1::SaveNoiseResponse>(*stream, progress, [&](v1::SaveNoiseResponse& response) {
      if (!response.has_report()) return;
      answered = true;
      out = std::move(*response.mutable_report());
    });
  });
  if (profile.ok() && !answered) return NoReport(address());
  return profile;
}

Result<v1::NoiseProfile> Collector::GetNoise(const v1::GetNoiseRequest& request) {
  return impl_->Ask<v1::NoiseProfile>(
      [&](auto& context, auto& response) { return impl_->query().GetNoise(&context, request, &response); });
}

Result<v1::DeleteNoiseResponse> Collector::DeleteNoise(const v1::DeleteNoiseRequest& request) {
  return impl_->Ask<v1::DeleteNoiseResponse>([&](auto& context, auto& response) {
    return impl_->query().DeleteNoise(&context, request, &response);
  });
}

Result<v1::GetSeriesResponse> Collector::GetSeries(const v1::GetSeriesRequest& request) {
  return impl_->Ask<v1::GetSeriesResponse>(
      [&](auto& context, auto& response) { return impl_->query().GetSeries(&context, request, &response); });
}

Result<v1::ListScalarsResponse> Collector::ListScalars(const v1::ListScalarsRequest& request) {
  return impl_->Ask<v1::ListScalarsResponse>([&](auto& context, auto& response) {
    return impl_->query().ListScalars(&context, request, &response);
  });
}

Result<v1::ListMemoryResponse> Collector::ListMemory(const v1::ListMemoryRequest& request) {
  return impl_->Ask<v1::ListMemoryResponse>(
      [&](auto& context, auto& response) { return impl_->query().ListMemory(&context, request, &response); });
}

Result<v1::ListDensityResponse> Collector::ListDensity(const v1::ListDensityRequest& request) {
  return impl_->Ask<v1::ListDensityResponse>([&](auto& context, auto& response) {
    return impl_->query().ListDensity(&context, request, &response);
  });
}

Result<v1::ListExponentsResponse> Collector::ListExponents(const v1::ListExponentsRequest& request) {
  return impl_->Ask<v1::ListExponentsResponse>([&](auto& context, auto& response) {
    return impl_->query().ListExponents(&context, request, &response);
  });
}

Result<v1::ListEventsResponse> Collector::ListEvents(const v1::ListEventsRequest& request) {
  return impl_->Ask<v1::ListEventsResponse>(
      [&](auto& context, auto& response) { return impl_->query().ListEvents(&context, request, &response); });
}

Result<v1::RanksReport> Collector::CheckRanks(const v1::CheckRanksRequest& request,
                                              const std::function<void(const v1::Progress&)>& progress) {
  bool answered = false;
  auto report = impl_->Ask<v1::RanksReport>([&](auto& context, v1::RanksReport& out) {
    const auto stream = impl_->query().CheckRanks(&context, request);
    return ReadToTheEnd<v1::CheckRanksResponse>(*stream, progress, [&](v1::CheckRanksResponse& response) {
      if (!response.has_report()) return;
      answered = true;
      out = std::move(*response.mutable_report());
    });
  });
  if (report.ok() && !answered) return NoReport(address());
  return report;
}

Result<v1::ProposeMapResponse> Collector::ProposeMap(const v1::ProposeMapRequest& request) {
  return impl_->Ask<v1::ProposeMapResponse>(
      [&](auto& context, auto& response) { return impl_->query().ProposeMap(&context, request, &response); });
}

Result<v1::GetTopResponse> Collector::GetTop(const v1::GetTopRequest& request) {
  return impl_->Ask<v1::GetTopResponse>(
      [&](auto& context, auto& response) { return impl_->query().GetTop(&context, request, &response); });
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

Result<v1::RequestCaptureResponse> Collector::RequestCapture(const v1::RequestCaptureRequest& request) {
  return impl_->Ask<v1::RequestCaptureResponse>([&](auto& context, auto& response) {
    return impl_->admin().RequestCapture(&context, request, &response);
  });
}

Result<v1::GetStatusResponse> Collector::GetStatus() {
  return impl_->Ask<v1::GetStatusResponse>(
      [&](auto& context, auto& response) { return impl_->admin().GetStatus(&context, {}, &response); });
}

Result<v1::CreateLinkResponse> Collector::CreateLink() {
  return impl_->Ask<v1::CreateLinkResponse>(
      [&](auto& context, auto& response) { return impl_->login().CreateLink(&context, {}, &response); });
}

Result<v1::DeleteRunResponse> Collector::DeleteRun(const v1::DeleteRunRequest& request) {
  return impl_->Ask<v1::DeleteRunResponse>(
      [&](auto& context, auto& response) { return impl_->admin().DeleteRun(&context, request, &response); });
}

Result<v1::KeepRunResponse> Collector::KeepRun(const v1::KeepRunRequest& request) {
  return impl_->Ask<v1::KeepRunResponse>(
      [&](auto& context, auto& response) { return impl_->admin().KeepRun(&context, request, &response); });
}

Result<v1::RecordStepsResponse> Collector::RecordSteps(const v1::RecordStepsRequest& request) {
  return impl_->Ask<v1::RecordStepsResponse>([&](auto& context, auto& response) {
    return impl_->admin().RecordSteps(&context, request, &response);
  });
}

Result<v1::CheckpointResponse> Collector::Checkpoint(const v1::CheckpointRequest& request) {
  return impl_->Ask<v1::CheckpointResponse>(
      [&](auto& context, auto& response) { return impl_->admin().Checkpoint(&context, request, &response); });
}

Result<v1::ListAuditResponse> Collector::ListAudit(const v1::ListAuditRequest& request) {
  return impl_->Ask<v1::ListAuditResponse>(
      [&](auto& context, auto& response) { return impl_->admin().ListAudit(&context, request, &response); });
}

Collector::CancelScope::CancelScope(Collector& collector, std::function<void()> cancel)
    : collector_(collector) {
  collector_.impl_->SetCancel(std::move(cancel));
}
Collector::CancelScope::~CancelScope() { collector_.impl_->SetCancel(nullptr); }

bool Collector::WaitUnlessCancelled(milliseconds time) { return impl_->WaitUnlessCancelled(time); }
bool Collector::Cancel() { return impl_->Cancel(); }
Collector::Task::Task(Collector& collector) : collector_(collector) { collector_.impl_->CountTask(1); }
Collector::Task::~Task() { collector_.impl_->CountTask(-1); }
const std::string& Collector::address() const { return impl_->address(); }
const std::string& Collector::token_file() const { return impl_->token_file(); }
const std::string& Collector::project() const { return impl_->project(); }
const tls::Material& Collector::tls() const { return impl_->tls(); }
bool Collector::uses_tls() const { return !tls().authorities.empty() && !IsUnixAddress(address()); }

}  // namespace statcollect::client
