// What the methods of Collector share: connection, deadline, cancellation, errors. For the files of
// client/rpc.
#ifndef STATCOLLECT_CLIENT_RPC_COLLECTOR_IMPL_H_
#define STATCOLLECT_CLIENT_RPC_COLLECTOR_IMPL_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include "client/rpc/collector.h"
#include "client/rpc/diagnose.h"
#include "client/rpc/token.h"
#include "common/names.h"
#include "common/thread_annotations.h"
#include "statcollect/v1/admin.grpc.pb.h"
#include "statcollect/v1/ingest.grpc.pb.h"
#include "statcollect/v1/login.grpc.pb.h"
#include "statcollect/v1/query.grpc.pb.h"
#include "statcollect/v1/transfer.grpc.pb.h"

namespace statcollect::client {

std::shared_ptr<grpc::Channel> MakeCollectorChannel(const std::string& address,
                                                    const tls::Material& tls);

class Collector::Impl {
 public:
  explicit Impl(CollectorOptions options) : options_(std::move(options)) {}

  // Precondition of the stubs: within Run.
  template <typename Stub>
  Stub& stub() const {
    return *std::get<std::unique_ptr<Stub>>(stubs_);
  }
  v1::Query::Stub& query() { return stub<v1::Query::Stub>(); }
  v1::Ingest::Stub& ingest() { return stub<v1::Ingest::Stub>(); }
  v1::Transfer::Stub& transfer() { return stub<v1::Transfer::Stub>(); }
  const std::string& address() const { return options_.address; }
  bool passing() const { return passing_; }
  const std::string& token_file() const { return options_.token_file; }
  const std::string& project() const { return options_.project; }
  const tls::Material& tls() const { return options_.tls; }

  // Finds the collector, unless that is done.
  Status Locate() {
    SetBusy(true);
    Status status = LocateOnce();
    SetBusy(false);
    return status;
  }

  // Connects, sets deadline and cancellation, makes the call.
  template <typename Call>
  Status Run(Call&& call) {
    SetBusy(true);
    grpc::ClientContext context;
    Status status = AddCaller(options_.token_file, options_.project, &context);
    if (status.ok()) status = LocateOnce();
    const auto begin = system_clock::now();
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

  // A call with one answer.
  template <typename Stub, typename Request, typename Response>
  Result<Response> Ask(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                    Response*),
                       const Request& request) {
    Response response;
    STATCOLLECT_RETURN_IF_ERROR(Run([&](grpc::ClientContext& context) {
      return (stub<Stub>().*method)(&context, request, &response);
    }));
    return response;
  }

  // A call whose stream of progress ends with a report.
  template <typename Stub, typename Request, typename Message>
  auto AskWithProgress(std::unique_ptr<grpc::ClientReader<Message>> (Stub::*method)(
                           grpc::ClientContext*, const Request&),
                       const Request& request,
                       const std::function<void(const v1::Progress&)>& progress)
      -> Result<std::remove_cvref_t<decltype(std::declval<Message>().report())>> {
    Result<std::remove_cvref_t<decltype(std::declval<Message>().report())>> report =
        Status(Code::kInternal, "the collector at " + address() +
                                    " ended the answer without a report; are statctl and "
                                    "statcollectord of the same version?");
    STATCOLLECT_RETURN_IF_ERROR(Run([&](grpc::ClientContext& context) {
      const auto stream = (stub<Stub>().*method)(&context, request);
      for (Message message; stream->Read(&message);) {
        if (message.has_progress() && progress) progress(message.progress());
        if (message.has_report()) report = std::move(*message.mutable_report());
      }
      return stream->Finish();
    }));
    return report;
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

  bool WaitUnlessCancelled(std::chrono::milliseconds time) {
    const auto deadline = system_clock::now() + time;
    while (!cancelled() && system_clock::now() < deadline)
      std::this_thread::sleep_for(kConnectSlice);
    return !cancelled();
  }

  void CountTask(int by) {
    MutexLock lock(mutex_);
    tasks_ += by;
  }

 private:
  using milliseconds = std::chrono::milliseconds;
  using system_clock = std::chrono::system_clock;
  static constexpr std::size_t kMessageBytesMax = 4000;
  static constexpr milliseconds kConnectSlice{
      50};  // how soon a cancelled connection attempt is noticed
  static constexpr milliseconds kVersionTime{2000};
  // gRPC's own words; a collector's deadline has others.
  static constexpr std::string_view kLocalDeadline = "Deadline Exceeded";

  static std::string Seconds(milliseconds time) {
    return fmt::format("{:g} s", static_cast<double>(time.count()) / 1000);
  }
  void SetBusy(bool busy) {
    MutexLock lock(mutex_);
    busy_ = busy;
  }
  Status LocateOnce() {
    if (channel_ != nullptr) return Status::Ok();
    if (options_.locate) {
      auto located = options_.locate([this] { return cancelled(); });
      if (!located.ok()) return located.status();
      options_.address = std::move(located->address);
      passing_ = located->passing;
    }
    channel_ = MakeCollectorChannel(options_.address, options_.tls);
    stubs_ = {v1::Query::NewStub(channel_), v1::Admin::NewStub(channel_),
              v1::Login::NewStub(channel_), v1::Ingest::NewStub(channel_),
              v1::Transfer::NewStub(channel_)};
    return Status::Ok();
  }
  void SetContext(grpc::ClientContext* context) {
    MutexLock lock(mutex_);
    context_ = context;
    if (cancelled_ && context != nullptr) context->TryCancel();
  }
  bool cancelled() {
    MutexLock lock(mutex_);
    return cancelled_;
  }

  // Waits for a connection. Evidence that no collector is there ends the wait immediately; silence,
  // which may be a slow network, does not.
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
      if (now >= deadline)
        return DiagnoseConnection(options_.address, options_.tls, patience).status;
      channel_->WaitForStateChange(state, std::min(deadline, now + kConnectSlice));
      state = channel_->GetState(true);
    }
    return Status::Ok();
  }

  // The collector's; empty if it does not say.
  std::string Version() const {
    grpc::ClientContext context;
    v1::GetStatusResponse response;
    context.set_deadline(system_clock::now() + kVersionTime);
    const bool said = AddCaller(options_.token_file, options_.project, &context).ok() &&
                      stub<v1::Admin::Stub>().GetStatus(&context, {}, &response).ok();
    return said ? Printable(response.version()) : std::string();
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
              fmt::format("lost the collector at {} ({}); is it being stopped? try again", address,
                          message)};
    }
    if (code == Code::kUnimplemented) {
      const std::string version = Version();
      if (!version.empty() && version != STATCOLLECT_VERSION)
        return {code,
                fmt::format(
                    "the collector at {} is of version {}, which does not support this query{}; "
                    "expected " STATCOLLECT_VERSION
                    ", the version of this statctl; use both of one release",
                    address, version, message.empty() ? "" : " (" + message + ")")};
      if (message.empty())  // gRPC's server has no words for a method that it does not know
        return {
            code,
            fmt::format("{} answers, but does not support this query; expected the gRPC address of "
                        "a statcollectord of this statctl's version",
                        address)};
    }
    return {code, fmt::format("{} (collector {})", message, address)};
  }

  CollectorOptions options_;
  bool passing_ = false;
  std::shared_ptr<grpc::Channel> channel_;  // null: not located yet
  std::tuple<std::unique_ptr<v1::Query::Stub>, std::unique_ptr<v1::Admin::Stub>,
             std::unique_ptr<v1::Login::Stub>, std::unique_ptr<v1::Ingest::Stub>,
             std::unique_ptr<v1::Transfer::Stub>>
      stubs_;
  Mutex mutex_;  // guards everything below
  grpc::ClientContext* context_ STATCOLLECT_GUARDED_BY(mutex_) = nullptr;
  std::function<void()> on_cancel_ STATCOLLECT_GUARDED_BY(mutex_);
  bool busy_ STATCOLLECT_GUARDED_BY(mutex_) = false;
  int tasks_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  bool cancelled_ STATCOLLECT_GUARDED_BY(mutex_) = false;
};

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_RPC_COLLECTOR_IMPL_H_
