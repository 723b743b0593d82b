#include "agent/export/exporter.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "agent/export/wire.h"
#include "agent/export/worker_thread.h"

namespace statcollect {
namespace {

// Definitions in one batch that repeats them; each takes some hundred bytes.
constexpr std::uint32_t kRepeatedMax = 2048;

template <typename Defs>
void Extend(Defs* to, Defs from) {
  std::move(from.begin(), from.end(), std::back_inserter(*to));
}

}  // namespace

bool IsFatal(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
    case Code::kAlreadyExists:
    case Code::kPermissionDenied:
    case Code::kUnauthenticated:
    case Code::kFailedPrecondition:
    case Code::kAborted:  // fenced by a newer session of this rank
    case Code::kUnimplemented:
      return true;
    default:
      return false;
  }
}

Exporter::Exporter(SessionInfo session, ExporterOptions options, Transport* transport, Ledger* ledger,
                   LogLimiter* log, std::function<void()> on_room)
    : session_(std::move(session)),
      options_(std::move(options)),
      transport_(transport),
      ledger_(ledger),
      log_(log),
      on_room_(std::move(on_room)),
      backoff_(options_.backoff, options_.seed) {}

Exporter::~Exporter() { (void)Finish(TimePoint::min()); }

void Exporter::Start() {
  thread_ = StartWorker("statagent-send", [this] { Run(); });
}

Status Exporter::WaitForWelcome(TimePoint deadline, bool patient) {
  Lock lock(mutex_);
  changed_.wait_until(lock, deadline,
                      [&] { return ever_welcomed_ || !fatal_.ok() || (!patient && last_failure_); });
  quiet_ = false;
  if (ever_welcomed_) return Status::Ok();
  if (!fatal_.ok()) return fatal_;
  if (last_failure_) return *last_failure_;
  return Explain(Status(Code::kUnavailable, "no answer yet"));
}

bool Exporter::HasRoom() {
  Lock lock(mutex_);
  return fatal_.ok() && window_.HasRoom();
}

std::size_t Exporter::BatchBytesMax() {
  Lock lock(mutex_);
  return window_.BatchBytesMax();
}

void Exporter::Submit(RecordBatch batch, std::size_t /*bytes*/) {
  EncodedBatch encoded = Encode(batch);
  Lock lock(mutex_);
  if (!fatal_.ok()) {
    ledger_->Drop(kDropRejected, encoded.records);
    return;
  }
  if (!batch.steps.empty()) last_step_ = std::max(last_step_, batch.steps.back().step);
  added_ = encoded.after;
  window_.Add(std::move(encoded));
  changed_.notify_all();
}

EncodedBatch Exporter::Encode(const RecordBatch& batch) {
  for (const Layout& layout : batch.layouts) {
    if (layout.id == layouts_.size()) layouts_.push_back(layout);
  }
  EncodedBatch encoded{.records = static_cast<std::uint32_t>(batch.records()), .before = given_};
  given_.activations += static_cast<std::uint32_t>(batch.activations.size());
  given_.layouts += static_cast<std::uint32_t>(batch.layouts.size());
  encoded.after = given_;
  encoded.bytes = wire::EncodeRecords(batch, layouts_);
  return encoded;
}

std::vector<EncodedBatch> Exporter::Repair(const DefinitionCounts& definitions, std::string_view cause,
                                           std::uint64_t lost) {
  std::vector<EncodedBatch> batches;
  DefinitionCounts from;
  do {
    RecordBatch batch;
    const std::string count = std::to_string(lost);
    if (lost > 0 && batches.empty()) {
      batch.events.push_back({.kind = "records_dropped",
                              .step = last_step_,
                              .unix_nanos = SystemClock().UnixNanos(),
                              .text = count + " records were lost on their way: " + std::string(cause),
                              .fields = {{"cause", std::string(cause)}, {"count", count}}});
    } else {
      batch.events.push_back({.kind = "definitions_repeated", .step = last_step_, .text = "after a loss"});
    }
    EncodedBatch encoded{.records = 1, .before = from};
    if (options_.definitions != nullptr) {
      const std::uint32_t activations = std::min(definitions.activations, from.activations + kRepeatedMax);
      const std::uint32_t layouts = std::min(definitions.layouts, from.layouts + kRepeatedMax);
      if (activations > from.activations)
        Extend(&batch.activations, options_.definitions->Activations(from.activations, activations - 1));
      if (layouts > from.layouts)
        Extend(&batch.layouts, options_.definitions->Layouts(from.layouts, layouts - 1));
      from = {activations, layouts};
    }
    encoded.after = from;
    encoded.bytes = wire::EncodeRecords(batch, {});
    ledger_->Produce();
    batches.push_back(std::move(encoded));
  } while (options_.definitions != nullptr && from != definitions);
  return batches;
}

bool Exporter::Failed() { return !failure().ok(); }

Status Exporter::failure() {
  Lock lock(mutex_);
  return fatal_;
}

Exporter::Progress Exporter::progress() {
  Lock lock(mutex_);
  return progress_;
}

Status Exporter::Finish(TimePoint deadline) {
  std::lock_guard one_at_a_time(finish_mutex_);
  if (!thread_.joinable()) return result_;
  {
    Lock lock(mutex_);
    finishing_ = retry_now_ = true;
    backoff_.Reset();
    changed_.notify_all();
    changed_.wait_until(lock, deadline, [this] { return done_; });
    stop_ = true;
    if (stream_ != nullptr) stream_->Cancel();
    changed_.notify_all();
  }
  thread_.join();
  Lock lock(mutex_);
  const std::uint64_t lost = window_.Clear();
  ledger_->Drop(kDropClosed, lost);
  if (!fatal_.ok()) {
    result_ = fatal_;
  } else if (lost > 0) {
    result_ = Status(Code::kDeadlineExceeded,
                     "close: " + std::to_string(lost) +
                         " records were sent and not acknowledged in time; they are counted as "
                         "dropped; give close() more time");
  }
  return result_;
}

void Exporter::OnWelcome(const Welcome& welcome) {
  SendWindow::Resumed resumed;
  {
    Lock lock(mutex_);
    window_.SetLimits(welcome.limits);
    const Result<SendWindow::Resumed> result = window_.Resume(welcome.durable_seq);
    if (!result.ok()) {
      protocol_error_ = result.status();
    } else {
      resumed = *result;
      ledger_->Ack(resumed.newly_acked);
      if (resumed.newly_acked > 0) backoff_.Reset();
      ledger_->Regress(resumed.lost, resumed.gone);
      if (resumed.gone > 0)
        window_.Renumber(Repair(window_.DefinedBefore(added_), kDropRegressed, resumed.gone));
      progress_.lost_after_ack += resumed.lost;
      ++progress_.streams;
      phase_ = Phase::kWelcomed;
      ever_welcomed_ = true;
      last_failure_.reset();
    }
    changed_.notify_all();
  }
  if (resumed.lost > 0) {
    log_->Log("the collector at " + options_.collector + " lost " + std::to_string(resumed.lost) +
              " records that it had acknowledged (a restored checkpoint?); " +
              std::to_string(resumed.lost - resumed.gone) + " are sent again, " +
              std::to_string(resumed.gone) + " are no longer held and counted as dropped (regressed)");
  }
  on_room_();
}

void Exporter::OnAck(std::uint64_t durable_seq) {
  {
    Lock lock(mutex_);
    const Result<std::uint64_t> acked = window_.Ack(durable_seq);
    if (!acked.ok()) {
      protocol_error_ = acked.status();
    } else if (*acked > 0) {
      ledger_->Ack(*acked);
      backoff_.Reset();
    }
    changed_.notify_all();
  }
  on_room_();
}

void Exporter::OnEnd() {
  Lock lock(mutex_);
  stream_ended_ = true;
  changed_.notify_all();
}

void Exporter::Run() {
  while (HandleEnd(RunStream())) WaitBackoff();
  Lock lock(mutex_);
  done_ = true;
  changed_.notify_all();
}

Status Exporter::RunStream() {
  std::uint64_t first_unacked = 0;
  std::unique_ptr<Stream> stream;
  {
    Lock lock(mutex_);
    if (stop_ || (NothingLeftLocked() && !ever_welcomed_)) return Status::Ok();
    stream = transport_->Open(this);
    stream_ = stream.get();
    stream_ended_ = false;
    phase_ = Phase::kConnecting;
    first_unacked = window_.first_unacked_seq();
  }
  if (stream->SendHello(session_, first_unacked)) Pump(stream.get());
  {
    Lock lock(mutex_);
    if (stop_ || !protocol_error_.ok()) stream->Cancel();
    stream_ = nullptr;
  }
  return stream->Finish();
}

void Exporter::Pump(Stream* stream) {
  Lock lock(mutex_);
  const auto broken = [this] { return stop_ || stream_ended_ || !protocol_error_.ok(); };
  const TimePoint welcome_by = std::chrono::steady_clock::now() + options_.welcome_timeout;
  if (!changed_.wait_until(lock, welcome_by, [&] { return broken() || phase_ == Phase::kWelcomed; })) {
    stream->Cancel();
    return;
  }
  while (true) {
    changed_.wait(lock, [&] { return broken() || window_.HasUnsent() || GoodbyeDueLocked(); });
    if (broken()) return;
    if (const auto batch = window_.TakeNext()) {
      lock.unlock();
      const bool sent = stream->Send(*batch);
      lock.lock();
      if (!sent) return;
    } else {
      goodbye_sent_ = true;
      lock.unlock();
      stream->SendGoodbye(ledger_->Snapshot());
      lock.lock();
    }
  }
}

bool Exporter::HandleEnd(const Status& end) {
  std::string text;
  bool quiet = false;
  {
    Lock lock(mutex_);
    if (stop_ || NothingLeftLocked()) return false;
    quiet = quiet_;
    const bool was_welcomed = phase_ == Phase::kWelcomed;
    if (protocol_error_.ok() && !IsFatal(end.code())) {
      last_failure_ = Explain(end);
      changed_.notify_all();
      text = was_welcomed ? "lost the stream: " + last_failure_->message()
                          : "cannot " + last_failure_->message();
    }
  }
  if (text.empty()) {
    Fail(end);
    return false;
  }
  if (!quiet) log_->Log(text + "; training goes on and the agent keeps trying");
  return true;
}

void Exporter::Fail(const Status& end) {
  Status fatal;
  bool quiet = false;
  {
    Lock lock(mutex_);
    quiet = quiet_;
    fatal_ = protocol_error_.ok() ? end : protocol_error_;
    fatal = fatal_;
    ledger_->Drop(kDropRejected, window_.Clear());
    changed_.notify_all();
  }
  if (!quiet) {
    log_->LogFinal("the collector at " + options_.collector + " ended this session: " + fatal.message() +
                   "; training goes on, nothing more is recorded");
  }
  on_room_();
}

void Exporter::WaitBackoff() {
  Lock lock(mutex_);
  const auto until = std::chrono::steady_clock::now() + backoff_.Next();
  changed_.wait_until(lock, until, [this] { return stop_ || retry_now_ || NothingLeftLocked(); });
  retry_now_ = false;
}

Status Exporter::Explain(const Status& end) const {
  const std::string found = end.ok() ? "the collector closed the stream" : end.message();
  return Status(end.ok() ? Code::kUnavailable : end.code(),
                "reach the collector at " + options_.collector + ": " + found +
                    "; expected statcollectord listening there; start it, or name another address "
                    "(STATAGENT_COLLECTOR)");
}

}  // namespace statcollect
