// The exporter's connection to the collector, as an interface: gRPC in the product, a fake in
// tests.
#ifndef STATCOLLECT_AGENT_EXPORT_TRANSPORT_H_
#define STATCOLLECT_AGENT_EXPORT_TRANSPORT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "agent/export/send_window.h"
#include "common/records.h"
#include "common/status.h"

namespace statcollect {

struct Welcome {
  std::uint32_t attempt = 0;
  std::uint64_t durable_seq = 0;
  StreamLimits limits;
  std::int64_t attempt_start_unix_nanos = 0;  // 0: the collector is older than this field
  StoreIdentity store;                        // unknown: the collector is older and knows no gaps
};

// A request of the collector.
struct Directive {
  std::string kind;
  std::map<std::string, std::string> arguments;
};

// Receives the collector's messages on one stream, from a thread of the transport.
class StreamReceiver {
 public:
  virtual ~StreamReceiver() = default;
  virtual void OnWelcome(const Welcome& welcome) = 0;
  virtual void OnAck(std::uint64_t durable_seq) = 0;
  virtual void OnDirective(const Directive&) {}
  // Nothing more will come; the last call. Stream::Finish says why.
  virtual void OnEnd() = 0;
};

// One stream. Threads: Cancel from any; the rest from the exporter's thread.
class Stream {
 public:
  virtual ~Stream() = default;
  // Each may block until the network takes the message, and returns false once the stream is
  // broken. The hello comes first; the goodbye is last and waits for nothing.
  virtual bool SendHello(const SessionInfo& session, std::uint64_t first_unacked_seq) = 0;
  virtual bool Send(const EncodedBatch& batch) = 0;
  virtual bool SendGoodbye(const AgentCounters& counters) = 0;
  // Breaks the stream: every blocked call returns soon. Never blocks.
  virtual void Cancel() = 0;
  // Waits for the end and returns the collector's final status, after OnEnd. Called once.
  virtual Status Finish() = 0;
};

// PEM files, read again for each stream; TLS is used if there are authorities.
struct TlsOptions {
  std::string authorities, certificate, key;
};

class Transport {
 public:
  virtual ~Transport() = default;
  // Prepares a stream; touches no network. `receiver` outlives it.
  virtual std::unique_ptr<Stream> Open(StreamReceiver* receiver) = 0;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_EXPORT_TRANSPORT_H_
