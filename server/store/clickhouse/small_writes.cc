#include "server/store/clickhouse/small_writes.h"

#include <cstddef>

#include "server/store/clickhouse/schema.h"

namespace statcollect {

Status SmallWrites::Write(AttemptId attempt, const std::string& attempted, const std::string& rows,
                          const std::string& token) {
  Waiting mine{
      .attempt = attempt, .attempted = attempted, .rows = rows, .token = token, .status = {}};
  MutexLock lock(mutex_);
  waiting_.push_back(&mine);
  for (;;) {
    changed_.wait(mutex_, [&]() STATCOLLECT_REQUIRES(mutex_) { return mine.done || !inserting_; });
    if (mine.done) return mine.status;
    inserting_ = true;
    const std::vector<Waiting*> group = TakeLocked();
    lock.unlock();
    const Status inserted = Insert(group);
    lock.lock();
    for (Waiting* const write : group) {
      write->status = inserted;
      write->done = true;
    }
    inserting_ = false;
    changed_.notify_all();
  }
}

std::vector<SmallWrites::Waiting*> SmallWrites::TakeLocked() {
  const AttemptId attempt = waiting_.front()->attempt;
  std::vector<Waiting*> group;
  std::deque<Waiting*> later;
  std::size_t bytes = 0;
  for (Waiting* const write : waiting_) {
    const bool fits = group.empty() || bytes + write->rows.size() <= kInsertBytesMax;
    if (write->attempt != attempt || !fits) {
      later.push_back(write);
      continue;
    }
    bytes += write->rows.size();
    group.push_back(write);
  }
  waiting_.swap(later);
  return group;
}

Status SmallWrites::Insert(const std::vector<Waiting*>& group) {
  const Waiting& first = *group.front();
  if (group.size() == 1)
    return engine_.Insert(first.attempted, RecordsInto(engine_), first.rows, first.token);
  std::string rows, token;
  for (const Waiting* const write : group) {
    rows += write->rows;
    token += (token.empty() ? "" : "+") + write->token;
  }
  const std::string others =
      std::to_string(group.size() - 1) + " more of attempt " + std::to_string(first.attempt);
  return engine_.Insert(first.attempted + " and " + others, RecordsInto(engine_), rows, token);
}

}  // namespace statcollect
