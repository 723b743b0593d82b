#include "server/ingest/committer.h"

#include <algorithm>

#include "server/store/store.h"

namespace statcollect {

Committer::Committer(FleetStore& store, const Clock& clock, const CommitterOptions& options)
    : store_(store) {
  CommitterOptions each = options;
  each.queue_bytes_max = options.queue_bytes_max / store.parts();
  for (std::size_t part = 0; part < store.parts(); ++part)
    queues_.push_back(std::make_unique<CommitQueue>(store.part(part), clock, each));
}

std::shared_ptr<CommitLane> Committer::NewLane(std::uint32_t rank) const {
  return std::make_shared<CommitLane>(CommitLane{.part = store_.PartOf(rank), .failure = {}});
}

bool Committer::Submit(CommitItem item, std::function<void()> accepted) {
  CommitQueue& queue = *queues_[item.lane->part];
  return queue.Submit(std::move(item), std::move(accepted));
}

Status Committer::Admission() {
  Status first;
  for (const auto& queue : queues_) {
    Status found = queue->Admission();
    if (first.ok()) first = std::move(found);
  }
  return first;
}

Status Committer::Refusal() {
  for (const auto& queue : queues_) {
    if (Status refusal = queue->Refusal(); !refusal.ok()) return refusal;
  }
  return Status::Ok();
}

void Committer::Drain() {
  for (const auto& queue : queues_) queue->BeginDrain();
  for (const auto& queue : queues_) queue->Drain();
}

CommitBacklog Committer::Backlog() {
  CommitBacklog all;
  for (const auto& queue : queues_) {
    const CommitBacklog backlog = queue->Backlog();
    all.records += backlog.records;
    all.bytes += backlog.bytes;
    all.oldest = std::max(all.oldest, backlog.oldest);
  }
  return all;
}

std::uint64_t Committer::commits() const {
  std::uint64_t all = 0;
  for (const auto& queue : queues_) all += queue->commits();
  return all;
}

}  // namespace statcollect
