// Two collectors, each behind a real gRPC server over a store in memory, and a run that is copied
// from one to the other.
#ifndef STATCOLLECT_TESTS_SERVER_TRANSFER_SIDES_H_
#define STATCOLLECT_TESTS_SERVER_TRANSFER_SIDES_H_

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "proto/convert.h"
#include "server/api/transfer_service.h"
#include "server/ingest/ingest_server.h"
#include "statcollect/v1/ingest.grpc.pb.h"
#include "statcollect/v1/transfer.grpc.pb.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_store.h"
#include "tests/support/random_batch.h"

namespace statcollect::testing {

inline SessionInfo SessionOf(std::uint32_t rank, std::uint8_t session = 1,
                             const std::string& launch = "L") {
  SessionInfo info;
  info.run = "base";
  info.launch = launch;
  info.rank = rank;
  info.world_size = 2;
  info.session = {session, static_cast<std::uint8_t>(rank)};
  info.host = "node7";
  info.config = {{"lr", "0.1"}};
  info.if_exists = IfExists::kAppend;
  return info;
}

// Steps of one rank with every sort of record, captures included.
inline RecordBatch FullBatch(std::uint64_t seed, std::uint64_t first_seq, std::uint64_t step,
                             bool define) {
  RecordBatch batch = RandomBatch(
      seed, first_seq, {.activations = 700, .first_step = step, .steps = 2, .define = define});
  AddObservations(&batch, step);
  batch.captures = {{.step = step,
                     .activation = 1,
                     .layout = 0,
                     .elements = 32,
                     .offset = 0,
                     .data = std::string(64, 'a')},
                    {.step = step,
                     .activation = 1,
                     .layout = 0,
                     .elements = 32,
                     .offset = 64,
                     .data = std::string(64, 'b')}};
  return batch;
}

class Side {
 public:
  Side() : collector(std::make_unique<IngestServer>(store, clock, CollectorOptions{})) {
    transfer_service_ = api::MakeTransferService(store, collector->copies());
    grpc::ServerBuilder builder;
    LimitMessages(builder);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(collector->service()).RegisterService(transfer_service_.get());
    server_ = builder.BuildAndStart();
    const auto channel = grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                             grpc::InsecureChannelCredentials());
    ingest = v1::Ingest::NewStub(channel);
    transfer = v1::Transfer::NewStub(channel);
  }
  ~Side() {
    collector->Drain();
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
    server_->Wait();
    EXPECT_EQ(store.violation(), "");
  }

  // Sends hello and messages of one stream; returns what the collector said last of all.
  Status Stream(v1::Hello hello, const std::vector<v1::Batch>& batches, bool copy, bool goodbye,
                v1::Welcome* welcome = nullptr) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    const auto stream = copy ? ingest->Copy(&context) : ingest->Stream(&context);
    v1::AgentMessage message;
    *message.mutable_hello() = std::move(hello);
    stream->Write(message);
    v1::CollectorMessage answer;
    if (stream->Read(&answer) && welcome != nullptr) *welcome = answer.welcome();
    for (const v1::Batch& batch : batches) {
      *message.mutable_batch() = batch;
      if (!stream->Write(message)) break;
    }
    if (goodbye) {
      message.mutable_goodbye();
      stream->Write(message);
    }
    stream->WritesDone();
    while (stream->Read(&answer)) {
    }
    const grpc::Status end = stream->Finish();
    return {static_cast<Code>(end.error_code()), end.error_message()};
  }

  // Records a rank as its agent does; more than one batch of a copy holds.
  void Record(const SessionInfo& info, std::uint64_t seed) {
    std::vector<v1::Batch> batches;
    const std::vector<Layout> layouts = StandardLayouts();
    for (std::uint64_t n = 0, seq = 1; n < 4; ++n) {
      const RecordBatch batch = FullBatch(seed + n, seq, 3 * n, n == 0);
      seq = batch.last_seq() + 1;
      batches.push_back(ToWire(batch, n == 0 ? KnownLayouts() : KnownLayouts(layouts)));
    }
    const Status end = Stream(ToWire(info, 1), batches, false, true);
    ASSERT_TRUE(end.ok()) << end.message();
  }

  std::vector<v1::RunPart> Describe(const std::string& run = "base", Status* end = nullptr) {
    v1::DescribeRunRequest request;
    request.set_run(run);
    grpc::ClientContext context;
    const auto stream = transfer->DescribeRun(&context, request);
    std::vector<v1::RunPart> parts;
    for (v1::RunPart part; stream->Read(&part);) parts.push_back(part);
    const grpc::Status status = stream->Finish();
    if (end != nullptr) *end = {static_cast<Code>(status.error_code()), status.error_message()};
    return parts;
  }

  std::vector<v1::Batch> Read(std::uint32_t attempt, std::uint32_t rank,
                              const v1::Welcome& from = {}, Status* end = nullptr) {
    v1::ReadRankRequest request;
    request.set_run("base");
    request.set_attempt(attempt);
    request.set_rank(rank);
    request.set_after(from.durable_seq());
    request.set_activations(from.activations());
    request.set_layouts(from.layouts());
    grpc::ClientContext context;
    const auto stream = transfer->ReadRank(&context, request);
    std::vector<v1::Batch> batches;
    for (v1::Batch batch; stream->Read(&batch);) batches.push_back(batch);
    const grpc::Status status = stream->Finish();
    if (end != nullptr) *end = {static_cast<Code>(status.error_code()), status.error_message()};
    return batches;
  }

  // By what and step.
  std::map<std::pair<std::string, std::uint64_t>, std::string> Digests(std::uint32_t attempt,
                                                                       std::uint32_t rank) {
    v1::DigestRankRequest request;
    request.set_run("base");
    request.set_attempt(attempt);
    request.set_rank(rank);
    grpc::ClientContext context;
    const auto stream = transfer->DigestRank(&context, request);
    std::map<std::pair<std::string, std::uint64_t>, std::string> digests;
    for (v1::DigestRankResponse message; stream->Read(&message);) {
      for (const v1::StepDigest& digest : message.digests())
        digests[{digest.what(), digest.step()}] = digest.SerializeAsString();
    }
    EXPECT_TRUE(stream->Finish().ok());
    return digests;
  }

  Status Begin(const std::vector<v1::CopiedAttempt>& attempts) {
    v1::BeginCopyRequest request;
    request.set_run("base");
    for (const v1::CopiedAttempt& attempt : attempts) *request.add_attempts() = attempt;
    grpc::ClientContext context;
    v1::BeginCopyResponse response;
    return Of(transfer->BeginCopy(&context, request, &response));
  }
  Status Write(const v1::RunPart& part) {
    v1::WritePartRequest request;
    request.set_run("base");
    *request.mutable_part() = part;
    grpc::ClientContext context;
    v1::WritePartResponse response;
    return Of(transfer->WritePart(&context, request, &response));
  }
  static Status Of(const grpc::Status& status) {
    return {static_cast<Code>(status.error_code()), status.error_message()};
  }

  FakeStore store;
  FakeClock clock;
  std::unique_ptr<IngestServer> collector;
  std::unique_ptr<v1::Ingest::Stub> ingest;
  std::unique_ptr<v1::Transfer::Stub> transfer;

 private:
  std::unique_ptr<grpc::Service> transfer_service_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_SERVER_TRANSFER_SIDES_H_
