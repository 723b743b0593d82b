#include "server/query/answers/losses.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "common/loss_names.h"
#include "server/query/answers/message_parts.h"
#include "server/query/event_kinds.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"
#include "statcollect/v1/query.pb.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kScalarsLookedAt =
    256;  // for one point: a run that logs no loss there is not read to its end
constexpr std::size_t kRanksLookedAt = 16;  // for a rank that logs a loss
constexpr std::uint64_t kEventsLookedAt = 10 * kAlarmsCountedMax;

// A rank of an attempt that logs a loss, and its name.
struct LossSource {
  AttemptId attempt{};
  std::uint32_t rank = 0;
  std::string name;
};

struct LossPoint {
  std::uint64_t step = 0;
  double value = 0;
};

// Calls `done` for scalars in the order of their steps until it returns true, or enough of them
// were seen.
template <typename Done>
Status LookAtScalars(RecordReader& store, AttemptId attempt, std::uint32_t rank, StepBounds steps,
                     Done done) {
  std::size_t seen = 0;
  bool enough = false;
  Visitor<ScalarRecord> visitor;
  visitor.take = [&](const ScalarRecord& scalar) {
    enough = done(scalar) || ++seen >= kScalarsLookedAt;
    return enough ? Status(Code::kAborted, "enough") : Status::Ok();
  };
  Status read = store.Visit(attempt, rank, steps, visitor);
  return enough ? Status::Ok() : read;
}

Result<std::optional<LossSource>> FindLossSource(RecordReader& store, AttemptId attempt,
                                                 const std::map<std::uint32_t, RankMeta>& ranks) {
  // The lowest and the highest rank first: in a pipeline, the last stage has the loss.
  std::vector<std::uint32_t> order;
  for (const auto& [rank, meta] : ranks) order.push_back(rank);
  if (order.size() > 2) std::rotate(order.begin() + 1, order.end() - 1, order.end());
  if (order.size() > kRanksLookedAt) order.resize(kRanksLookedAt);
  for (const std::uint32_t rank : order) {
    std::set<std::string> names;
    const auto take = [&](const ScalarRecord& scalar) {
      if (IsLoss(scalar.name)) names.insert(scalar.name);
      return scalar.name == "loss";
    };
    STATCOLLECT_RETURN_IF_ERROR(LookAtScalars(store, attempt, rank, {}, take));
    if (!names.empty()) return std::optional(LossSource{attempt, rank, MainLoss(names)});
  }
  return std::optional<LossSource>();
}

Result<std::optional<LossPoint>> FirstLoss(RecordReader& store,
                                           const std::vector<LossSource>& sources,
                                           StepBounds steps) {
  std::optional<LossPoint> found;
  for (const LossSource& source : sources) {
    const auto take = [&](const ScalarRecord& scalar) {
      if (scalar.name == source.name) found = {scalar.step, scalar.value};
      return found.has_value();
    };
    STATCOLLECT_RETURN_IF_ERROR(LookAtScalars(store, source.attempt, source.rank, steps, take));
    if (found) break;
  }
  return found;
}

Status AddPoints(RecordReader& store, const RunView& view, std::uint32_t points,
                 v1::RunLoss& loss) {
  const auto range = view.StepSpan();
  if (!range) return Status::Ok();
  std::vector<LossSource> sources;  // newest attempt first
  for (std::size_t attempt = view.attempts().size(); attempt-- > 0;) {
    STATCOLLECT_ASSIGN_OR_RETURN(
        auto source, FindLossSource(store, view.attempts()[attempt].id, view.ranks(attempt)));
    if (source) sources.push_back(*std::move(source));
  }
  if (sources.empty()) return Status::Ok();
  loss.set_name(sources.front().name);
  const std::uint64_t before_last = range->last - range->first;  // steps in front of the last one
  const std::uint64_t windows = std::min<std::uint64_t>(points - 1, before_last);
  const auto add = [&](StepBounds steps) {
    const auto point = FirstLoss(store, sources, steps);
    if (!point.ok() || !*point) return point.status();
    loss.add_steps((*point)->step);
    loss.add_values((*point)->value);
    return Status::Ok();
  };
  const auto begin = [&](std::uint64_t window) {  // without overflow for steps up to 2^64
    return range->first + before_last / windows * window + before_last % windows * window / windows;
  };
  for (std::uint64_t window = 0; window < windows; ++window)
    STATCOLLECT_RETURN_IF_ERROR(add({begin(window), begin(window + 1) - 1}));
  return add({range->last, range->last});
}

Status CountAlarms(RecordReader& store, const RunView& view, v1::RunLoss& loss) {
  std::uint64_t seen = 0;
  bool enough = false;
  Visitor<EventRecord> visitor;
  visitor.take = [&](const EventRecord& event) {
    if (IsAlarm(event)) loss.set_alarms(loss.alarms() + 1);
    enough = loss.alarms() >= kAlarmsCountedMax || ++seen >= kEventsLookedAt;
    return enough ? Status(Code::kAborted, "enough") : Status::Ok();
  };
  for (std::size_t attempt = 0; attempt < view.attempts().size(); ++attempt) {
    for (const auto& [rank, meta] : view.ranks(attempt)) {
      const Status read = store.Visit(view.attempts()[attempt].id, rank, {}, visitor);
      if (enough) return Status::Ok();
      STATCOLLECT_RETURN_IF_ERROR(read);
    }
  }
  return Status::Ok();
}

}  // namespace

Result<LossesRequest> FromWire(const v1::ListLossesRequest& request) {
  if (static_cast<std::size_t>(request.runs_size()) > kLossRunsMax) {
    return Invalid("losses: found " + std::to_string(request.runs_size()) +
                   " runs; expected at most " + std::to_string(kLossRunsMax) +
                   "; ask several times for more");
  }
  for (const std::string& run : request.runs()) STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(run));
  if (request.points() > kLossPointsMax) {
    return Invalid("losses: points is " + std::to_string(request.points()) + "; expected at most " +
                   std::to_string(kLossPointsMax) + "; /api/v1/scalars has all of them");
  }
  return LossesRequest{.runs = {request.runs().begin(), request.runs().end()},
                       .points = request.points() > 0 ? request.points() : kLossPoints};
}

Status ListLosses(const Context& context, const LossesRequest& request,
                  v1::ListLossesResponse& out) {
  for (const std::string& run : request.runs) {
    const auto view = RunView::Open(context.store, run);
    if (view.status().code() == Code::kNotFound) continue;
    if (!view.ok()) return view.status();
    v1::RunLoss& loss = *out.add_runs();
    loss.set_run(run);
    STATCOLLECT_RETURN_IF_ERROR(AddPoints(context.store, *view, request.points, loss));
    STATCOLLECT_RETURN_IF_ERROR(CountAlarms(context.store, *view, loss));
  }
  return Status::Ok();
}

}  // namespace statcollect::query
