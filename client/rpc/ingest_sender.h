// Sends one rank's records to the collector over the stream protocol (docs/protocol.md): numbered
// batches within the window, kept until they are durable, resent after a reconnect. Unlike the
// agent's exporter, it may not lose anything, so a full window blocks the caller.
#ifndef STATCOLLECT_CLIENT_RPC_INGEST_SENDER_H_
#define STATCOLLECT_CLIENT_RPC_INGEST_SENDER_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "common/records.h"
#include "common/status.h"
#include "tls/files.h"

namespace statcollect::client {

// A destination for batches.
class BatchOutput {
 public:
  virtual ~BatchOutput() = default;
  // Takes the batch and sets its numbers. Precondition: records() > 0.
  virtual Status Send(RecordBatch batch) = 0;
};

struct SenderOptions {
  std::string address;          // HOST:PORT of the collector, or unix:/PATH
  std::string token_file = {};  // read for each connection; empty: no token
  std::string project = {};     // a valid name; empty: the token's, or the default one
  tls::Material tls = {};       // TLS is used if it has authorities
  std::chrono::milliseconds patience{30'000};  // how long to wait without a sign of the collector
  std::uint64_t first_seq = 1;  // number of the first record; the collector has the earlier ones
  bool late = false;            // the session's process has ended: see ingest.proto
};

// Threads: Send and Finish from one, Cancel from any.
class IngestSender final : public BatchOutput {
 public:
  // Connects with the first batch.
  IngestSender(SenderOptions options, SessionInfo session);
  // Without Finish, the stream is cut off; what was acknowledged stays.
  ~IngestSender() override;

  // Waits for room in the window. Errors can be shown to the user; after an error, every call
  // fails.
  Status Send(RecordBatch batch) override;
  // As above for a serialized Records message with `records` records, as the session's agent
  // encoded it.
  Status SendEncoded(std::uint64_t records, std::string bytes);
  // Waits until everything is durable.
  Status AwaitDurable();
  // Waits until everything is durable, sends the goodbye with `dropped` (by cause), and waits for
  // the collector to end the stream.
  Status Finish(const std::map<std::string, std::uint64_t>& dropped);
  // Ends the running call and all later ones with kCancelled.
  void Cancel();

  // Statistics records that the collector has acknowledged as durable.
  std::uint64_t durable_records() const;
  // The session's last durable record when the collector first answered.
  std::uint64_t durable_before() const;
  // How many activations the session had defined by then, if it is late.
  std::uint32_t activations_before() const;
  // Number of the attempt within the run; 0 before the collector's answer.
  std::uint32_t attempt() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// 16 random bytes.
SessionId RandomSessionId();

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_RPC_INGEST_SENDER_H_
