// FollowEvents: first the stored events, then new ones as they arrive, until the caller cancels.
#ifndef STATCOLLECT_SERVER_API_FOLLOW_CALL_H_
#define STATCOLLECT_SERVER_API_FOLLOW_CALL_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>

#include <grpcpp/support/server_callback.h>

#include "common/status.h"
#include "common/thread_annotations.h"
#include "server/api/worker_pool.h"
#include "server/control/event_feed.h"
#include "server/query/answers/events.h"
#include "server/query/query.h"
#include "statcollect/v1/query.pb.h"

namespace statcollect::api {

// Uses no thread while nothing happens. At most one message is in flight; a caller that leaves more
// than kWaitingMax events unread is disconnected (kResourceExhausted). An event that is both listed
// and received live is sent once.
class FollowCall final : public grpc::ServerWriteReactor<v1::FollowEventsResponse>,
                         public std::enable_shared_from_this<FollowCall> {
 public:
  static constexpr std::size_t kWaitingMax = 100'000;

  // The reactor to hand to gRPC. An error in `wanted` is the answer.
  // `engine`: of the project.
  static grpc::ServerWriteReactor<v1::FollowEventsResponse>* Start(
      std::shared_ptr<const query::QueryEngine> engine, const std::string& project,
      WorkerPool& pool, EventFeed* feed, Result<query::EventsRequest> wanted);

 private:
  FollowCall(EventFeed* feed, Result<query::EventsRequest> wanted)
      : feed_(feed), wanted_(std::move(wanted)) {}

  Status SendListed(const query::QueryEngine& engine, const std::stop_token& stop);
  void OnEvent(const FeedEvent* event);  // null: nothing more comes
  void End(const Status& status);
  void QueueLocked(v1::EventRow row) STATCOLLECT_REQUIRES(mutex_);
  void WriteLocked() STATCOLLECT_REQUIRES(mutex_);
  void Unfollow();

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  EventFeed* const feed_;
  const Result<query::EventsRequest> wanted_;
  std::shared_ptr<FollowCall> self_;  // gRPC's share of the ownership
  Mutex mutex_;  // guards everything below; never held while the feed is called
  std::optional<std::uint64_t> following_ STATCOLLECT_GUARDED_BY(mutex_);
  bool listed_ STATCOLLECT_GUARDED_BY(mutex_) = false, told_caught_up_
                                                       STATCOLLECT_GUARDED_BY(mutex_) = false;
  std::deque<v1::EventRow> early_
      STATCOLLECT_GUARDED_BY(mutex_);  // received while the list was read
  std::unordered_set<std::uint64_t> sent_ STATCOLLECT_GUARDED_BY(mutex_);
  std::deque<v1::EventRow> waiting_ STATCOLLECT_GUARDED_BY(mutex_);
  bool writing_ STATCOLLECT_GUARDED_BY(mutex_) = false,
                finished_ STATCOLLECT_GUARDED_BY(mutex_) = false,
                closing_ STATCOLLECT_GUARDED_BY(mutex_) = false;
  std::optional<Status> end_ STATCOLLECT_GUARDED_BY(mutex_);
  v1::FollowEventsResponse message_ STATCOLLECT_GUARDED_BY(mutex_);  // on its way
};

}  // namespace statcollect::api

#endif  // STATCOLLECT_SERVER_API_FOLLOW_CALL_H_
