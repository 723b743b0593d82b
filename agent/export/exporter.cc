#include "agent/export/exporter.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "agent/export/repair.h"
#include "agent/export/wire.h"
#include "agent/export/worker_thread.h"

namespace statcollect {
namespace {

std::unique_ptr<SpillFile> MakeFile(const SpillOptions& options, const SessionInfo& session) {
  if (options.directory.empty()) return nullptr;
  return std::make_unique<SpillFile>(options, session.rank, session.session,
                                     wire::EncodeHello(session, 1));
}

// Fatal at startup, where the user can correct it; transient later (a proxy, for example).
bool IsAccessRefused(Code code) {
  return code == Code::kPermissionDenied || code == Code::kUnauthenticated ||
         code == Code::kUnimplemented;
}

}  // namespace

bool IsFatal(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
    case Code::kAlreadyExists:
    case Code::kFailedPrecondition:
    case Code::kAborted:  // fenced by a newer session of this rank
      return true;
    default:
      return false;
  }
}

Exporter::Exporter(SessionInfo session, ExporterOptions options, Transport* transport,
                   Ledger* ledger, LogLimiter* log, std::function<void()> on_room)
    : session_(std::move(session)),
      options_(std::move(options)),
      transport_(transport),
      ledger_(ledger),
      log_(log),
      on_room_(std::move(on_room)),
      file_(MakeFile(options_.spill, session_)),
      writer_(file_.get(), log_, options_.on_event),
      backoff_(options_.backoff, options_.seed) {}

Exporter::~Exporter() { (void)Finish(TimePoint::min()); }

void Exporter::Start() {
  thread_ = StartWorker("statagent-send", [this] { Run(); });
}

Status Exporter::WaitForWelcome(TimePoint deadline, bool patient) {
  MutexLock lock(mutex_);
  changed_.wait_until(mutex_, deadline, [&]() STATCOLLECT_REQUIRES(mutex_) {
    return EverWelcomedLocked() || !fatal_.ok() || (!patient && last_failure_);
  });
  quiet_ = false;
  if (EverWelcomedLocked()) return Status::Ok();
  if (!fatal_.ok()) return fatal_;
  if (last_failure_) return *last_failure_;
  return Explain(Status(Code::kUnavailable, "no answer yet"));
}

bool Exporter::HasRoom() {
  MutexLock lock(mutex_);
  if (!fatal_.ok() || spill_.held() != nullptr) return false;
  if (CanPlaceLocked()) return true;
  if (file_ == nullptr || writer_.Resting()) return false;
  std::size_t bytes = window_.BatchBytesMax();
  if (spill_.records() == 0) {
    for (const auto& entry : window_.BehindFile())
      bytes += entry->bytes.size() + spill::kFrameHeadBytes;
  }
  lock.unlock();
  return writer_.HasRoom(bytes);
}

std::size_t Exporter::BatchBytesMax() {
  MutexLock lock(mutex_);
  return window_.BatchBytesMax();
}

std::optional<bool> Exporter::TakesCaptures() {
  MutexLock lock(mutex_);
  return takes_captures_;
}

void Exporter::Submit(RecordBatch batch, std::size_t /*bytes*/) {
  EncodedBatch encoded = Encode(batch);
  MutexLock lock(mutex_);
  if (!fatal_.ok()) {
    ledger_->Drop(kDropRejected, encoded.records);
    return;
  }
  if (!batch.steps.empty()) last_step_ = std::max(last_step_, batch.steps.back().step);
  added_ = encoded.after;
  if (file_ == nullptr || CanPlaceLocked()) {
    window_.Add(std::move(encoded));
    changed_.notify_all();
    return;
  }
  spill_.Hold(std::move(encoded));
  lock.unlock();
  PlaceHeld();
}

void Exporter::PlaceHeld() {
  SpillQueue::Batch held;
  {
    MutexLock lock(mutex_);
    held = spill_.held();
    if (held == nullptr) return;
    if (CanPlaceLocked()) {
      window_.Add(spill_.TakeHeld());
      changed_.notify_all();
      return;
    }
  }
  if (writer_.Resting() || !file_->Fits(held->bytes.size())) return;
  const bool is_new = !file_->exists();
  if (const Status appended = AppendToFile(held); !appended.ok()) {
    writer_.TellFailed(appended);
  } else if (is_new) {
    writer_.TellNew(options_.collector);
  }
}

Status Exporter::AppendToFile(const SpillQueue::Batch& last) {
  std::vector<SendWindow::Entry> behind;
  std::uint64_t first_seq = 0;
  {
    MutexLock lock(mutex_);
    if (spill_.records() == 0) behind = window_.BehindFile();
    first_seq = behind.empty() ? window_.next_seq() : behind.front()->first_seq;
  }
  std::vector<SpillQueue::Batch> batches(behind.begin(), behind.end());
  if (last != nullptr) batches.push_back(last);
  std::vector<FileSpan> spans;
  const Status appended = writer_.Append(first_seq, batches, &spans);
  MutexLock lock(mutex_);
  for (std::size_t i = 0; i < std::min(spans.size(), behind.size()); ++i)
    behind[i]->file = spans[i];
  if (spans.size() > behind.size()) spill_.MoveToFile(last, spans.back());
  changed_.notify_all();
  return appended;
}

spill::Mark Exporter::MarkLocked() const {
  const EncodedBatch* first = window_.FirstInFile();
  if (first != nullptr) return {.offset = first->file.begin, .seq = first->first_seq};
  return {.offset = spill_.read_at(), .seq = window_.next_seq()};
}

Exporter::TimePoint Exporter::Tend() {
  if (file_ == nullptr) return TimePoint::max();
  PlaceHeld();
  MutexLock lock(mutex_);
  const std::uint64_t marks = spill_.marks_due();
  const bool mark_due = !spill_.marked();
  if (file_->exists() && fatal_.ok()) {  // of a session that failed it stays, for `import spill`
    if (spill_.records() == 0 && !window_.UnackedInFile()) {
      window_.ForgetFile();
      lock.unlock();
      writer_.Remove();
    } else {
      const spill::Mark mark = MarkLocked();
      lock.unlock();
      writer_.Mark(mark, mark_due);
    }
    lock.lock();
  }
  spill_.MarksDone(marks);
  changed_.notify_all();
  return spill_.held() == nullptr
             ? TimePoint::max()
             : std::max(writer_.retry_at(),
                        std::chrono::steady_clock::now() + std::chrono::milliseconds(100));
}

void Exporter::LoadLocked() {
  const std::uint64_t offset = spill_.read_at();
  mutex_.unlock();
  spill::FrameHead frame;
  auto batch = file_->Read(offset, &frame);
  mutex_.lock();
  if (!batch.ok()) return LoseLocked(frame);
  spill_.Pop(*batch);
  window_.Add(*std::move(batch));
}

void Exporter::LoseLocked(const spill::FrameHead& frame) {
  const bool one = frame.records > 0;
  const std::uint64_t lost = spill_.Skip(frame);
  const DefinitionCounts given =
      one ? DefinitionCounts{.activations = frame.activations_after, .layouts = frame.layouts_after}
          : added_;
  for (EncodedBatch& batch : RepairLocked(given, kDropSpillDamaged, lost))
    window_.Add(std::move(batch));
  ledger_->Drop(kDropSpillDamaged, lost);  // last, so that what tells of it is pending before
  log_->Log("spill file " + file_->path() + " is damaged: " + std::to_string(lost) +
            " records are lost and counted as dropped (" + std::string(kDropSpillDamaged) + ")");
}

std::uint64_t Exporter::DropAllLocked(std::string_view cause, std::uint64_t kept) {
  const std::uint64_t lost = window_.Clear() + spill_.Clear() - kept;
  ledger_->Drop(cause, lost);
  return lost;
}

std::uint64_t Exporter::KeepRest() {
  if (file_ == nullptr) return 0;
  MutexLock lock(mutex_);
  const SpillQueue::Batch held = spill_.held();
  if ((window_.empty() && spill_.empty()) || window_.UnackedBeforeFile() || file_->hidden()) {
    lock.unlock();
    file_->Remove();
    return 0;
  }
  lock.unlock();
  const bool whole = AppendToFile(held).ok();
  lock.lock();
  const std::uint64_t kept = window_.UnackedRecords(true) + spill_.records();
  const spill::Mark mark = MarkLocked();
  const bool old_mark_holds = spill_.marked();
  lock.unlock();
  if (kept == 0 || (!file_->Write(mark).ok() && !old_mark_holds)) {
    file_->Remove();
    return 0;
  }
  if (whole) (void)file_->AppendGoodbye(wire::EncodeGoodbye(ledger_->Snapshot()));
  file_->Close();
  return kept;
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

std::vector<EncodedBatch> Exporter::RepairLocked(const DefinitionCounts& definitions,
                                                 std::string_view cause, std::uint64_t lost) {
  auto batches =
      MakeRepair(options_.definitions, definitions, {std::string(cause), lost, last_step_});
  ledger_->Produce(batches.size());
  return batches;
}

bool Exporter::Failed() { return !failure().ok(); }

Status Exporter::failure() {
  MutexLock lock(mutex_);
  return fatal_;
}

Exporter::Progress Exporter::progress() {
  MutexLock lock(mutex_);
  Progress progress = progress_;
  if (file_ != nullptr) progress.spilled += spill_.records() + window_.UnackedRecords(true);
  return progress;
}

ExporterState Exporter::state() {
  MutexLock lock(mutex_);
  return state_.now();
}

void Exporter::MoveLocked(ExporterState to) {
  if (const Status moved = state_.Move(to); !moved.ok()) RejectLocked(moved);
  changed_.notify_all();
}

void Exporter::CloseLocked(Closing closing) {
  closing_ = std::max(closing_, closing);
  if (closing_ == Closing::kNow && stream_ != nullptr) stream_->Cancel();
  changed_.notify_all();
}

void Exporter::RejectLocked(const Status& why) {
  rejected_ = why;
  stream_over_ = true;
}

void Exporter::GiveUpLocked() {
  if (file_ != nullptr || stream_ == nullptr || !state_.welcomed() || !say_goodbye_) return;
  CloseLocked(Closing::kGivingUp);
  changed_.wait_for(mutex_, kLastWord,
                    [this]() STATCOLLECT_REQUIRES(mutex_) { return state_.over(); });
}

AgentCounters Exporter::LastCountersLocked() const {
  AgentCounters counters = ledger_->Snapshot();
  if (closing_ != Closing::kGivingUp) return counters;
  const std::uint64_t lost = counters.pending - std::min(counters.pending, window_.SentRecords());
  if (lost > 0) counters.dropped_by_cause[std::string(kDropClosed)] += lost;
  counters.pending -= lost;
  return counters;
}

Status Exporter::Finish(TimePoint deadline, bool goodbye) {
  MutexLock one_at_a_time(finish_mutex_);
  if (!thread_.joinable()) return result_;
  {
    MutexLock lock(mutex_);
    say_goodbye_ = goodbye;
    retry_now_ = true;
    backoff_.Reset();
    CloseLocked(Closing::kDelivering);
    // The batcher tends no more.
    const auto due = [this]() STATCOLLECT_REQUIRES(mutex_) {
      return !spill_.marked() || (spill_.held() != nullptr && CanPlaceLocked());
    };
    while (changed_.wait_until(mutex_, deadline, [&]() STATCOLLECT_REQUIRES(mutex_) {
      return state_.over() || due();
    }) && !state_.over()) {
      lock.unlock();
      (void)Tend();
      lock.lock();
    }
    if (deadline != TimePoint::min()) GiveUpLocked();
    CloseLocked(Closing::kNow);
  }
  ++finished_parts_;
  thread_.join();
  ++finished_parts_;
  const std::uint64_t kept = KeepRest();
  MutexLock lock(mutex_);
  const std::uint64_t lost = DropAllLocked(kDropClosed, kept);
  progress_.spilled = kept;
  if (kept > 0) {
    const std::string where = std::to_string(kept) +
                              " records that the collector does not have are in " + file_->path() +
                              "; send them with: statctl move import spill " + file_->path();
    log_->LogFinal(where);
    result_ = Status(fatal_.ok() ? Code::kDeadlineExceeded : fatal_.code(),
                     fatal_.ok() ? "close: " + where : fatal_.message() + "; " + where);
  } else if (!fatal_.ok()) {
    result_ = fatal_;
  } else if (lost > 0) {
    result_ = Status(Code::kDeadlineExceeded,
                     "close: " + std::to_string(lost) +
                         " records were sent but not acknowledged in time and are counted as "
                         "dropped; give close a longer timeout");
  }
  return result_;
}

void Exporter::Leave() {
  MutexLock lock(mutex_);
  CloseLocked(Closing::kNow);
}

void Exporter::OnWelcome(const Welcome& welcome) {
  SendWindow::Resumed resumed;
  bool other_store = false;
  {
    MutexLock lock(mutex_);
    window_.SetLimits(welcome.limits);
    takes_captures_ = welcome.limits.capture_chunk_bytes_max >= CaptureQueue::kChunkBytes;
    const Result<SendWindow::Resumed> result = window_.Resume(welcome.durable_seq, welcome.store);
    if (!result.ok()) {
      RejectLocked(result.status());
    } else {
      resumed = *result;
      ledger_->Ack(resumed.newly_acked);
      if (resumed.newly_acked > 0) backoff_.Reset();
      ledger_->Regress(resumed.lost, resumed.gone);
      if (resumed.missing > 0) resumed.gone += TellMissingLocked(welcome.store, resumed.missing);
      ledger_->Drop(kDropRegressed,
                    resumed.void_now);  // last, so that what replaces them is pending before
      progress_.lost_after_ack += resumed.lost;
      ++progress_.streams;
      if (state_.now() == ExporterState::kConnecting) MoveLocked(ExporterState::kSending);
      attempt_start_ = welcome.attempt_start_unix_nanos;
      other_store = store_.known() && welcome.store.known() && store_.id != welcome.store.id;
      store_ = welcome.store;
      last_failure_.reset();
    }
    changed_.notify_all();
  }
  if (resumed.lost > 0) {
    log_->LogLoss("the collector at " + options_.collector + " does not have " +
                  std::to_string(resumed.lost) + " records that were acknowledged (" +
                  (other_store ? "its store is a different one now" : "a restored checkpoint?") +
                  "); " + std::to_string(resumed.lost - resumed.gone) + " are sent again; " +
                  std::to_string(resumed.gone) +
                  " no longer exist here and count as dropped (regressed)");
  }
  on_room_();
}

std::uint64_t Exporter::TellMissingLocked(const StoreIdentity& store, std::uint64_t missing) {
  std::uint64_t dropped = 0;
  if (store.known()) {  // the batches that tell of it need numbers
    while (RepairSize(options_.definitions, window_.DefinedBefore(added_)) > window_.RoomBefore())
      dropped += window_.DropFirst();
  }
  auto batches = RepairLocked(window_.DefinedBefore(added_), kDropRegressed, missing + dropped);
  store.known() ? window_.Bridge(std::move(batches), store) : window_.Renumber(std::move(batches));
  ledger_->Drop(kDropRegressed, dropped);
  if (file_ != nullptr) spill_.RequireMark();
  return dropped;
}

void Exporter::OnAck(std::uint64_t durable_seq) {
  {
    MutexLock lock(mutex_);
    const Result<std::uint64_t> acked = window_.Ack(durable_seq);
    if (!acked.ok()) {
      RejectLocked(acked.status());
    } else if (*acked > 0) {
      ledger_->Ack(*acked);
      backoff_.Reset();
    }
    changed_.notify_all();
  }
  on_room_();
}

void Exporter::OnEnd() {
  MutexLock lock(mutex_);
  stream_over_ = true;
  changed_.notify_all();
}

void Exporter::Run() {
  while (HandleEnd(RunStream())) WaitBackoff();
}

Status Exporter::RunStream() {
  std::uint64_t first_unacked = 0;
  std::unique_ptr<Stream> stream;
  SessionInfo session = session_;
  {
    MutexLock lock(mutex_);
    if (closing_ == Closing::kNow || (NothingLeftLocked() && !EverWelcomedLocked()))
      return Status::Ok();
    stream = transport_->Open(this);
    stream_ = stream.get();
    stream_over_ = false;
    MoveLocked(ExporterState::kConnecting);
    first_unacked = window_.first_unacked_seq();
    session.attempt_start_unix_nanos = attempt_start_;  // whether a newer launch has the name now
    if (EverWelcomedLocked() && session.if_exists == IfExists::kReplace)
      session.if_exists = IfExists::kError;
  }
  if (stream->SendHello(session, first_unacked)) Pump(stream.get());
  {
    MutexLock lock(mutex_);
    if (closing_ == Closing::kNow || !rejected_.ok()) stream->Cancel();
    stream_ = nullptr;
  }
  return stream->Finish();
}

void Exporter::Pump(Stream* stream) {
  MutexLock lock(mutex_);
  const auto broken = [this]() STATCOLLECT_REQUIRES(mutex_) {
    return closing_ == Closing::kNow || stream_over_;
  };
  const TimePoint welcome_by = std::chrono::steady_clock::now() + options_.welcome_timeout;
  if (!changed_.wait_until(mutex_, welcome_by, [&]() STATCOLLECT_REQUIRES(mutex_) {
        return broken() || state_.welcomed();
      })) {
    stream->Cancel();
    return;
  }
  const auto goodbye_due = [this]() STATCOLLECT_REQUIRES(mutex_) {
    return ThroughLocked() && state_.now() == ExporterState::kSending;
  };
  while (true) {
    changed_.wait(mutex_, [&]() STATCOLLECT_REQUIRES(mutex_) {
      return broken() || goodbye_due() ||
             (!ThroughLocked() && spill_.marked() && (window_.HasUnsent() || CanLoadLocked()));
    });
    if (broken()) return;
    if (goodbye_due()) {
      if (!say_goodbye_) return stream->Cancel();
      MoveLocked(ExporterState::kLeaving);
      AgentCounters counters = LastCountersLocked();
      counters.unused = unused_;
      lock.unlock();
      stream->SendGoodbye(counters);
      lock.lock();
    } else if (CanLoadLocked() && !window_.HasUnsent()) {
      LoadLocked();
    } else if (const auto batch = window_.TakeNext()) {
      lock.unlock();
      const bool sent = stream->Send(*batch);
      lock.lock();
      if (!sent) return;
    }
  }
}

bool Exporter::HandleEnd(const Status& end) {
  std::string text;
  bool quiet = false;
  {
    MutexLock lock(mutex_);
    if (ThroughLocked()) {
      MoveLocked(ExporterState::kEnded);
      return false;
    }
    quiet = quiet_;
    const bool starting = quiet && !EverWelcomedLocked();
    if (rejected_.ok() && !IsFatal(end.code()) && !(starting && IsAccessRefused(end.code()))) {
      last_failure_ = Explain(end);
      text = (state_.welcomed() ? "lost the stream: " : "cannot ") + last_failure_->message();
      MoveLocked(ExporterState::kWaiting);
    }
  }
  if (text.empty()) {
    Fail(end);
    return false;
  }
  if (!quiet) log_->Log(text + "; training continues, and the agent keeps trying", options_.away);
  return true;
}

void Exporter::Fail(const Status& end) {
  Status fatal;
  bool quiet = false, keep = false;
  {
    MutexLock lock(mutex_);
    quiet = quiet_;
    fatal_ = rejected_.ok() ? end : rejected_;
    fatal = fatal_;
    keep = file_ != nullptr;
    if (!keep) DropAllLocked(kDropRejected);
    MoveLocked(ExporterState::kFailed);
  }
  if (!quiet) {
    const std::string text = "the collector at " + options_.collector +
                             " ended this session: " + fatal.message() +
                             "; training continues, but nothing more is recorded";
    keep ? log_->Log(text) : log_->LogFinal(text);  // the end of a file that is kept is said last
  }
  on_room_();
}

void Exporter::WaitBackoff() {
  MutexLock lock(mutex_);
  const auto until = std::chrono::steady_clock::now() + backoff_.Next();
  changed_.wait_until(mutex_, until, [this]() STATCOLLECT_REQUIRES(mutex_) {
    return retry_now_ || ThroughLocked();
  });
  retry_now_ = false;
}

Status Exporter::Explain(const Status& end) const {
  if (end.code() == Code::kUnauthenticated || end.code() == Code::kPermissionDenied)
    return Status(end.code(), "use the collector at " + options_.collector + ": " + end.message());
  const std::string found = end.ok() ? "the collector closed the stream" : end.message();
  return Status(
      end.ok() ? Code::kUnavailable : end.code(),
      "reach the collector at " + options_.collector + ": " + found +
          "; expected statcollectord listening there; start it, or set a different address "
          "(STATAGENT_COLLECTOR)");
}

}  // namespace statcollect
