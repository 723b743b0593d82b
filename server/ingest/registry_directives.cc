// What runs are told while they train.
#include <algorithm>
#include <utility>

#include "common/names.h"
#include "common/saturating.h"
#include "common/step_set.h"
#include "common/text.h"
#include "server/ingest/registry.h"

namespace statcollect {

Result<std::uint32_t> SessionRegistry::RecordSteps(const std::string& run,
                                                   const std::string& steps) {
  const std::string attempted =
      "record steps '" + Printable(steps) + "' of run '" + Printable(run) + "'";
  const auto parsed = StepSet::Parse(steps);
  if (!parsed.ok())
    return Status(parsed.status().code(), attempted + ": " + parsed.status().message());
  STATCOLLECT_ASSIGN_OR_RETURN(auto attempts, store_.Attempts(run));
  if (attempts.empty())
    return Status(Code::kNotFound, attempted + ": there is no such run; statctl runs lists them");
  const AttemptId newest = attempts.back().id;
  STATCOLLECT_ASSIGN_OR_RETURN(const auto ranks, store_.Ranks(newest));
  std::vector<std::shared_ptr<OpenStream>> told;
  {
    MutexLock lock(mutex_);
    told = StreamsOfLocked(newest);
    const auto is_past = [&](const auto& entry) {
      return entry.second.last_step && *entry.second.last_step > parsed->last();
    };
    if (!told.empty() && !ranks.empty() && std::all_of(ranks.begin(), ranks.end(), is_past)) {
      const auto& [rank, meta] = *ranks.begin();
      return Status(Code::kOutOfRange,
                    attempted + ": all of them have passed (rank " + std::to_string(rank) +
                        " is at step " + std::to_string(*meta.last_step) +
                        "), and no later one would be recorded; expected future steps, such as " +
                        std::to_string(SaturatingAdd(*meta.last_step, 10)) + "-");
    }
    if (!told.empty()) steps_[newest] = steps;
  }
  if (told.empty()) {
    return Status(Code::kFailedPrecondition, attempted +
                                                 ": none of its ranks is connected; expected a run "
                                                 "in training; statctl runs shows them");
  }
  for (const auto& stream : told) stream->RecordSteps(steps);
  return static_cast<std::uint32_t>(told.size());
}

std::vector<std::shared_ptr<OpenStream>> SessionRegistry::StreamsOfLocked(AttemptId attempt) const {
  std::vector<std::shared_ptr<OpenStream>> streams;
  for (auto it = writers_.lower_bound({attempt, 0});
       it != writers_.end() && it->first.first == attempt; ++it) {
    if (it->second.stream) streams.push_back(it->second.stream);
  }
  return streams;
}

void SessionRegistry::AnnounceFull(AttemptId attempt, const FullSteps& steps) {
  std::vector<std::shared_ptr<OpenStream>> told;
  {
    MutexLock lock(mutex_);
    if (steps.last == FullSteps::kNoEnd) full_[attempt] = steps;
    told = StreamsOfLocked(attempt);
  }
  for (const auto& stream : told) stream->RecordFull(steps);
}

void SessionRegistry::RequestFull(const std::string& run, std::uint64_t step) {
  const auto attempts = store_.Attempts(run);
  if (!attempts.ok() || attempts->empty()) return;
  std::shared_ptr<OpenStream> told;
  {
    MutexLock lock(mutex_);
    // The first of the ranks that record chooses for all.
    const auto writer = writers_.lower_bound({attempts->back().id, 0});
    if (writer != writers_.end() && writer->first.first == attempts->back().id)
      told = writer->second.stream;
  }
  if (told != nullptr) told->RecordFull({.first = step, .last = step});
}

Result<RequestedCapture> SessionRegistry::RequestCapture(const std::string& run,
                                                         const std::vector<std::uint32_t>& ranks,
                                                         const CaptureSpec& spec) {
  const std::string attempted = "capture " + spec.Describe() + " of run '" + Printable(run) + "'";
  std::vector<std::shared_ptr<OpenStream>> told;
  CaptureRequest request{
      .id = 1, .ranks = ranks, .asked_unix_nanos = clock_.UnixNanos(), .spec = spec};
  {
    const Turn turn(turns_, {run, kDocuments});
    STATCOLLECT_ASSIGN_OR_RETURN(auto attempts, store_.Attempts(run));
    if (attempts.empty())
      return Status(Code::kNotFound, attempted + ": there is no such run; statctl runs lists them");
    request.attempt = attempts.back().id;
    STATCOLLECT_RETURN_IF_ERROR(CheckCapture(attempted, &request));
    STATCOLLECT_ASSIGN_OR_RETURN(auto requests, ReadCaptureRequests(store_, run));
    if (!requests.empty()) request.id = requests.back().id + 1;
    requests.push_back(request);
    STATCOLLECT_RETURN_IF_ERROR(WriteCaptureRequests(store_, run, std::move(requests)));
    // Afterwards: who arrives later reads what was written.
    MutexLock lock(mutex_);
    for (const std::uint32_t rank : request.ranks) {
      const auto writer = writers_.find({request.attempt, rank});
      if (writer != writers_.end() && writer->second.stream) told.push_back(writer->second.stream);
    }
  }
  for (const auto& stream : told) stream->Capture(request);
  return RequestedCapture{.request = request.id,
                          .ranks = std::move(request.ranks),
                          .told = static_cast<std::uint32_t>(told.size())};
}

Status SessionRegistry::CheckCapture(const std::string& attempted, CaptureRequest* request) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto known, store_.Ranks(request->attempt));
  if (request->ranks.empty()) {
    for (const auto& [rank, meta] : known) request->ranks.push_back(rank);
  }
  const std::uint64_t step = request->spec.steps.last();
  bool past = true, any_away = false, any_open = false;
  std::string reached;
  MutexLock lock(mutex_);
  for (const std::uint32_t rank : request->ranks) {
    const auto found = known.find(rank);
    if (found == known.end()) {
      return Status(Code::kNotFound,
                    attempted + ": there is no rank " + std::to_string(rank) + "; it has " +
                        Counted(known.size(), "rank") + ", the last one " +
                        (known.empty() ? "-" : std::to_string(known.rbegin()->first)));
    }
    const auto& last = found->second.last_step;
    past = past && last && *last > step;
    if (past && reached.empty())
      reached = "rank " + std::to_string(rank) + " is at step " + std::to_string(*last);
    const AttemptRank place(request->attempt, rank);
    const auto writer = writers_.find(place);
    if (writer != writers_.end() && writer->second.stream) {
      any_open = true;
    } else {
      any_away = any_away || (!found->second.finished && MayComeBackLocked(place));
    }
  }
  const std::string again = "to capture it in a new launch, start that with STATAGENT_CAPTURES='" +
                            request->spec.ToText() + "'";
  if (!any_open && !any_away) {
    return Status(
        Code::kFailedPrecondition,
        attempted + ": none of its ranks is connected; expected a run in training; " + again);
  }
  if (past) {
    return Status(Code::kOutOfRange, attempted + ": step " + std::to_string(step) +
                                         " has passed (" + reached + "); expected a future step; " +
                                         again);
  }
  return Status::Ok();
}

std::vector<CaptureRequest> SessionRegistry::CapturesFor(const Admission& admission) {
  auto requests = ReadCaptureRequests(store_, admission.attempt.run);
  if (!requests.ok()) return {};
  const RankMeta& meta = admission.meta;
  std::erase_if(*requests, [&](const CaptureRequest& request) {
    return request.attempt != admission.attempt.id ||
           std::find(request.ranks.begin(), request.ranks.end(), meta.info.rank) ==
               request.ranks.end() ||
           (meta.last_step && request.spec.steps.last() < *meta.last_step);
  });
  return *std::move(requests);
}

}  // namespace statcollect
