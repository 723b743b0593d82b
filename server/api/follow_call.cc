#include "server/api/follow_call.h"

#include <functional>
#include <string>
#include <utility>

#include "common/project.h"
#include "server/api/calls.h"
#include "server/api/convert.h"

namespace statcollect::api {
namespace {

constexpr int kRowsAMessage = 500;

// A hash of the whole event; the listed and the live copy of an event have the same.
std::uint64_t Identity(const query::EventRow& row) {
  std::string text = std::to_string(row.attempt) + " " + std::to_string(row.rank) + " " +
                     std::to_string(row.step) + " " + std::to_string(row.unix_nanos) + " " + row.kind + '\0' +
                     row.text;
  for (const auto& [key, value] : row.fields) text += '\0' + key + '\0' + value;
  return std::hash<std::string>()(text);
}

Status Stopping() { return {Code::kUnavailable, "follow events: the collector is shutting down"}; }

}  // namespace

grpc::ServerWriteReactor<v1::FollowEventsResponse>* FollowCall::Start(
    std::shared_ptr<const query::QueryEngine> engine, const std::string& project, WorkerPool& pool,
    EventFeed* feed, Result<query::EventsRequest> wanted) {
  std::shared_ptr<FollowCall> call(new FollowCall(feed, std::move(wanted)));
  call->self_ = call;
  if (!call->wanted_.ok()) {
    call->End(call->wanted_.status());
    return call.get();
  }
  // First of all: what comes while the list is read is not lost.
  const std::uint64_t id = feed->Follow(QualifiedRun(project, call->wanted_->run),
                                        [weak = std::weak_ptr(call)](const FeedEvent* event) {
                                          if (const auto following = weak.lock()) following->OnEvent(event);
                                        });
  {
    MutexLock lock(call->mutex_);
    call->following_ = id;
  }
  auto item = std::make_shared<WorkItem>(
      [call, engine = std::move(engine)](const WorkItem& running) {
        const Status status = Guarded([&] { return call->SendListed(*engine, running.stop()); });
        if (!status.ok()) call->End(status);
      },
      [call](const Status& why) { call->End(why); });
  if (const Status full = pool.Submit(std::move(item)); !full.ok()) call->End(full);
  return call.get();
}

Status FollowCall::SendListed(const query::QueryEngine& engine, const std::stop_token& stop) {
  auto rows = engine.ListEvents(*wanted_, stop);
  if (!rows.ok() && rows.status().code() != Code::kNotFound) return rows.status();
  MutexLock lock(mutex_);
  if (rows.ok()) {
    for (const query::EventRow& row : *rows) QueueLocked(row);
  }
  for (const query::EventRow& row : early_) QueueLocked(row);
  early_.clear();
  sent_.clear();
  listed_ = true;
  WriteLocked();
  return Status::Ok();
}

void FollowCall::OnEvent(const FeedEvent* told) {
  if (told == nullptr) {
    MutexLock lock(mutex_);
    if (!end_ && waiting_.empty()) end_ = Stopping();
    closing_ = true;
    return WriteLocked();
  }
  const FeedEvent& event = *told;
  if (!wanted_->Wants(event.rank, event.event)) return;
  query::EventRow row{.run = wanted_->run,
                      .rank = event.rank,
                      .step = event.event.step,
                      .kind = event.event.kind,
                      .text = event.event.text,
                      .unix_nanos = event.event.unix_nanos,
                      .fields = event.event.fields,
                      .from_collector = event.event.from_collector,
                      .attempt = event.attempt};
  MutexLock lock(mutex_);
  if (end_) return;
  if (waiting_.size() + early_.size() >= kWaitingMax) {
    end_ = Status(Code::kResourceExhausted,
                  "follow events: " + std::to_string(kWaitingMax) + " events were not taken; follow again");
  } else if (!listed_) {
    early_.push_back(std::move(row));
  } else {
    ToWire(row, waiting_.emplace_back());
  }
  WriteLocked();
}

void FollowCall::QueueLocked(const query::EventRow& row) {
  if (sent_.insert(Identity(row)).second) ToWire(row, waiting_.emplace_back());
}

void FollowCall::End(const Status& status) {
  Unfollow();
  MutexLock lock(mutex_);
  if (!end_) end_ = status;
  WriteLocked();
}

void FollowCall::WriteLocked() {
  if (writing_ || finished_) return;
  if (closing_ && waiting_.empty() && !end_) end_ = Stopping();
  if (end_) {
    finished_ = true;
    return Finish(ToGrpc(*end_));
  }
  const bool tell_caught_up = listed_ && !told_caught_up_ && waiting_.size() <= kRowsAMessage;
  if (waiting_.empty() && !tell_caught_up) return;
  message_.Clear();
  for (int n = 0; n < kRowsAMessage && !waiting_.empty(); ++n) {
    *message_.add_records() = std::move(waiting_.front());
    waiting_.pop_front();
  }
  if (tell_caught_up) message_.set_caught_up(told_caught_up_ = true);
  writing_ = true;
  StartWrite(&message_);
}

void FollowCall::OnWriteDone(bool /*ok*/) {  // a failed write means a lost client: OnCancel follows
  MutexLock lock(mutex_);
  writing_ = false;
  WriteLocked();
}

void FollowCall::OnCancel() { End({Code::kCancelled, "follow events: cancelled"}); }

void FollowCall::OnDone() {
  Unfollow();
  const auto last_share = std::move(self_);
}

void FollowCall::Unfollow() {
  std::optional<std::uint64_t> id;
  {
    MutexLock lock(mutex_);
    id = std::exchange(following_, std::nullopt);
  }
  if (id) feed_->Unfollow(*id);
}

}  // namespace statcollect::api
