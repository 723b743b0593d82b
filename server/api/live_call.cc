#include "server/api/live_call.h"

#include <utility>

#include "common/names.h"
#include "server/api/calls.h"

namespace statcollect::api {
namespace {

constexpr int kNamedRunsMax = 1000;
constexpr std::size_t kCursorBytesMax = 64;

Status CheckFollowRuns(const v1::FollowRunsRequest& request) {
  if (request.runs_size() > kNamedRunsMax) {
    return {Code::kInvalidArgument, "follow runs: found " + std::to_string(request.runs_size()) +
                                        " names; expected at most " +
                                        std::to_string(kNamedRunsMax) +
                                        "; leave runs out to follow all"};
  }
  for (const std::string& run : request.runs()) STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(run));
  if (request.cursor().size() > kCursorBytesMax) {
    return {
        Code::kInvalidArgument,
        "follow runs: found a cursor of " + std::to_string(request.cursor().size()) +
            " bytes; expected the cursor of the last message, or none to begin with everything"};
  }
  return Status::Ok();
}

}  // namespace

grpc::ServerWriteReactor<v1::FollowRunsResponse>* LiveCall::Start(
    LiveBoard* board, const std::string& project, const v1::FollowRunsRequest& request) {
  std::shared_ptr<LiveCall> call(new LiveCall(board, project, request));
  call->self_ = call;
  Status refused = CheckFollowRuns(request);
  if (refused.ok() && board == nullptr)
    refused = {Code::kUnimplemented, "follow runs: this collector does not report changes"};
  if (!refused.ok()) {
    call->End(refused);
    return call.get();
  }
  {
    MutexLock lock(call->mutex_);
    call->place_ = LiveBoard::Parse(request.cursor());
  }
  const auto joined = board->Join(call);
  if (!joined.ok()) {
    call->End(joined.status());
    return call.get();
  }
  MutexLock lock(call->mutex_);
  call->joined_ = *joined;
  call->WriteLocked(/*beat=*/false);
  return call.get();
}

void LiveCall::Advance(bool beat) {
  MutexLock lock(mutex_);
  WriteLocked(beat);
}

void LiveCall::End(const Status& why) {
  MutexLock lock(mutex_);
  if (!end_) end_ = why;
  WriteLocked(/*beat=*/false);
}

void LiveCall::WriteLocked(bool beat) {
  if (writing_ || finished_) return;
  if (end_) {
    finished_ = true;
    return Finish(ToGrpc(*end_));
  }
  message_.Clear();
  if (!board_->Read(project_, wanted_, place_, message_) && !beat) return;
  writing_ = true;
  StartWrite(&message_);
}

void LiveCall::OnWriteDone(bool /*ok*/) {  // a failed write means a lost client: OnCancel follows
  MutexLock lock(mutex_);
  writing_ = false;
  WriteLocked(/*beat=*/false);
}

void LiveCall::OnCancel() { End({Code::kCancelled, "follow runs: cancelled"}); }

void LiveCall::OnDone() {
  const auto last_share = std::move(self_);
  std::optional<std::uint64_t> joined;
  {
    MutexLock lock(mutex_);
    joined = std::exchange(joined_, std::nullopt);
  }
  if (joined) board_->Leave(*joined);
}

}  // namespace statcollect::api
