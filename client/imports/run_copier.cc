#include "client/imports/run_copier.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "common/names.h"

namespace statcollect::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kBackoffMin{200}, kBackoffMax{2000};

// Trying again may help.
bool MayPass(Code code) {
  return code == Code::kUnavailable || code == Code::kResourceExhausted ||
         code == Code::kDeadlineExceeded || code == Code::kInternal || code == Code::kUnknown;
}

std::string InverseSession(std::string session) {
  for (char& byte : session) byte = static_cast<char>(~byte);
  return session;
}

bool IsSameLaunch(const v1::CopiedAttempt& a, const v1::CopiedAttempt& b) {
  return a.attempt() == b.attempt() && a.launch() == b.launch() &&
         a.world_size() == b.world_size() && a.start_unix_nanos() == b.start_unix_nanos();
}

Status NotACopy(const std::string& run, const std::string& found) {
  return {Code::kAlreadyExists, fmt::format("the target has a run '{}' with other content ({}); "
                                            "remove it there (statctl rm), or copy "
                                            "other runs only (--run)",
                                            Printable(run), found)};
}

}  // namespace

std::uint64_t RunOutline::records() const {
  std::uint64_t sum = 0;
  for (const auto& [place, rank] : ranks) sum += rank.records();
  return sum;
}

Result<RunOutline> Outline(Collector& collector, const std::string& run) {
  v1::DescribeRunRequest request;
  request.set_run(run);
  request.set_brief(true);
  RunOutline outline;
  const Status described = collector.DescribeRun(request, [&](v1::RunPart& part) {
    if (part.has_head()) outline.streams_open = part.head().streams_open();
    if (part.has_attempt()) outline.attempts.push_back(std::move(*part.mutable_attempt()));
    if (part.has_rank()) {
      v1::CopiedRank& rank = *part.mutable_rank();
      rank.clear_config();
      const std::pair place(rank.attempt(), rank.hello().rank());
      outline.ranks[place] = std::move(rank);
    }
    return Status::Ok();
  });
  if (!described.ok()) return described;
  return outline;
}

Result<Copied> CompareOutlines(const std::string& run, const RunOutline& source,
                               const RunOutline& target) {
  for (std::size_t i = 0; i < target.attempts.size(); ++i) {
    if (i < source.attempts.size() && IsSameLaunch(source.attempts[i], target.attempts[i]))
      continue;
    return NotACopy(run, fmt::format("launch {} is not a launch of the source's run",
                                     target.attempts[i].attempt()));
  }
  std::size_t complete = 0;
  for (const auto& [place, rank] : target.ranks) {
    const auto original = source.ranks.find(place);
    const std::string& session = rank.hello().session_id();
    const bool known = original != source.ranks.end();
    if (known && original->second.hello().session_id() == session) {
      ++complete;
    } else if (!known || InverseSession(original->second.hello().session_id()) != session) {
      return NotACopy(run, fmt::format("rank {} of launch {} was recorded by another process",
                                       place.second, place.first));
    }
  }
  const bool all =
      complete == source.ranks.size() && target.attempts.size() == source.attempts.size();
  return all ? Copied::kAll : Copied::kSome;
}

Status RunCopier::Persist(const std::function<Status()>& work) {
  advanced_ = steady_clock::now();
  for (milliseconds backoff = kBackoffMin;; backoff = std::min(2 * backoff, kBackoffMax)) {
    const auto before = advanced_;
    const Status status = work();
    if (status.ok() || !MayPass(status.code())) return status;
    if (advanced_ != before) backoff = kBackoffMin;
    if (steady_clock::now() - advanced_ + backoff > patience_) {
      return {status.code(),
              fmt::format("{}; no progress for {:g} s; what was copied stays, and the same command "
                          "goes on from there",
                          status.message(), static_cast<double>(patience_.count()) / 1000)};
    }
    if (!source_.WaitUnlessCancelled(backoff)) return {Code::kCancelled, "interrupted"};
  }
}

Status RunCopier::Copy(const std::string& run, const RunOutline& outline) {
  v1::BeginCopyRequest begin;
  begin.set_run(run);
  for (const v1::CopiedAttempt& attempt : outline.attempts) *begin.add_attempts() = attempt;
  STATCOLLECT_RETURN_IF_ERROR(Persist([&] { return target_.BeginCopy(begin); }));
  RunOutline target;
  STATCOLLECT_RETURN_IF_ERROR(Persist([&] {
    auto found = Outline(target_, run);
    if (!found.ok()) return found.status();
    target = *std::move(found);
    return Status::Ok();
  }));
  before_ = 0;
  for (const auto& [place, rank] : outline.ranks) {
    const auto there = target.ranks.find(place);
    const bool complete = there != target.ranks.end() &&
                          there->second.hello().session_id() == rank.hello().session_id();
    if (!complete) STATCOLLECT_RETURN_IF_ERROR(Persist([&] { return CopyRank(run, rank); }));
    before_ += rank.records();
    progress_(before_);
  }
  return Persist([&] { return CopyParts(run); });
}

Status RunCopier::CopyRank(const std::string& run, const v1::CopiedRank& rank) {
  v1::Hello hello = rank.hello();
  hello.set_copy(rank.attempt());
  return target_.CopyRank(hello, [&](CopyStream& stream) { return ReadInto(run, rank, stream); });
}

Status RunCopier::ReadInto(const std::string& run, const v1::CopiedRank& rank, CopyStream& stream) {
  v1::ReadRankRequest request;
  request.set_run(run);
  request.set_attempt(rank.attempt());
  request.set_rank(rank.hello().rank());
  request.set_after(stream.welcome().durable_seq());
  request.set_activations(stream.welcome().activations());
  request.set_layouts(stream.welcome().layouts());
  std::uint64_t durable = stream.welcome().durable_seq();
  return source_.ReadRank(request, [&](v1::Batch& batch) {
    STATCOLLECT_RETURN_IF_ERROR(stream.Send(std::move(batch)));
    if (stream.durable_seq() > durable) advanced_ = steady_clock::now();
    durable = stream.durable_seq();
    progress_(before_ + durable);
    return Status::Ok();
  });
}

// Documents, events and the exemption first: a rank's own part completes it.
Status RunCopier::CopyParts(const std::string& run) {
  v1::DescribeRunRequest request;
  request.set_run(run);
  return source_.DescribeRun(request, [&](v1::RunPart& part) {
    if (part.has_attempt() || (part.has_head() && !part.head().kept())) return Status::Ok();
    v1::WritePartRequest write;
    write.set_run(run);
    *write.mutable_part() = std::move(part);
    return target_.WritePart(write);
  });
}

}  // namespace statcollect::client
