// Invalid messages of a broken or hostile agent end its own stream with a clear status and have no
// other effect: a neighbour's stream that was open before goes on, and the collector's catalogue is
// as it was.
#include <functional>

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include "common/checksum.h"
#include "tests/server/ingest/harness.h"

namespace statcollect {
namespace {

using testing::Harness;
using testing::NthBatch;
using testing::RawAgent;

v1::AgentMessage BatchMessage(const std::function<void(v1::Batch*)>& spoil) {
  v1::AgentMessage message;
  *message.mutable_batch() = ToWire(NthBatch(0), {});
  spoil(message.mutable_batch());
  return message;
}

v1::AgentMessage HelloMessage(const std::function<void(v1::Hello*)>& spoil) {
  v1::AgentMessage message;
  *message.mutable_hello() = ToWire(Harness::Session(1), 1);
  spoil(message.mutable_hello());
  return message;
}

void Seal(v1::Batch* batch, const v1::Records& records) {
  batch->set_records(records.SerializeAsString());
  batch->set_crc(Crc32c(batch->records()));
}

struct Case {
  const char* name;
  Code code;
  std::function<void(RawAgent&)> act;
  bool joins = false;  // says a proper hello first
};

void WriteBadHello(RawAgent& agent, const std::function<void(v1::Hello*)>& spoil) {
  agent.Write(HelloMessage(spoil));
}
void WriteBadBatch(RawAgent& agent, const std::function<void(v1::Batch*)>& spoil) {
  agent.Write(BatchMessage(spoil));
}

const Case kCases[] = {
    {"BatchFirst", Code::kFailedPrecondition, [](RawAgent& a) { a.WriteBatch(NthBatch(0)); }},
    {"GoodbyeFirst", Code::kFailedPrecondition, [](RawAgent& a) { a.WriteGoodbye(); }},
    {"EmptyMessageFirst", Code::kInvalidArgument, [](RawAgent& a) { a.Write({}); }},
    {"CloseBeforeHello", Code::kFailedPrecondition, [](RawAgent& a) { a.HalfClose(); }},
    {"HostileRunName", Code::kInvalidArgument,
     [](RawAgent& a) { WriteBadHello(a, [](v1::Hello* h) { h->set_run("../etc"); }); }},
    {"ShortSessionId", Code::kInvalidArgument,
     [](RawAgent& a) { WriteBadHello(a, [](v1::Hello* h) { h->set_session_id("x"); }); }},
    {"RankOutsideTheWorld", Code::kInvalidArgument,
     [](RawAgent& a) { WriteBadHello(a, [](v1::Hello* h) { h->set_rank(2); }); }},
    {"OtherProtocolVersion", Code::kFailedPrecondition,
     [](RawAgent& a) { WriteBadHello(a, [](v1::Hello* h) { h->set_protocol_version(99); }); }},
    {"SecondHello", Code::kFailedPrecondition, [](RawAgent& a) { a.WriteHello(); }, true},
    {"EmptyMessage", Code::kInvalidArgument, [](RawAgent& a) { a.Write({}); }, true},
    {"CloseWithoutGoodbye", Code::kCancelled, [](RawAgent& a) { a.HalfClose(); }, true},
    {"DamagedRecords", Code::kDataLoss,
     [](RawAgent& a) { WriteBadBatch(a, [](v1::Batch* b) { b->mutable_records()->back() ^= 1; }); },
     true},
    {"TornRecords", Code::kDataLoss,
     [](RawAgent& a) {
       WriteBadBatch(a,
                     [](v1::Batch* b) { b->mutable_records()->resize(b->records().size() / 2); });
     },
     true},
    {"GarbageWithARightChecksum", Code::kInvalidArgument,
     [](RawAgent& a) {
       WriteBadBatch(a, [](v1::Batch* b) {
         b->set_records(std::string(1000, '\xff'));
         b->set_crc(Crc32c(b->records()));
       });
     },
     true},
    {"WrongCount", Code::kInvalidArgument,
     [](RawAgent& a) { WriteBadBatch(a, [](v1::Batch* b) { b->set_n(b->n() + 1); }); }, true},
    {"EmptyBatch", Code::kInvalidArgument,
     [](RawAgent& a) { WriteBadBatch(a, [](v1::Batch* b) { b->Clear(); }); }, true},
    {"SequenceZero", Code::kInvalidArgument,
     [](RawAgent& a) { WriteBadBatch(a, [](v1::Batch* b) { b->set_first_seq(0); }); }, true},
    {"Gap", Code::kOutOfRange,
     [](RawAgent& a) { WriteBadBatch(a, [](v1::Batch* b) { b->set_first_seq(5); }); }, true},
    {"SkipsMoreThanThereIs", Code::kInvalidArgument,
     [](RawAgent& a) {
       WriteBadBatch(a, [](v1::Batch* b) {
         b->set_first_seq(5);
         b->set_skipped(~std::uint64_t{0});
       });
     },
     true},
    {"ReorderedBatches", Code::kOutOfRange,
     [](RawAgent& a) {
       RecordBatch second = NthBatch(1);
       second.layouts = testing::StandardLayouts();
       a.WriteBatch(second);
       a.WriteBatch(NthBatch(0));
     },
     true},
    {"UndefinedActivation", Code::kInvalidArgument,
     [](RawAgent& a) {
       RecordBatch batch = NthBatch(0);
       batch.activations.clear();
       a.WriteBatch(batch);
     },
     true},
    {"ManyDefinitionsWithoutRecords", Code::kInvalidArgument,
     [](RawAgent& a) {
       WriteBadBatch(a, [](v1::Batch* b) {
         v1::Records records;
         for (std::uint32_t i = 0; i < 1000; ++i) records.add_layouts()->set_id(i);
         Seal(b, records);
       });
     },
     true},
    {"OversizeMessage", Code::kResourceExhausted,
     [](RawAgent& a) {
       WriteBadBatch(a, [](v1::Batch* b) { b->set_records(std::string(5 << 20, 'x')); });
     },
     true},
};

class HostileAgent : public ::testing::TestWithParam<Case> {};

TEST_P(HostileAgent, EndsItsOwnStreamOnly) {
  Harness h;
  auto neighbour = h.Agent(Harness::Session(0));
  neighbour->Open();
  neighbour->WriteBatch(NthBatch(0));
  ASSERT_TRUE(neighbour->AwaitAck(NthBatch(0).last_seq()));

  auto hostile = h.Agent(Harness::Session(1));
  if (GetParam().joins) hostile->Open();
  GetParam().act(*hostile);
  const Status end = hostile->Finish();
  EXPECT_EQ(end.code(), GetParam().code) << end.message();
  EXPECT_EQ(hostile->acked(), 0u);

  neighbour->WriteBatch(NthBatch(1));
  EXPECT_TRUE(neighbour->AwaitAck(NthBatch(1).last_seq()));
  const auto ranks = h.store.Ranks(h.store.Attempts("base").value().at(0).id).value();
  EXPECT_EQ(ranks.size(), GetParam().joins ? 2u : 1u);
  EXPECT_EQ(h.Stored(1).records, 0u);
  EXPECT_EQ(h.store.ListRuns().value(), std::vector<std::string>{"base"});

  auto proper = h.Agent(Harness::Session(1));
  proper->Open();
  proper->WriteBatch(NthBatch(0));
  EXPECT_TRUE(proper->AwaitAck(NthBatch(0).last_seq())) << "the rank may come back and do better";
}

INSTANTIATE_TEST_SUITE_P(All, HostileAgent, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(HostileAgent, AcknowledgesWhatWasGoodBeforeTheBadBatch) {
  Harness h;
  auto agent = h.Agent();
  agent->Open();
  h.store.BlockAppends();
  agent->WriteBatch(NthBatch(0));
  h.store.AwaitBlockedAppend();
  RecordBatch gap = NthBatch(2);
  agent->WriteBatch(gap);
  ASSERT_TRUE(
      Harness::Eventually([&] { return h.collector->GetStatus().rejected_batches_total == 1; }));
  h.store.ReleaseAppends();
  EXPECT_EQ(agent->Finish().code(), Code::kOutOfRange);
  EXPECT_EQ(agent->acked(), NthBatch(0).last_seq());
}

TEST(HostileAgent, BytesThatAreNoMessageEndTheStream) {
  Harness h;
  auto neighbour = h.Agent(Harness::Session(0));
  neighbour->Open();
  grpc::GenericStub stub(h.channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, "/statcollect.v1.Ingest/Stream", &queue);
  const auto await = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return ok;
  };
  call->StartCall(nullptr);
  ASSERT_TRUE(await());
  const grpc::Slice garbage(std::string(2000, '\xff'));
  call->Write(grpc::ByteBuffer(&garbage, 1), nullptr);
  await();
  grpc::Status status;
  call->Finish(&status, nullptr);
  await();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << "ended by the collector";
  neighbour->WriteBatch(NthBatch(0));
  EXPECT_TRUE(neighbour->AwaitAck(NthBatch(0).last_seq()));
}

// 4 MiB of zeros, compressed again and again, would be gigabytes once they are taken apart.
TEST(HostileStream, CompressedMessagesAreRefusedBeforeTheyAreTakenApart) {
  Harness h;
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    grpc::ClientContext context;
    context.set_compression_algorithm(algorithm);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    const auto stream = h.stub->Stream(&context);
    v1::AgentMessage message;
    *message.mutable_hello() = ToWire(Harness::Session(), 1);
    (*message.mutable_hello()->mutable_config())["zeros"] = std::string(100'000, '0');
    stream->Write(message);
    for (v1::CollectorMessage answer; stream->Read(&answer);) {
    }
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
  }
  EXPECT_TRUE(h.store.ListRuns()->empty());
}

}  // namespace
}  // namespace statcollect
