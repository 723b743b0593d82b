#include "bench/ingest/acknowledger.h"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/grpcpp.h>

#include "proto/convert.h"
#include "statcollect/v1/ingest.grpc.pb.h"

namespace statcollect::bench {
namespace {

constexpr std::size_t kPrefixBytes = 64;  // hold what stands before a batch's records

// The last sequence number of a serialized AgentMessage's batch; 0: it holds none.
std::uint64_t LastSeq(const grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  if (!message.Dump(&slices).ok()) return 0;
  std::string prefix;
  for (const grpc::Slice& slice : slices) {
    prefix.append(reinterpret_cast<const char*>(slice.begin()),
                  std::min(slice.size(), kPrefixBytes - prefix.size()));
    if (prefix.size() == kPrefixBytes) break;
  }
  google::protobuf::io::CodedInputStream in(reinterpret_cast<const std::uint8_t*>(prefix.data()),
                                            static_cast<int>(prefix.size()));
  std::uint64_t first_seq = 0;
  std::uint32_t length = 0, n = 0;
  const auto batch_tag = (v1::AgentMessage::kBatchFieldNumber << 3 | 2);
  if (in.ReadTag() != static_cast<std::uint32_t>(batch_tag) || !in.ReadVarint32(&length)) return 0;
  if (in.ReadTag() != v1::Batch::kFirstSeqFieldNumber << 3 || !in.ReadVarint64(&first_seq))
    return 0;
  if (in.ReadTag() != v1::Batch::kNFieldNumber << 3 || !in.ReadVarint32(&n)) return 0;
  return first_seq + n - 1;
}

grpc::ByteBuffer ToBuffer(const v1::CollectorMessage& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return {&slice, 1};
}

// First message in: the hello. Then a write for every read; a read without a batch (the goodbye)
// ends the stream.
class Reactor final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Reactor() { StartRead(&incoming_); }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    v1::CollectorMessage answer;
    if (!welcomed_) {
      welcomed_ = true;
      v1::Welcome* welcome = answer.mutable_welcome();
      welcome->set_attempt(1);
      welcome->mutable_limits()->set_message_bytes_max(kMessageBytesMax);
      welcome->mutable_limits()->set_window_batches_max(kWindowBatchesMax);
      welcome->mutable_limits()->set_window_bytes_max(kWindowBytesMax);
    } else {
      const std::uint64_t last = LastSeq(incoming_);
      if (last == 0) return Finish(grpc::Status::OK);
      answer.mutable_ack()->set_durable_seq(last);
    }
    outgoing_ = ToBuffer(answer);
    StartWrite(&outgoing_);
  }
  void OnWriteDone(bool ok) override {
    if (ok) return StartRead(&incoming_);
    Finish(grpc::Status::OK);
  }
  void OnDone() override { delete this; }

 private:
  grpc::ByteBuffer incoming_, outgoing_;
  bool welcomed_ = false;
};

class Service final : public v1::Ingest::WithRawCallbackMethod_Stream<v1::Ingest::Service> {
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Stream(
      grpc::CallbackServerContext*) override {
    return new Reactor();
  }
};

}  // namespace

int ServeAcknowledger() {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);  // in all threads that follow
  Service service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.SetMaxReceiveMessageSize(static_cast<int>(kMessageBytesMax));
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  if (!server || port == 0) {
    std::fputs("statcollect-bench acknowledge: listen on 127.0.0.1 failed; expected a free port\n",
               stderr);
    return 1;
  }
  std::printf("ready: grpc 127.0.0.1:%d, acknowledges and stores nothing\n", port);
  std::fflush(stdout);
  int signal = 0;
  sigwait(&stop, &signal);
  server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  return 0;
}

}  // namespace statcollect::bench
