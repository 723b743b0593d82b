// Makes the streams' items durable: one queue for each part of the store, so that a part that does
// not answer holds up only the ranks that lie in it.
//
// Threads: any may call.
#ifndef STATCOLLECT_SERVER_INGEST_COMMITTER_H_
#define STATCOLLECT_SERVER_INGEST_COMMITTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "server/ingest/commit_queue.h"
#include "server/store/fleet_store.h"

namespace statcollect {

class Committer {
 public:
  // `options.queue_bytes_max`: of all parts together.
  Committer(FleetStore& store, const Clock& clock, const CommitterOptions& options);

  // The lane of a rank's new stream.
  std::shared_ptr<CommitLane> NewLane(std::uint32_t rank) const;

  // See CommitQueue.
  bool Submit(CommitItem item, std::function<void()> accepted);
  void Abandon(const std::shared_ptr<CommitLane>& lane, const Status& why) {
    queues_[lane->part]->Abandon(lane, why);
  }
  // Of the rank's part.
  Status Admission(std::uint32_t rank) { return queues_[store_.PartOf(rank)]->Admission(); }
  // Of a part, by its index.
  Status AdmissionOf(std::size_t part) { return queues_[part]->Admission(); }
  // Of all parts: the first that accepts nothing.
  Status Admission();
  // The same as last seen, without asking the store.
  Status Refusal();
  void Drain();
  CommitBacklog Backlog();
  std::uint64_t commits() const;

 private:
  FleetStore& store_;
  std::vector<std::unique_ptr<CommitQueue>> queues_;  // by part
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_INGEST_COMMITTER_H_
