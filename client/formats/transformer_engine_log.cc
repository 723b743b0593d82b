#include "client/formats/transformer_engine_log.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "client/formats/convert.h"
#include "common/names.h"
#include "common/text.h"

namespace statcollect::client::formats {
namespace {

constexpr char kLineForm[] =
    "'2026-01-31 12:00:00,000 - INFO - fc1_activation_max  iteration=000003  value=1.5000'";

struct LoggedStatistic {
  std::string_view suffix;
  Statistic statistic;
  double TensorStats::*number;
};
constexpr std::array<LoggedStatistic, 6> kLogged = {{
    {"_min", Statistic::kMin, &TensorStats::min},
    {"_max", Statistic::kMax, &TensorStats::max},
    {"_mean", Statistic::kMean, &TensorStats::mean},
    {"_std", Statistic::kStd, &TensorStats::std},
    {"_l1_norm", Statistic::kL1, &TensorStats::l1},
    {"_l2_norm", Statistic::kL2, &TensorStats::l2},
}};
constexpr std::size_t kMinAt = 0, kMaxAt = 1;

// TransformerEngine's tensors of a layer. "activation" is what goes into it, "gradient" that of its
// output.
struct LoggedTensor {
  std::string_view suffix;
  Kind kind;
  bool parameter;
};
constexpr std::array<LoggedTensor, 6> kTensors = {{
    {"_activation", Kind::kInput, false},
    {"_weight", Kind::kWeight, true},
    {"_gradient", Kind::kGradOutput, false},
    {"_output", Kind::kOutput, false},
    {"_wgrad", Kind::kWeightGrad, true},
    {"_dgrad", Kind::kGradInput, false},
}};

struct LogLine {
  std::string_view name;
  std::uint64_t iteration = 0;
  double value = 0;
};

bool EatEnd(std::string_view* text, std::string_view suffix) {
  if (text->size() <= suffix.size() || !text->ends_with(suffix)) return false;
  text->remove_suffix(suffix.size());
  return true;
}

// With four decimals, as it is always written: a number that was cut is none.
std::optional<double> ParseLogged(std::string_view text) {
  const auto value = ParseDouble(text);
  if (!value || !std::isfinite(*value)) return value;
  return text.find('.') + 5 == text.size() ? value : std::nullopt;
}

std::optional<LogLine> ParseLine(std::string_view line) {
  for (int i = 0; i < 2; ++i) {  // the time, the level
    const std::size_t end = line.find(" - ");
    if (end == std::string_view::npos) return std::nullopt;
    line.remove_prefix(end + 3);
  }
  constexpr std::string_view kIteration = " iteration=", kValue = " value=";
  const std::size_t value = line.rfind(kValue);
  if (value == std::string_view::npos) return std::nullopt;
  const std::size_t iteration = line.substr(0, value).rfind(kIteration);
  if (iteration == std::string_view::npos) return std::nullopt;
  const std::size_t begin = iteration + kIteration.size();
  const auto number = ParseUnsigned(Trimmed(line.substr(begin, value - begin)));
  const auto logged = ParseLogged(Trimmed(line.substr(value + kValue.size())));
  if (!number || !logged) return std::nullopt;
  return LogLine{
      .name = Trimmed(line.substr(0, iteration)), .iteration = *number, .value = *logged};
}

// Which statistic of which tensor; empty: another number, such as an overflow in FP8.
struct Logged {
  std::string_view tensor;
  std::size_t statistic = 0;
};
std::optional<Logged> SplitName(std::string_view name) {
  for (std::size_t i = 0; i < kLogged.size(); ++i) {
    std::string_view tensor = name;
    if (EatEnd(&tensor, kLogged[i].suffix))
      return tensor.ends_with("_scale_inv") ? std::nullopt : std::optional<Logged>({tensor, i});
  }
  return std::nullopt;
}

TensorDef TensorOf(std::string_view name) {
  TensorDef def;
  for (const LoggedTensor& tensor : kTensors) {
    std::string_view layer = name;
    if (!EatEnd(&layer, tensor.suffix)) continue;
    def.key = {.name = std::string(layer), .kind = tensor.kind};
    if (tensor.parameter) {
      def.parent = layer;
      def.key.name += ".weight";
    }
    return def;
  }
  def.key = {.name = std::string(name), .kind = Kind::kInspect};
  def.depth = -1;
  return def;
}

using LoggedNumbers = std::array<std::optional<double>, kLogged.size()>;

bool IsInfinite(const std::optional<double>& value, bool positive) {
  return value && std::isinf(*value) && (*value > 0) == positive;
}

// NaN and infinities are not counted, but show in the numbers: "at least one" is stored, and marked
// as not to be trusted.
void SetNonfiniteOf(const LoggedNumbers& numbers, Observation* o) {
  TensorStats& s = o->stats;
  Layout& layout = o->layout;
  const auto &low = numbers[kMinAt], &high = numbers[kMaxAt];
  const auto some = [&](std::size_t from, bool (*is)(double)) {
    return std::any_of(numbers.begin() + static_cast<std::ptrdiff_t>(from), numbers.end(),
                       [&](const auto& number) { return number && is(*number); });
  };
  constexpr auto kIsNan = [](double x) { return std::isnan(x); };
  constexpr auto kIsInf = [](double x) { return std::isinf(x); };
  constexpr auto kIsFinite = [](double x) { return std::isfinite(x); };
  const bool extremes = low && high;
  const bool extreme_nan = (low && std::isnan(*low)) || (high && std::isnan(*high));
  // Means and norms are NaN of infinities, too, and infinite of an overflow.
  if (extreme_nan || (!extremes && some(0, kIsNan))) {
    s.nan = 1;
    layout.untrusted |= BitOf(Statistic::kNan);
    layout.absent |= BitOf(Statistic::kInf) | BitOf(Statistic::kInfSign);
  } else if ((low && std::isinf(*low)) || (high && std::isinf(*high)) ||
             (!extremes && some(0, kIsInf))) {
    s.has_finite = !IsInfinite(low, true) && !IsInfinite(high, false);  // otherwise all are
    s.neg_inf = IsInfinite(low, false) ? 1 : 0;
    s.pos_inf = IsInfinite(high, true) || s.neg_inf == 0 ? 1 : 0;
    layout.untrusted |= BitOf(Statistic::kInf);
    if (!extremes) {
      s.pos_inf = 1;
      s.neg_inf = 0;
      layout.absent |= BitOf(Statistic::kInfSign);
    }
  } else if (!extremes && !some(kMaxAt + 1, kIsFinite)) {
    layout.absent |= BitOf(Statistic::kNan) | BitOf(Statistic::kInf) | BitOf(Statistic::kInfSign);
  }
}

Observation LoggedTensorOf(const TensorDef& def, std::uint64_t step, const LoggedNumbers& numbers) {
  Observation o{.step = step, .def = def};
  o.layout.dtype = DType::kF32;  // of the statistics; the log does not say that of the tensor
  o.layout.absent = BitOf(Statistic::kZero) | BitOf(Statistic::kNeg) | BitOf(Statistic::kPos) |
                    BitOf(Statistic::kHash) | BitOf(Statistic::kShape);
  o.stats.has_finite = true;
  SetNonfiniteOf(numbers, &o);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const double value = numbers[i] && o.stats.has_finite ? *numbers[i] : std::nan("");
    SetFinite(value, kLogged[i].statistic, &(o.stats.*kLogged[i].number), &o.layout);
  }
  return o;
}

// One rank's log.
class LogReader {
 public:
  LogReader(const StepSet& steps, Tally* tally, ObservationSink& sink)
      : steps_(steps), tally_(tally), sink_(sink) {}

  Status Read(ByteSource& source) {
    lines_.Reset(source);
    std::string_view line;
    std::optional<std::string> unread;  // must be the last one
    while (true) {
      const auto more = lines_.Next(&line);
      if (!more.ok()) return more.status();
      if (!*more) break;
      if (unread) return BadInput(source.path(), lines_.line() - 1, *unread, kLineForm);
      if (Trimmed(line).empty()) continue;
      const auto parsed = ParseLine(line);
      if (!parsed)
        unread = "'" + std::string(line) + "'";
      else
        STATCOLLECT_RETURN_IF_ERROR(Take(*parsed));
    }
    if (unread && !step_) return BadInput(source.path(), 1, *unread, kLineForm);
    if (unread) tally_->Skip("last line that was cut");
    STATCOLLECT_RETURN_IF_ERROR(Emit());
    return step_ ? sink_.EndStep(*step_) : Status::Ok();
  }

 private:
  Status Take(const LogLine& line) {
    if (step_ && line.iteration < *step_)
      return lines_.Bad("iteration " + std::to_string(line.iteration) + " after iteration " +
                            std::to_string(*step_),
                        "the log of one training: what follows belongs to a later one, and needs a "
                        "file and a run of its own");
    if (step_ != line.iteration) {
      STATCOLLECT_RETURN_IF_ERROR(Emit());
      if (step_) STATCOLLECT_RETURN_IF_ERROR(sink_.EndStep(*step_));
      step_ = line.iteration;
      calls_.clear();
    }
    if (!steps_.Contains(line.iteration)) return Status::Ok();
    if (const Status valid = ValidateTensorName("activation", line.name); !valid.ok())
      return lines_.Bad("an invalid name (" + valid.message() + ")", "a valid one");
    const auto logged = SplitName(line.name);
    if (!logged)
      return sink_.TakeScalar(
          {.name = std::string(line.name), .step = *step_, .value = line.value});
    if (logged->tensor != tensor_ || numbers_[logged->statistic]) {
      STATCOLLECT_RETURN_IF_ERROR(Emit());
      tensor_ = logged->tensor;
    }
    numbers_[logged->statistic] = line.value;
    return CheckNumbers();
  }

  Status CheckNumbers() const {
    const auto &low = numbers_[kMinAt], &high = numbers_[kMaxAt];
    if (low && high && *low > *high)
      return lines_.Bad("min above max of '" + tensor_ + "'", "min <= max");
    for (std::size_t i = kMaxAt + 2; i < numbers_.size(); ++i) {
      if (numbers_[i] && *numbers_[i] < 0) return lines_.Bad("a negative norm or std", "0 or more");
    }
    return Status::Ok();
  }

  // The tensor at hand is complete.
  Status Emit() {
    if (tensor_.empty()) return Status::Ok();
    const std::string tensor = std::exchange(tensor_, {});
    TensorDef def = TensorOf(tensor);
    def.key.call = calls_[tensor]++;
    return sink_.Take(LoggedTensorOf(def, *step_, std::exchange(numbers_, {})));
  }

  const StepSet& steps_;
  Tally* const tally_;
  ObservationSink& sink_;
  LineReader lines_;
  std::optional<std::uint64_t> step_;
  std::string tensor_;  // whose lines are being read; empty: none's
  LoggedNumbers numbers_;
  std::map<std::string, std::uint32_t> calls_;  // of each tensor in the step
};

}  // namespace

Status ReadTransformerEngineLog(ByteSource& file, const StepSet& steps, Tally* tally,
                                ObservationSink& sink) {
  return LogReader(steps, tally, sink).Read(file);
}

}  // namespace statcollect::client::formats
