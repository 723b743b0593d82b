#include "server/ingest/ingest_stream.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/decoded_bytes.h"
#include "common/failpoint.h"
#include "proto/convert.h"

namespace statcollect {
namespace {

Status OutOfOrder(const char* found, const char* expected) {
  return Status(Code::kFailedPrecondition, std::string("stream: found ") + found + "; expected " +
                                               expected + "; see docs/protocol.md");
}

// What is reserved before a batch is decoded; then it is counted. Ordinary batches take two to
// three times their bytes on the wire, small definitions up to thirty times.
constexpr std::size_t kDecodedPerWireByte = 8;

v1::CollectorMessage MakeWelcome(const AttemptMeta& attempt, std::uint64_t durable_seq,
                                 const RecordWriter& store) {
  v1::CollectorMessage message;
  v1::Welcome* welcome = message.mutable_welcome();
  welcome->set_protocol_version(kProtocolVersion);
  welcome->set_attempt(attempt.number);
  welcome->set_durable_seq(durable_seq);
  welcome->mutable_limits()->set_message_bytes_max(kMessageBytesMax);
  welcome->mutable_limits()->set_window_batches_max(kWindowBatchesMax);
  welcome->mutable_limits()->set_window_bytes_max(kWindowBytesMax);
  welcome->mutable_limits()->set_capture_chunk_bytes_max(kCaptureChunkBytesMax);
  welcome->set_fsync(store.fsync());
  welcome->set_attempt_start_unix_nanos(attempt.start_unix_nanos);
  if (const StoreIdentity identity = store.identity(); identity.known()) {
    welcome->set_store_id(identity.id.data(), identity.id.size());
    welcome->set_store_epoch(identity.epoch);
  }
  return message;
}

v1::CollectorMessage MakeAck(std::uint64_t durable_seq) {
  v1::CollectorMessage message;
  message.mutable_ack()->set_durable_seq(durable_seq);
  return message;
}

v1::CollectorMessage MakeStepsDirective(const std::string& steps) {
  v1::CollectorMessage message;
  message.mutable_directive()->set_kind("steps");
  (*message.mutable_directive()->mutable_arguments())["steps"] = steps;
  return message;
}

v1::CollectorMessage MakeCaptureDirective(const CaptureRequest& request) {
  v1::CollectorMessage message;
  message.mutable_directive()->set_kind("capture");
  auto& arguments = *message.mutable_directive()->mutable_arguments();
  for (const auto& [name, value] : request.spec.ToArguments()) arguments[name] = value;
  arguments["request"] = std::to_string(request.id);
  return message;
}

v1::CollectorMessage MakeFullDirective(const FullSteps& steps) {
  v1::CollectorMessage message;
  message.mutable_directive()->set_kind("full");
  auto& arguments = *message.mutable_directive()->mutable_arguments();
  arguments["first"] = std::to_string(steps.first);
  arguments["every"] = std::to_string(steps.every);
  if (steps.last != FullSteps::kNoEnd) arguments["last"] = std::to_string(steps.last);
  return message;
}

}  // namespace

IngestStream::IngestStream(const StreamContext& context, StreamTransport* transport,
                           std::string project, StreamOf of)
    : context_(context),
      project_(std::move(project)),
      of_(of),
      opened_(context.clock.Now()),
      transport_(transport) {}

void IngestStream::Start() { ReadNext(); }

void IngestStream::OnMessage(v1::AgentMessage* message) {
  Phase phase;
  {
    MutexLock lock(mutex_);
    if (end_) return;
    phase = phase_;
  }
  switch (message->body_case()) {
    case v1::AgentMessage::kHello:
      if (phase != Phase::kAwaitingHello)
        return End(OutOfOrder("a second hello", "one, first"), How::kGracefully);
      return TakeHello(message->hello());
    case v1::AgentMessage::kBatch:
      if (phase != Phase::kOpen)
        return End(OutOfOrder("a batch before the hello", "a hello first"), How::kAtOnce);
      return TakeBatch(message->mutable_batch());
    case v1::AgentMessage::kGoodbye:
      if (phase != Phase::kOpen)
        return End(OutOfOrder("a goodbye before the hello", "a hello first"), How::kAtOnce);
      return TakeGoodbye(message->goodbye());
    case v1::AgentMessage::BODY_NOT_SET:
      break;
  }
  End(Status(Code::kInvalidArgument,
             "stream: found a message without hello, batch or goodbye; expected one of them; use "
             "agent and collector of matching releases"),
      How::kGracefully);
}

void IngestStream::OnReadsDone() {
  MutexLock lock(mutex_);
  if (phase_ == Phase::kAwaitingHello) {
    EndLocked(OutOfOrder("the end of the stream", "a hello"), How::kGracefully);
  } else {
    EndLocked(
        Status(Code::kCancelled,
               "stream: closed by the agent without a goodbye; what was acknowledged is stored"),
        How::kGracefully);
  }
  Advance(lock);
}

void IngestStream::OnWriteDone(bool ok) {
  MutexLock lock(mutex_);
  writing_ = false;
  STATCOLLECT_FAILPOINT("ack.sent");
  if (!ok) EndLocked(Status(Code::kCancelled, "stream: the agent is gone"), How::kAtOnce);
  Advance(lock);
}

void IngestStream::OnCancel() {
  End(Status(Code::kCancelled, "stream: cancelled by the agent"), How::kAtOnce);
}

void IngestStream::EndStream(const Status& why) { End(why, How::kAtOnce); }

void IngestStream::RecordSteps(const std::string& steps) {
  MutexLock lock(mutex_);
  steps_due_ = steps;
  Advance(lock);
}

void IngestStream::Capture(const CaptureRequest& request) {
  MutexLock lock(mutex_);
  captures_due_.push_back(request);
  Advance(lock);
}

void IngestStream::RecordFull(const FullSteps& steps) {
  MutexLock lock(mutex_);
  full_due_.push_back(steps);
  Advance(lock);
}

void IngestStream::Drain() {
  MutexLock lock(mutex_);
  if (phase_ == Phase::kLeaving) return;  // ends by itself when the goodbye is durable
  EndLocked(
      Status(Code::kUnavailable, "stream: the collector is shutting down; connect again later"),
      How::kGracefully);
  Advance(lock);
}

void IngestStream::CheckHello(std::chrono::steady_clock::time_point now,
                              std::chrono::milliseconds timeout) {
  MutexLock lock(mutex_);
  if (phase_ != Phase::kAwaitingHello || now - opened_ < timeout) return;
  EndLocked(
      Status(Code::kDeadlineExceeded, "stream: no hello within " + std::to_string(timeout.count()) +
                                          " ms of opening it; expected one first; connect again"),
      How::kAtOnce);
  Advance(lock);
}

void IngestStream::TakeHello(const v1::Hello& hello) {
  auto info = FromWire(hello);
  if (!info.ok()) return End(info.status(), How::kAtOnce);
  if ((hello.copy() != 0) != (of_ == StreamOf::kCopy))
    return End(OutOfOrder(of_ == StreamOf::kCopy ? "no `copy` in the hello" : "`copy` in the hello",
                          "it in Ingest.Copy, and only there"),
               How::kAtOnce);
  info->run = QualifiedRun(project_, info->run);
  {
    MutexLock lock(mutex_);
    phase_ = Phase::kAdmitting;
    late_ = hello.late();
  }
  const auto late_from = hello.late() ? std::optional(hello.first_unacked_seq()) : std::nullopt;
  context_.admit(info->run, info->rank,
                 [self = shared_from_this(), info = *info, late_from, copy = hello.copy()] {
                   self->Admit(info, late_from, copy);
                 });
}

Status IngestStream::CheckQuota() {
  return context_.quotas == nullptr ? Status::Ok() : context_.quotas->Admit(project_);
}

void IngestStream::Admit(const SessionInfo& info, std::optional<std::uint64_t> late_from,
                         std::uint32_t copy) {
  {
    MutexLock lock(mutex_);
    if (end_) return;
  }
  if (Status refusal = context_.committer.Admission(info.rank); !refusal.ok())
    return End(refusal, How::kAtOnce);
  if (Status refusal = CheckQuota(); !refusal.ok()) return End(refusal, How::kAtOnce);
  STATCOLLECT_FAILPOINT("admission.before");
  auto admission = copy != 0 ? context_.registry.OpenCopy(info, copy, shared_from_this())
                             : context_.registry.Open(info, shared_from_this(), late_from);
  STATCOLLECT_FAILPOINT("admission.decided");
  if (!admission.ok()) return End(admission.status(), How::kAtOnce);
  auto session = IngestSession::Load(context_.reader, admission->attempt.id, admission->meta,
                                     context_.definitions);
  if (!session.ok()) {
    context_.registry.Close(admission->attempt.id, info.rank, this);
    return End(session.status(), How::kAtOnce);
  }
  Welcome(*std::move(admission), *std::move(session));
}

void IngestStream::Welcome(Admission admission, std::unique_ptr<IngestSession> session) {
  const AttemptId attempt = admission.attempt.id;
  MutexLock lock(mutex_);
  if (end_) {
    lock.unlock();
    return context_.registry.Close(attempt, admission.meta.info.rank, this);
  }
  phase_ = Phase::kOpen;
  attempt_ = std::move(admission.attempt);
  rank_ = admission.meta.info.rank;
  durable_seq_ = admission.meta.durable_seq;
  if (!steps_due_) steps_due_ = std::move(admission.steps);
  // Agents ignore repeated requests.
  captures_due_.insert(captures_due_.begin(), admission.captures.begin(), admission.captures.end());
  if (admission.full) full_due_.push_front(*admission.full);
  lane_ = std::move(admission.lane);
  session_ = std::move(session);
  activations_known_ = static_cast<std::uint32_t>(session_->activations().size());
  layouts_known_ = static_cast<std::uint32_t>(session_->layouts().size());
  writer_ = context_.writer.NewWriter(attempt, rank_);
  welcome_due_ = true;
  context_.counters.streams.fetch_add(1, std::memory_order_relaxed);
  Advance(lock);
  ReadNext();
}

void IngestStream::TakeBatch(v1::Batch* wire) {
  const std::size_t bytes = wire->ByteSizeLong();
  auto taken = std::make_shared<v1::Batch>();
  taken->Swap(wire);
  context_.memory.of(lane_->part)
      .Enter(kDecodedPerWireByte * bytes,
             [self = shared_from_this(), taken, bytes](MemoryGate::Share memory) {
               self->DecodeBatch(taken, bytes, std::move(memory));
             });
}

void IngestStream::DecodeBatch(const std::shared_ptr<v1::Batch>& wire, std::size_t wire_bytes,
                               MemoryGate::Share memory) {
  {
    MutexLock lock(mutex_);
    if (end_) return;  // while it waited; the agent has it
  }
  // What was received before it is stored and acknowledged.
  if (Status refusal = CheckQuota(); !refusal.ok()) return End(refusal, How::kGracefully);
  auto batch = FromWire(*wire, session_->layouts());
  wire->Clear();  // not kept while the batch waits for its turn
  if (batch.ok()) memory.Resize(DecodedBytes(*batch));
  auto accepted = batch.ok() ? session_->Accept(*std::move(batch), context_.clock.UnixNanos())
                             : Result<IngestSession::Accepted>(batch.status());
  if (!accepted.ok()) {
    context_.counters.rejected_batches.fetch_add(1, std::memory_order_relaxed);
    return End(accepted.status(), How::kGracefully);
  }
  context_.counters.duplicate_records.fetch_add(accepted->duplicates, std::memory_order_relaxed);
  if (accepted->batch) {
    context_.counters.batches.fetch_add(1, std::memory_order_relaxed);
    context_.counters.bytes.fetch_add(wire_bytes, std::memory_order_relaxed);
    return Submit(*std::move(accepted), std::move(memory), /*goodbye=*/false);
  }
  MutexLock lock(mutex_);
  ack_due_ = true;  // of what is durable: the acknowledgement that the agent missed, if it is
  Advance(lock);
  ReadNext();
}

void IngestStream::TakeGoodbye(const v1::Goodbye& goodbye) {
  {
    MutexLock lock(mutex_);
    phase_ = Phase::kLeaving;
    unused_ = goodbye.counters().unused();
  }
  Submit(session_->Finish(FromWire(goodbye.counters()), context_.clock.UnixNanos()), {},
         /*goodbye=*/true);
}

void IngestStream::Submit(IngestSession::Accepted accepted, MemoryGate::Share memory,
                          bool goodbye) {
  CommitItem item;
  {
    MutexLock lock(mutex_);
    ++in_flight_;
    item.attempt = attempt_->id;
    item.rank = rank_;
  }
  item.lane = lane_;
  if (accepted.batch) {
    item.records = accepted.batch->records();
    item.prepared = writer_->Prepare(*accepted.batch);
  }
  item.meta = std::move(accepted.meta);
  item.bytes = memory.bytes();
  std::vector<FullSteps> proposed;
  if (accepted.batch && of_ == StreamOf::kAgent)
    proposed = ProposedFullSteps(accepted.batch->events);
  auto committed = Announcement(accepted.batch, goodbye);
  const Tally tally{.seq = item.meta.durable_seq,
                    .records = item.records,
                    .dropped = of_ == StreamOf::kAgent ? accepted.dropped : 0,
                    .goodbye = goodbye};
  auto held = std::make_shared<MemoryGate::Share>(std::move(memory));
  item.done = [self = shared_from_this(), tally, committed, attempt = item.attempt,
               proposed = std::move(proposed), held = std::move(held)](const Status& status) {
    held->Resize(0);
    if (status.ok() && committed != nullptr) self->context_.committed(std::move(*committed));
    for (const FullSteps& steps : proposed) {
      if (status.ok()) self->context_.registry.AnnounceFull(attempt, steps);
    }
    self->OnCommitted(status, tally);
  };
  auto read_next = [self = shared_from_this(), goodbye] {
    if (!goodbye) self->ReadNext();
  };
  if (context_.committer.Submit(std::move(item), read_next)) read_next();
}

// What `committed` receives once the batch is durable; null if `committed` is not set. Of a copy
// nothing: the alarms and whoever follows the run have had it where it was recorded.
std::shared_ptr<CommittedBatch> IngestStream::Announcement(std::optional<RecordBatch>& batch,
                                                           bool goodbye) {
  if (!context_.committed || of_ == StreamOf::kCopy) return nullptr;
  auto committed = std::make_shared<CommittedBatch>();
  MutexLock lock(mutex_);
  committed->attempt = *attempt_;
  committed->rank = rank_;
  committed->goodbye = goodbye;
  if (batch) committed->batch = *std::exchange(batch, std::nullopt);
  StatColumns& stats = committed->batch.stats;
  stats.samples = {};
  stats.sample_count = {};
  committed->batch.captures = {};
  committed->batch.exponents = {};
  committed->batch.tokens = {};
  return committed;
}

void IngestStream::OnCommitted(const Status& status, const Tally& tally) {
  if (status.ok()) {
    context_.counters.records.fetch_add(tally.records, std::memory_order_relaxed);
    context_.counters.agents_dropped.fetch_add(tally.dropped, std::memory_order_relaxed);
  }
  MutexLock lock(mutex_);
  --in_flight_;
  if (!status.ok()) {
    EndLocked(status, How::kAtOnce);
  } else {
    durable_seq_ = std::max(durable_seq_, tally.seq);
    ack_due_ = true;
    if (tally.goodbye) EndLocked(Status::Ok(), How::kGracefully);
  }
  Advance(lock);
}

void IngestStream::ReadNext() {
  MutexLock lock(mutex_);
  if (!end_) transport_->StartRead();
}

void IngestStream::End(const Status& status, How how) {
  MutexLock lock(mutex_);
  EndLocked(status, how);
  Advance(lock);
}

void IngestStream::EndLocked(const Status& status, How how) {
  if (!end_) end_ = status;  // the first reason counts
  end_at_once_ = end_at_once_ || how == How::kAtOnce;
}

void IngestStream::WriteLocked() {
  if (writing_ || finished_ || end_at_once_) return;
  if (welcome_due_) {
    v1::CollectorMessage welcome = MakeWelcome(*attempt_, durable_seq_, context_.writer);
    if (of_ == StreamOf::kCopy || late_) {
      welcome.mutable_welcome()->set_activations(activations_known_);
      welcome.mutable_welcome()->set_layouts(layouts_known_);
    }
    transport_->StartWrite(std::move(welcome));
    welcome_due_ = ack_due_ = false;  // the welcome says the watermark too
    writing_ = true;
  } else if (ack_due_) {
    STATCOLLECT_FAILPOINT("ack.before_send");
    transport_->StartWrite(MakeAck(durable_seq_));
    ack_due_ = false;
    writing_ = true;
  } else if (steps_due_ && phase_ == Phase::kOpen && !end_) {
    transport_->StartWrite(MakeStepsDirective(*steps_due_));
    steps_due_.reset();
    writing_ = true;
  } else if (!captures_due_.empty() && phase_ == Phase::kOpen && !end_) {
    transport_->StartWrite(MakeCaptureDirective(captures_due_.front()));
    captures_due_.pop_front();
    writing_ = true;
  } else if (!full_due_.empty() && phase_ == Phase::kOpen && !end_) {
    transport_->StartWrite(MakeFullDirective(full_due_.front()));
    full_due_.pop_front();
    writing_ = true;
  }
}

// Releases a lock that it was given, which the analysis cannot see.
void IngestStream::Advance(MutexLock& lock) STATCOLLECT_NO_THREAD_SAFETY_ANALYSIS {
  WriteLocked();
  const bool settled = end_at_once_ || (in_flight_ == 0 && !ack_due_ && !welcome_due_);
  if (!end_ || finished_ || writing_ || !settled) return lock.unlock();
  finished_ = true;
  const Status status = *end_;
  const std::optional<AttemptMeta> attempt = attempt_;
  const bool unused = unused_ && status.ok();
  lock.unlock();
  // First, so that an agent that has been answered finds its stream closed.
  if (attempt) context_.registry.Close(attempt->id, rank_, this);
  if (attempt && unused) {
    context_.admit(attempt->run, rank_, [self = shared_from_this(), attempt = *attempt] {
      self->context_.registry.RemoveUnused(attempt);
    });
  }
  transport_->Finish(status);
}

}  // namespace statcollect
