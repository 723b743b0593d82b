// Sends one rank's records to the collector over the stream protocol (docs/protocol.md): numbered batches
// within the window, kept until they are durable, sent again after a reconnect. Not the agent's exporter:
// nothing here may be lost, so a full window makes the caller wait.
#ifndef STATCOLLECT_CLIENT_RPC_INGEST_SENDER_H_
#define STATCOLLECT_CLIENT_RPC_INGEST_SENDER_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "common/records.h"
#include "common/status.h"

namespace statcollect::client {

// Where batches go.
class BatchOutput {
 public:
  virtual ~BatchOutput() = default;
  // Takes the batch over; its numbers are set here. Precondition: records() > 0.
  virtual Status Send(RecordBatch batch) = 0;
};

struct SenderOptions {
  std::string address;                         // HOST:PORT of the collector
  std::chrono::milliseconds patience{30'000};  // without a sign of the collector, before it is given up
  std::uint64_t first_seq = 1;                 // number of the first record; the collector has those before
  bool late = false;                           // of a session whose process has ended: see ingest.proto
};

// Threads: Send, Finish from one; Cancel from any.
class IngestSender final : public BatchOutput {
 public:
  // Does not connect before the first batch.
  IngestSender(SenderOptions options, SessionInfo session);
  // Without Finish: the stream is cut off; what was acknowledged stays.
  ~IngestSender() override;

  // Waits for room in the window. Errors are ready to be shown; after one, only errors.
  Status Send(RecordBatch batch) override;
  // The same with what the session's agent encoded: a serialized Records that holds `records`.
  Status SendEncoded(std::uint64_t records, std::string bytes);
  // Waits until all is durable.
  Status AwaitDurable();
  // Waits until all is durable, says goodbye with `dropped` (by cause), and waits for the collector's end.
  Status Finish(const std::map<std::string, std::uint64_t>& dropped);
  // Ends what is under way, and what comes, with kCancelled.
  void Cancel();

  // Statistics records that the collector has acknowledged as durable.
  std::uint64_t durable_records() const;
  // The session's last durable record when the collector first answered.
  std::uint64_t durable_before() const;
  // Number of the attempt within the run; 0 before the collector has said.
  std::uint32_t attempt() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// 16 random bytes.
SessionId RandomSessionId();

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_RPC_INGEST_SENDER_H_
