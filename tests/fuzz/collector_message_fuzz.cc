// What a collector sends to an agent: the decoder written by hand against protobuf's, and the send
// window behind it, whose counts must agree whatever is acknowledged.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "agent/export/send_window.h"
#include "agent/export/wire.h"
#include "statcollect/v1/ingest.pb.h"

namespace {

using namespace statcollect;

void Expect(bool holds) {
  if (!holds) std::abort();
}

void Compare(std::string_view bytes, const wire::CollectorMessage& found) {
  v1::CollectorMessage expected;
  if (!expected.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  if (expected.has_ack() && found.ack) Expect(*found.ack == expected.ack().durable_seq());
  if (expected.has_welcome() && found.welcome) {
    Expect(found.welcome->durable_seq == expected.welcome().durable_seq());
    Expect(found.welcome->attempt == expected.welcome().attempt());
  }
  if (expected.has_directive() && found.directive)
    Expect(found.directive->kind == expected.directive().kind());
}

// The agent's counts, as its exporter keeps them.
struct Counts {
  std::uint64_t acked = 0, gone = 0, produced = 0;
};

void Add(SendWindow* window, Counts* counts, std::uint32_t records) {
  window->Add({.records = records, .bytes = std::string(records, 'x')});
  counts->produced += records;
}

void Take(SendWindow* window, Counts* counts, const wire::CollectorMessage& message) {
  if (message.welcome) {
    window->SetLimits(message.welcome->limits);
    const auto resumed = window->Resume(message.welcome->durable_seq);
    if (resumed.ok()) {
      counts->acked += resumed->newly_acked;
      Expect(resumed->gone <= resumed->lost && resumed->lost <= counts->acked);
      counts->acked -= resumed->lost;
      counts->gone += resumed->gone;
      if (resumed->gone > 0) {
        window->Renumber({{.records = 1, .bytes = "r"}});
        ++counts->produced;
      }
    }
  }
  if (message.ack) {
    if (const auto acked = window->Ack(*message.ack); acked.ok()) counts->acked += *acked;
  }
  Expect(counts->produced == counts->acked + counts->gone + window->UnackedRecords(false));
}

}  // namespace

// Messages, each behind one byte of length; a byte of 0 instead has the agent send what it may, and
// submit more.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  (void)wire::Decode(all);
  SendWindow window;
  Counts counts;
  for (std::size_t at = 0; at < size;) {
    const std::size_t length = data[at++];
    if (length == 0) {
      while (window.TakeNext() != nullptr) continue;
      if (window.HasRoom())
        Add(&window, &counts, 1 + data[at - 1] % 5 + static_cast<std::uint32_t>(at % 3));
      continue;
    }
    const std::string_view bytes = all.substr(at, length);
    at += length;
    const auto message = wire::Decode(bytes);
    if (!message.ok()) continue;
    Compare(bytes, *message);
    Take(&window, &counts, *message);
  }
  return 0;
}
