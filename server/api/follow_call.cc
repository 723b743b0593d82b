#include "server/api/follow_call.h"

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "common/project.h"
#include "server/api/calls.h"
#include "server/query/answers/events.h"

namespace statcollect::api {
namespace {

constexpr int kRowsAMessage = 500;

// A hash of the whole event; the listed and the live copy of an event have the same.
std::uint64_t Identity(const v1::EventRow& row) {
  std::string text = std::to_string(row.attempt()) + " " + std::to_string(row.rank()) + " " +
                     std::to_string(row.step()) + " " + std::to_string(row.unix_nanos()) + " " +
                     row.kind() + '\0' + row.text();
  const std::map<std::string, std::string> fields(row.fields().begin(),
                                                  row.fields().end());  // in order
  for (const auto& [key, value] : fields) text += '\0' + key + '\0' + value;
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
                                          if (const auto following = weak.lock())
                                            following->OnEvent(event);
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
  v1::ListEventsResponse listed;
  const Status read = engine.Ask(query::ListEvents, *wanted_, listed, stop);
  if (!read.ok() && read.code() != Code::kNotFound) return read;
  MutexLock lock(mutex_);
  if (read.ok()) {
    for (v1::EventRow& row : *listed.mutable_records()) QueueLocked(std::move(row));
  }
  for (v1::EventRow& row : early_) QueueLocked(std::move(row));
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
  v1::EventRow row;
  query::FillEvent(wanted_->run, event.attempt, event.rank, event.event, row);
  MutexLock lock(mutex_);
  if (end_) return;
  if (waiting_.size() + early_.size() >= kWaitingMax) {
    end_ = Status(Code::kResourceExhausted, "follow events: " + std::to_string(kWaitingMax) +
                                                " events were not taken; follow again");
  } else if (!listed_) {
    early_.push_back(std::move(row));
  } else {
    waiting_.push_back(std::move(row));
  }
  WriteLocked();
}

void FollowCall::QueueLocked(v1::EventRow row) {
  if (sent_.insert(Identity(row)).second) waiting_.push_back(std::move(row));
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
