#include "bench/ingest/asker.h"

#include <chrono>

#include <grpcpp/grpcpp.h>

namespace statcollect::bench {
namespace {

constexpr std::chrono::minutes kDeadline{10};

Status FromGrpc(const std::string& attempted, const grpc::Status& status) {
  return Status(static_cast<Code>(status.error_code()), attempted + ": " + status.error_message());
}

void SetDeadline(grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() + kDeadline);
}

}  // namespace

Asker::Asker(const std::string& collector) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  stub_ = v1::Query::NewStub(
      grpc::CreateCustomChannel(collector, grpc::InsecureChannelCredentials(), arguments));
}

Result<Answer> Asker::Series(const std::string& run, const TensorDef& activation) const {
  v1::GetSeriesRequest request;
  request.set_run(run);
  request.set_activation(activation.key.name);
  request.set_kind(static_cast<v1::Kind>(activation.key.kind));
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::GetSeriesResponse response;
  const grpc::Status status = stub_->GetSeries(&context, request, &response);
  if (!status.ok()) return FromGrpc("ask for the series of '" + activation.key.name + "'", status);
  return Answer{.records = static_cast<std::uint64_t>(response.records_size())};
}

Result<Answer> Asker::Diff(const std::string& a, const std::string& b, const std::string& steps,
                           Expect expected, bool noise) const {
  const std::string what = "diff " + a + " and " + b;
  v1::DiffRequest request;
  request.set_run_a(a);
  request.set_run_b(b);
  request.set_steps(steps);
  request.set_no_noise(!noise);
  grpc::ClientContext context;
  SetDeadline(&context);
  const auto reader = stub_->Diff(&context, request);
  v1::DiffResponse response;
  v1::DiffReport report;
  while (reader->Read(&response)) {
    if (response.has_report()) report.Swap(response.mutable_report());
  }
  if (const grpc::Status status = reader->Finish(); !status.ok()) return FromGrpc(what, status);
  const bool identical = report.verdict() == v1::VERDICT_IDENTICAL;
  const bool as_expected = expected == Expect::kIdentical ? identical
                           : expected == Expect::kDiverged
                               ? report.verdict() == v1::VERDICT_DIVERGED
                               : identical || report.verdict() == v1::VERDICT_WITHIN_TOLERANCE;
  if (!as_expected) {
    const char* const wanted = expected == Expect::kIdentical  ? "identical"
                               : expected == Expect::kDiverged ? "diverged"
                                                               : "identical or within tolerance";
    return Status(Code::kInternal, what + ": the verdict is " + v1::Verdict_Name(report.verdict()) +
                                       " (" + report.message() + "); expected " + wanted);
  }
  return Answer{.records = report.compared().records()};
}

Result<Answer> Asker::Stored(const std::string& run) const {
  v1::GetRunRequest request;
  request.set_run(run);
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::GetRunResponse response;
  const grpc::Status status = stub_->GetRun(&context, request, &response);
  if (!status.ok()) return FromGrpc("ask for run '" + run + "'", status);
  return Answer{.records = response.summary().records()};
}

}  // namespace statcollect::bench
