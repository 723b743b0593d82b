// FollowRuns: the runs as they are, then what changes in them, until the caller cancels.
#ifndef STATCOLLECT_SERVER_API_LIVE_CALL_H_
#define STATCOLLECT_SERVER_API_LIVE_CALL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <grpcpp/support/server_callback.h>

#include "common/status.h"
#include "common/thread_annotations.h"
#include "server/api/live_board.h"
#include "statcollect/v1/query.pb.h"

namespace statcollect::api {

// Uses no thread of its own. At most one message is in flight; a caller that reads slowly gets
// fewer messages, each with the newest state, so nothing piles up.
class LiveCall final : public grpc::ServerWriteReactor<v1::FollowRunsResponse>,
                       public LiveFollower,
                       public std::enable_shared_from_this<LiveCall> {
 public:
  // The reactor to hand to gRPC. A null board: the collector does not offer it.
  static grpc::ServerWriteReactor<v1::FollowRunsResponse>* Start(
      LiveBoard* board, const std::string& project, const v1::FollowRunsRequest& request);

  void Advance(bool beat) override;
  void End(const Status& why) override;

 private:
  LiveCall(LiveBoard* board, std::string project, const v1::FollowRunsRequest& request)
      : board_(board),
        project_(std::move(project)),
        wanted_(request.runs().begin(), request.runs().end()) {}

  void WriteLocked(bool beat) STATCOLLECT_REQUIRES(mutex_);
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  LiveBoard* const board_;
  const std::string project_;
  const std::set<std::string> wanted_;
  std::shared_ptr<LiveCall> self_;  // gRPC's share of the ownership
  Mutex mutex_;                     // guards everything below; the board's is taken after it
  LiveBoard::Place place_ STATCOLLECT_GUARDED_BY(mutex_);
  std::optional<std::uint64_t> joined_ STATCOLLECT_GUARDED_BY(mutex_);
  bool writing_ STATCOLLECT_GUARDED_BY(mutex_) = false, finished_
                                                        STATCOLLECT_GUARDED_BY(mutex_) = false;
  std::optional<Status> end_ STATCOLLECT_GUARDED_BY(mutex_);
  v1::FollowRunsResponse message_ STATCOLLECT_GUARDED_BY(mutex_);  // on its way
};

}  // namespace statcollect::api

#endif  // STATCOLLECT_SERVER_API_LIVE_CALL_H_
