// Two streams of a collector and what befalls them, in any order: hellos, batches, goodbyes, the
// end of reading, a cancelled call, a write that is done. Each stream ends once, nothing is stored
// twice or with a gap, and no acknowledgement goes beyond what is stored. The registry, the
// committer and the streams are the product's.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/checksum.h"
#include "server/ingest/committer.h"
#include "server/ingest/ingest_stream.h"
#include "server/ingest/registry.h"
#include "statcollect/v1/ingest.pb.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_store.h"

namespace {

using namespace statcollect;

void Expect(bool holds) {
  if (!holds) std::abort();
}

// Called by the fuzzer's thread and the committer's.
class Wire final : public StreamTransport {
 public:
  void StartRead() override {
    const std::lock_guard lock(mutex_);
    Expect(!reading_ && !finished_);
    reading_ = true;
  }
  void StartWrite(v1::CollectorMessage message) override {
    const std::lock_guard lock(mutex_);
    Expect(!writing_ && !finished_);
    writing_ = true;
    if (!message.has_ack()) return;
    Expect(message.ack().durable_seq() >= told_);
    told_ = message.ack().durable_seq();
  }
  void Finish(const Status&) override {
    const std::lock_guard lock(mutex_);
    Expect(!writing_ && !finished_);
    finished_ = true;
  }
  bool TakeRead() {
    const std::lock_guard lock(mutex_);
    return !finished_ && std::exchange(reading_, false);
  }
  bool TakeWrite() {
    const std::lock_guard lock(mutex_);
    return std::exchange(writing_, false);
  }
  bool finished() {
    const std::lock_guard lock(mutex_);
    return finished_;
  }

 private:
  std::mutex mutex_;
  bool reading_ = false, writing_ = false, finished_ = false;
  std::uint64_t told_ = 0;
};

struct Collector {
  DefinitionBudget& definitions;  // streams give back to it at their end
  testing::FakeStore store;
  testing::FakeClock clock;
  Committer committer{store, clock, {}};
  SessionRegistry registry{store, clock, committer};
  IngestCounters counters;
  MemoryGates memory{std::size_t{1} << 40, /*parts=*/1,
                     /*threads=*/0};  // never full, so that all work is done on this thread
  std::deque<std::function<void()>> admissions;
  StreamContext context{
      .reader = store,
      .writer = store,
      .clock = clock,
      .registry = registry,
      .committer = committer,
      .counters = counters,
      .admit = [this](const std::string&, std::uint32_t,
                      std::function<void()> job) { admissions.push_back(std::move(job)); },
      .memory = memory,
      .definitions = definitions};

  void Admit() {
    while (!admissions.empty()) {
      auto job = std::move(admissions.front());
      admissions.pop_front();
      job();
    }
  }
};

struct Call {
  Wire wire;
  std::shared_ptr<IngestStream> stream;
};

void Read(Call& call, const std::uint8_t* data, std::size_t size) {
  v1::AgentMessage message;
  if (!call.wire.TakeRead()) return;
  if (!message.ParseFromArray(data, static_cast<int>(size))) return call.stream->OnReadsDone();
  if (message.has_batch()) message.mutable_batch()->set_crc(Crc32c(message.batch().records()));
  call.stream->OnMessage(&message);
}

}  // namespace

// Each step is a byte (its lowest bit: which stream; the rest: what) and, for a message, two bytes
// of length and the message.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  DefinitionBudget definitions;
  std::vector<std::unique_ptr<Call>> calls;  // a stream may outlive its place
  Collector collector{definitions};
  const auto open = [&] {
    calls.push_back(std::make_unique<Call>());
    calls.back()->stream = std::make_shared<IngestStream>(collector.context, &calls.back()->wire);
    calls.back()->stream->Start();
    return calls.back().get();
  };
  Call* now[2] = {open(), open()};
  for (std::size_t at = 0; at < size && calls.size() < 40;) {
    const std::uint8_t step = data[at++];
    Call*& call = now[step & 1];
    switch ((step >> 1) % 6) {
      case 0: {
        if (at + 2 > size) break;
        const std::size_t length =
            std::min<std::size_t>(data[at] * 256u + data[at + 1], size - at - 2);
        Read(*call, data + at + 2, length);
        at += 2 + length;
        break;
      }
      case 1:
        collector.Admit();
        break;
      case 2:
        if (call->wire.TakeWrite()) call->stream->OnWriteDone(step < 128);
        break;
      case 3:
        if (call->wire.TakeRead()) call->stream->OnReadsDone();
        break;
      case 4:
        if (!call->wire.finished()) call->stream->OnCancel();
        break;
      case 5:
        call = open();
        break;
    }
  }
  collector.Admit();
  for (const auto& call : calls) call->stream->Drain();
  collector.committer.Drain();
  for (const auto& call : calls) {
    while (call->wire.TakeWrite()) call->stream->OnWriteDone(true);
    Expect(call->wire.finished());
  }
  Expect(collector.store.violation().empty());
  Expect(collector.registry.OpenStreams() == 0);
  return 0;
}
