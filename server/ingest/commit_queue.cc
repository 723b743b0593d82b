#include "server/ingest/commit_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/byte_size.h"
#include "common/failpoint.h"

namespace statcollect {
namespace {

constexpr std::chrono::seconds kDiskCheckInterval{1};

Status Draining() {
  return Status(Code::kUnavailable, "store records: the collector is shutting down; try again");
}

// The status that agents get while the store accepts no writes. If the disk is full, they keep
// trying, and the store recovers.
Status ReadOnly(const Status& failure) {
  if (failure.code() == Code::kResourceExhausted)
    return Status(Code::kResourceExhausted, "store records: " + failure.message());
  if (failure.code() == Code::kAborted)
    return Status(Code::kUnavailable, failure.message());  // it passes
  return Status(Code::kUnavailable,
                "store records: writing failed: " + failure.message() +
                    "; no more records are accepted; repair the disk and restart the collector");
}

std::function<void()> Bind(CommitItem item, Status status) {
  return [done = std::move(item.done), status = std::move(status)] { done(status); };
}

}  // namespace

CommitQueue::CommitQueue(RecordWriter& store, const Clock& clock, const CommitterOptions& options)
    : store_(store), clock_(clock), options_(options), thread_([this] { Run(); }) {}

CommitQueue::~CommitQueue() { Drain(); }

bool CommitQueue::Submit(CommitItem item, std::function<void()> accepted) {
  Status refusal;
  item.since = clock_.Now();
  {
    MutexLock lock(mutex_);
    refusal = RefusalLocked(*item.lane);
    if (refusal.ok()) {
      if (!waiting_.empty() || !HasRoomLocked(item.bytes)) {
        waiting_.push_back({std::move(item), std::move(accepted)});
        return false;
      }
      bytes_ += item.bytes;
      queue_.push_back(std::move(item));
      work_.notify_one();
      return true;
    }
    item.lane->failure = refusal;
  }
  item.done(refusal);
  return false;
}

void CommitQueue::Abandon(const std::shared_ptr<CommitLane>& lane, const Status& why) {
  MutexLock lock(mutex_);
  if (lane->failure.ok()) lane->failure = why;
  append_done_.wait(mutex_, [&]() STATCOLLECT_REQUIRES(mutex_) { return !lane->appending; });
}

Status CommitQueue::Admission() {
  {
    MutexLock lock(mutex_);
    if (draining_) return Draining();
  }
  if (Status disk = CheckDisk(); !disk.ok()) return disk;
  const Status writable = store_.Recover();
  MutexLock lock(mutex_);
  read_only_ = writable.ok() ? Status::Ok() : ReadOnly(writable);
  return RefusalLocked({});
}

Status CommitQueue::Refusal() {
  MutexLock lock(mutex_);
  return RefusalLocked({});
}

void CommitQueue::BeginDrain() {
  MutexLock lock(mutex_);
  draining_ = true;
  work_.notify_one();
}

void CommitQueue::Drain() {
  BeginDrain();
  MutexLock lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

void CommitQueue::Run() {
  for (;;) {
    Group group = TakeGroup();
    if (group.empty()) return;
    CommitGroup(std::move(group));
  }
}

CommitQueue::Group CommitQueue::TakeGroup() {
  MutexLock lock(mutex_);
  work_.wait(mutex_,
             [this]() STATCOLLECT_REQUIRES(mutex_) { return !queue_.empty() || draining_; });
  Group group(std::make_move_iterator(queue_.begin()), std::make_move_iterator(queue_.end()));
  queue_.clear();
  for (const CommitItem& item : group) {
    group_records_ += item.records;
    group_since_ = std::min(group_since_.value_or(item.since), item.since);
  }
  return group;
}

CommitBacklog CommitQueue::Backlog() {
  MutexLock lock(mutex_);
  CommitBacklog backlog{.records = group_records_, .bytes = bytes_};
  auto since = group_since_;
  const auto add = [&](const CommitItem& item) {
    backlog.records += item.records;
    since = std::min(since.value_or(item.since), item.since);
  };
  for (const CommitItem& item : queue_) add(item);
  for (const Waiting& waiting : waiting_) {
    add(waiting.item);
    backlog.bytes += waiting.item.bytes;
  }
  if (since)
    backlog.oldest = std::chrono::duration_cast<std::chrono::milliseconds>(clock_.Now() - *since);
  return backlog;
}

void CommitQueue::CommitGroup(Group group) {
  Callbacks callbacks;
  Group kept = TakeWritable(group, CheckDisk(), &callbacks);
  Status status;
  if (!kept.empty()) {
    std::vector<AppendItem> items;
    items.reserve(kept.size());
    for (const CommitItem& item : kept) {
      items.push_back({.attempt = item.attempt,
                       .rank = item.rank,
                       .meta = &item.meta,
                       .prepared = item.prepared.get()});
    }
    STATCOLLECT_FAILPOINT("commit.before_write");
    status = store_.Append(items);
    STATCOLLECT_FAILPOINT("commit.after_write");
    if (status.ok()) commits_.fetch_add(1, std::memory_order_relaxed);
  }
  FinishGroup(kept, status, &callbacks);
  for (const auto& callback : callbacks) callback();
  STATCOLLECT_FAILPOINT("commit.after_acks");
}

CommitQueue::Group CommitQueue::TakeWritable(Group& group, const Status& refusal,
                                             Callbacks* callbacks) {
  Group kept;
  MutexLock lock(mutex_);
  for (CommitItem& item : group) {
    CommitLane& lane = *item.lane;
    if (lane.failure.ok()) lane.failure = read_only_.ok() ? refusal : read_only_;
    if (lane.failure.ok()) {
      lane.appending = true;
      kept.push_back(std::move(item));
    } else {
      bytes_ -= item.bytes;
      callbacks->push_back(Bind(std::move(item), lane.failure));
    }
  }
  return kept;
}

void CommitQueue::FinishGroup(Group& group, const Status& status, Callbacks* callbacks) {
  MutexLock lock(mutex_);
  group_records_ = 0;
  group_since_.reset();
  const Status failure = status.ok() ? Status::Ok() : ReadOnly(status);
  if (!failure.ok()) read_only_ = failure;
  for (CommitItem& item : group) {
    item.lane->appending = false;
    bytes_ -= item.bytes;
    if (!failure.ok() && item.lane->failure.ok()) item.lane->failure = failure;
    callbacks->push_back(Bind(std::move(item), failure));
  }
  AdmitWaitingLocked(callbacks);
  append_done_.notify_all();
}

Status CommitQueue::RefusalLocked(const CommitLane& lane) const {
  if (!lane.failure.ok()) return lane.failure;
  if (!read_only_.ok()) return read_only_;
  return draining_ ? Draining() : Status::Ok();
}

bool CommitQueue::HasRoomLocked(std::size_t bytes) const {
  return bytes_ == 0 || bytes_ + bytes <= options_.queue_bytes_max;
}

void CommitQueue::AdmitWaitingLocked(Callbacks* callbacks) {
  while (!waiting_.empty() && HasRoomLocked(waiting_.front().item.bytes)) {
    Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    bytes_ += next.item.bytes;
    queue_.push_back(std::move(next.item));
    callbacks->push_back(std::move(next.accepted));
  }
}

Status CommitQueue::CheckDisk() {
  MutexLock lock(disk_mutex_);
  const auto now = clock_.Now();
  if (disk_checked_ && now - *disk_checked_ < kDiskCheckInterval) return disk_;
  disk_checked_ = now;
  const auto usage = store_.Usage();
  // If the file system's usage is unknown, nothing is refused; should writes fail as well, Append
  // reports it. Unflushed data in memory will need space, too.
  const std::uint64_t needed =
      options_.disk_free_bytes_min + (usage.ok() ? usage->unflushed_bytes : 0);
  if (!usage.ok() || !usage->disk_known || usage->disk_free_bytes >= needed)
    return disk_ = Status::Ok();
  return disk_ = Status(Code::kResourceExhausted,
                        "store records: disk nearly full: " + Mebibytes(usage->disk_free_bytes) +
                            " free; at least " + Mebibytes(needed) +
                            " are needed; free space or remove runs (statctl rm); the collector "
                            "then continues by itself");
}

}  // namespace statcollect
