#include "server/alarms/batch_queue.h"

#include <chrono>
#include <utility>

namespace statcollect::alarms {
namespace {

constexpr std::chrono::milliseconds kWait{50};
constexpr std::size_t kRecordBytes = 160;  // of statistics without the sketch, in the queue
constexpr std::size_t kItemBytes = 512;
constexpr std::size_t kItemsMax = 100'000;

}  // namespace

BatchQueue::~BatchQueue() {
  for (auto left = TakeAll(); left != nullptr;) left = std::move(left->next);  // not recursively
}

std::size_t BatchQueue::Push(CommittedBatch batch) {
  auto item = std::make_unique<Item>();
  item->batch = std::move(batch);
  StatColumns& stats = item->batch.batch.stats;
  const std::size_t records = with_stats_ ? stats.size() : 0;
  const std::size_t queued = bytes_.load(std::memory_order_relaxed);
  if (items_.load(std::memory_order_relaxed) >= kItemsMax) return 0;
  const auto bytes_of = [](const StatColumns& columns) {
    return columns.size() * kRecordBytes + columns.sketch.size() * sizeof(double);
  };
  const bool gap = records > 0 && queued > 0 && queued + bytes_of(stats) > bytes_max_;
  item->gap = gap;
  if (gap || records == 0) stats = {};
  item->bytes = kItemBytes + bytes_of(stats);
  bytes_.fetch_add(item->bytes, std::memory_order_relaxed);
  items_.fetch_add(1, std::memory_order_relaxed);
  Item* const added = item.release();
  Item* before = newest_.load(std::memory_order_relaxed);
  do {
    (void)added->next.release();
    added->next.reset(before);
  } while (!newest_.compare_exchange_weak(before, added, std::memory_order_acq_rel));
  Wake();
  return gap ? records : 0;
}

void BatchQueue::Wait(const std::atomic<bool>& stopping) {
  Mutex waiting;  // guards nothing: a condition variable needs one
  MutexLock lock(waiting);
  work_.wait_for(waiting, kWait, [&] { return newest_.load() != nullptr || stopping; });
}

std::unique_ptr<BatchQueue::Item> BatchQueue::TakeAll() {
  std::unique_ptr<Item> newest(newest_.exchange(nullptr, std::memory_order_acq_rel)), oldest;
  while (newest != nullptr) {
    std::unique_ptr<Item> before = std::move(newest->next);
    newest->next = std::move(oldest);
    oldest = std::move(newest);
    newest = std::move(before);
  }
  return oldest;
}

void BatchQueue::Done(const Item& item) {
  bytes_ -= item.bytes;
  --items_;
}

}  // namespace statcollect::alarms
