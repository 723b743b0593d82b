#include "server/query/top.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "common/enum_names.h"
#include "common/names.h"
#include "common/step_set.h"

namespace statcollect::query {
bool IsMoreExtreme(TopBy by, double a, double b) {
  switch (by) {
    case TopBy::kMin:
      return a < b;
    case TopBy::kMean:
      return std::abs(a) > std::abs(b);
    default:
      return a > b;
  }
}

namespace {

std::optional<double> Nonzero(double value) { return value > 0 ? std::optional(value) : std::nullopt; }

struct Candidate {
  double value = 0;
  std::uint32_t rank = 0, order = 0;
};

// The `count` most extreme ones, in order, while they come.
class Best {
 public:
  Best(TopBy by, std::size_t count) : by_(by), count_(count) {}

  // Whether it would be among them.
  bool Takes(const Candidate& candidate) const {
    return kept_.size() < count_ || Before(candidate, kept_.back().first);
  }
  void Add(const Candidate& candidate, TopRow row) {
    const auto place =
        std::upper_bound(kept_.begin(), kept_.end(), candidate,
                         [&](const Candidate& c, const auto& k) { return Before(c, k.first); });
    kept_.emplace(place, candidate, std::move(row));
    if (kept_.size() > count_) kept_.pop_back();
  }
  std::vector<TopRow> Take() && {
    std::vector<TopRow> rows;
    for (auto& [candidate, row] : kept_) rows.push_back(std::move(row));
    return rows;
  }

 private:
  bool Before(const Candidate& a, const Candidate& b) const {
    if (a.value != b.value) return IsMoreExtreme(by_, a.value, b.value);
    return std::tie(a.rank, a.order) < std::tie(b.rank, b.order);
  }
  const TopBy by_;
  const std::size_t count_;
  std::vector<std::pair<Candidate, TopRow>> kept_;
};

TopRow MakeTopRow(const std::string& run, std::uint32_t rank, std::uint64_t step, double value,
                  const Observation& o, ObservationSide side) {
  const TensorKey& key = o.def->key;
  return {.value = value,
          .point = {.run = run,
                    .rank = rank,
                    .step = step,
                    .micro_batch = key.micro_batch,
                    .kind = key.kind,
                    .activation = key.name,
                    .output_path = key.output_path,
                    .call = key.call,
                    .mode = std::string(Name(key.mode)),
                    .stats = std::move(side)},
          .class_name = o.def->class_name};
}

template <typename T>
bool IsAmong(const std::vector<T>& wanted, T value) {
  return wanted.empty() || std::find(wanted.begin(), wanted.end(), value) != wanted.end();
}

Status NoSuchStep(const RunView& view, std::uint64_t step) {
  std::optional<std::uint64_t> first, last;
  for (std::size_t i = 0; i < view.attempts().size(); ++i) {
    for (const auto& [rank, meta] : view.ranks(i)) {
      if (!meta.first_step || !meta.last_step) continue;
      first = std::min(first.value_or(*meta.first_step), *meta.first_step);
      last = std::max(last.value_or(*meta.last_step), *meta.last_step);
    }
  }
  return {Code::kNotFound, "top of run '" + view.run() + "': no statistics in step " + std::to_string(step) +
                               "; the run has " +
                               (first ? "steps " + std::to_string(*first) + ".." + std::to_string(*last)
                                      : std::string("no steps yet")) +
                               ", some of which may not have been recorded; omit --step for the newest"};
}

}  // namespace

std::string_view Name(TopBy by) {
  static constexpr std::array<std::string_view, 15> kNames = {
      "unspecified", "l2",  "l1",  "absmax",        "rms",   "std",          "mean",         "max",
      "min",         "nan", "inf", "zero_fraction", "numel", "update_ratio", "exponent_loss"};
  return NameIn(kNames, by);
}

namespace {

std::optional<double> Number(const std::optional<std::uint64_t>& count) {
  return count ? std::optional(static_cast<double>(*count)) : std::nullopt;
}

std::optional<double> Infinities(const ObservationSide& side) {
  if (side.inf) return Number(side.inf);
  if (!side.pos_inf || !side.neg_inf) return std::nullopt;
  return static_cast<double>(*side.pos_inf) + static_cast<double>(*side.neg_inf);
}

std::optional<double> Rms(const ObservationSide& side, double elements) {
  const auto infinite = Infinities(side);
  if (!side.l2 || !infinite || !side.nan) return std::nullopt;
  const double finite = elements - *infinite - static_cast<double>(*side.nan);
  return finite > 0 ? std::optional(*side.l2 / std::sqrt(finite)) : std::nullopt;
}

}  // namespace

std::optional<double> ValueOf(TopBy by, const ObservationSide& side, bool complex) {
  const double elements = Number(side.numel).value_or(0) * (complex ? 2 : 1);
  const auto unless_zero = [](const std::optional<double>& value) {
    return value ? Nonzero(*value) : std::nullopt;
  };
  switch (by) {
    case TopBy::kL1:
      return side.l1;
    case TopBy::kAbsMax:
      if (!side.min || !side.max) return std::nullopt;
      return std::max(std::abs(*side.min), std::abs(*side.max));
    case TopBy::kRms:
      return Rms(side, elements);
    case TopBy::kStd:
      return side.std;
    case TopBy::kMean:
      return side.mean;
    case TopBy::kMax:
      return side.max;
    case TopBy::kMin:
      return side.min;
    case TopBy::kNan:
      return unless_zero(Number(side.nan));
    case TopBy::kInf:
      return unless_zero(Infinities(side));
    case TopBy::kZeroFraction:
      return elements > 0 && side.zero ? Nonzero(static_cast<double>(*side.zero) / elements) : std::nullopt;
    case TopBy::kNumel:
      return Number(side.numel);
    default:
      return side.l2;
  }
}

namespace {

// What of a step has been read: the best rows, and what the notes will say.
class TopOfStep {
 public:
  // The report's run, step and order are set.
  TopOfStep(const TopRequest& request, TopReport report, const std::function<bool(const TensorKey&)>& wanted)
      : request_(request),
        wanted_(wanted),
        report_(std::move(report)),
        best_(report_.by, request.count == 0 ? kTopDefault : request.count) {}

  void Add(std::uint32_t rank, const Observation& o) {
    any_ = true;
    if (wanted_ && !wanted_(o.def->key)) return;
    const Kind kind = o.def->key.kind;
    if (!IsAmong(request_.kinds, kind)) return;
    if (request_.kinds.empty() && IsWholeNumber(o.layout->dtype)) {
      integers_.insert(kind);
      return;
    }
    ObservationSide side = MakeSide(o);
    const auto value = ValueOf(report_.by, side, IsComplex(o.layout->dtype));
    if (!value) return;
    ++report_.considered;
    const Candidate candidate{.value = *value, .rank = rank, .order = o.order};
    if (best_.Takes(candidate))
      best_.Add(candidate, MakeTopRow(report_.run, rank, report_.step, *value, o, std::move(side)));
  }
  void Note(std::string note) { report_.notes.push_back(std::move(note)); }

  // Whether the step has observations of the requested ranks, of any kind.
  bool any() const { return any_; }
  TopReport Take() && {
    for (const Kind kind : integers_) {
      Note("integer tensors, such as token ids, are left out; with --kinds " + std::string(Name(kind)) +
           " they are in");
    }
    report_.rows = std::move(best_).Take();
    return std::move(report_);
  }

 private:
  const TopRequest& request_;
  const std::function<bool(const TensorKey&)>& wanted_;
  TopReport report_;
  Best best_;
  bool any_ = false;
  std::set<Kind> integers_;  // whose tensors of integers were left out
};

// The requested step, or the newest with statistics.
Result<std::uint64_t> ChooseStep(RunView& view, const TopRequest& request) {
  if (request.step) return *request.step;
  STATCOLLECT_ASSIGN_OR_RETURN(auto newest, view.NewestStepWithStats());
  if (!newest) return Status(Code::kNotFound, "top of run '" + view.run() + "': it has no statistics yet");
  return *newest;
}

// kNotFound: no attempt has the step.
Result<std::size_t> AttemptOf(RunView& view, std::uint64_t step) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto only, StepSet::Parse(std::to_string(step)));
  STATCOLLECT_ASSIGN_OR_RETURN(auto owner, view.Steps(only));
  if (owner.empty()) return NoSuchStep(view, step);
  return owner.begin()->second;
}

Status AddRank(RunView& view, std::size_t attempt, std::uint32_t rank, std::uint64_t step, TopOfStep& top) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto data, view.Read(attempt, rank, step));
  for (const Observation& o : data.observations) top.Add(rank, o);
  STATCOLLECT_ASSIGN_OR_RETURN(auto complete, view.IsComplete(attempt, rank, step));
  if (!complete && !data.observations.empty()) {
    top.Note("step " + std::to_string(step) + " of rank " + std::to_string(rank) +
             " has no end: the rank died in it or is still in it");
  }
  return Status::Ok();
}

}  // namespace

Result<TopReport> FindTop(RunView& view, const TopRequest& request, const std::stop_token& stop,
                          const std::function<bool(const TensorKey&)>& wanted) {
  if (request.count > kTopCountMax) {
    return Status(Code::kInvalidArgument, "top: " + std::to_string(request.count) +
                                              " rows requested; expected at most " +
                                              std::to_string(kTopCountMax));
  }
  STATCOLLECT_ASSIGN_OR_RETURN(const auto step, ChooseStep(view, request));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto attempt, AttemptOf(view, step));
  TopOfStep top(
      request,
      {.run = view.run(), .step = step, .by = request.by == TopBy::kUnspecified ? TopBy::kL2 : request.by},
      wanted);
  for (const auto& [rank, meta] : view.ranks(attempt)) {
    if (stop.stop_requested()) return Status(Code::kCancelled, "top: cancelled");
    if (IsAmong(request.ranks, rank)) STATCOLLECT_RETURN_IF_ERROR(AddRank(view, attempt, rank, step, top));
  }
  for (const std::uint32_t rank : std::set(request.ranks.begin(), request.ranks.end())) {
    if (!view.ranks(attempt).contains(rank))
      top.Note("rank " + std::to_string(rank) + " was requested, but the run does not have it");
  }
  if (!top.any() && request.ranks.empty()) return NoSuchStep(view, step);
  return std::move(top).Take();
}

}  // namespace statcollect::query
