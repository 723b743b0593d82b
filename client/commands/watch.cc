// statctl watch: asks a few questions again and again, and shows the answers on one screen, or as a
// line each.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "client/commands/agreement.h"
#include "client/commands/commands.h"
#include "common/names.h"
#include "proto/json.h"

namespace statcollect::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::uint64_t kLossSteps = 120;  // of the loss
constexpr std::size_t kSparkCells = 60;
constexpr std::size_t kEventsShown = 8;

// One look at the run.
struct Look {
  v1::GetRunResponse run;
  std::vector<v1::EventRow> events;                   // the newest
  std::map<std::string, std::vector<double>> losses;  // of the lowest rank, by name
  std::optional<double> grad_norm;
  std::optional<double> steps_a_second;
  std::uint64_t alarms = 0;
};

const google::protobuf::RepeatedPtrField<v1::RankInfo>& RanksOf(const v1::GetRunResponse& run) {
  static const google::protobuf::RepeatedPtrField<v1::RankInfo> kNone;
  return run.attempts().empty() ? kNone : run.attempts().rbegin()->ranks();
}

bool IsAlarm(const v1::EventRow& event) {
  const auto severity = event.fields().find("severity");
  return event.origin() == "collector" && severity != event.fields().end() &&
         severity->second == "alarm";
}

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// Eighths of a cell; what is not finite is a '!'.
std::string Sparkline(const std::vector<double>& values) {
  static constexpr const char* kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const std::size_t begin = values.size() > kSparkCells ? values.size() - kSparkCells : 0;
  double low = INFINITY, high = -INFINITY;
  for (std::size_t i = begin; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) continue;
    low = std::min(low, values[i]);
    high = std::max(high, values[i]);
  }
  std::string text;
  for (std::size_t i = begin; i < values.size(); ++i) {
    const double share = high > low ? (values[i] - low) / (high - low) : 0.5;
    text +=
        std::isfinite(values[i]) ? kBlocks[static_cast<std::size_t>(std::lround(share * 7))] : "!";
  }
  return text;
}

milliseconds Interval(const WatchOptions& options) {
  return milliseconds(static_cast<std::int64_t>(options.interval_seconds * 1000));
}

class Watcher {
 public:
  Watcher(Session& session, const WatchOptions& options)
      : session_(session),
        options_(options),
        agreement_(session.collector(), options.run, options.against, Interval(options) / 2) {}

  int Run() {
    Collector& collector = session_.collector();
    const Collector::Task task(collector);
    const milliseconds interval = Interval(options_);
    bool answered = false;
    for (;;) {
      Look look;
      const Status asked = Ask(look);
      if (asked.code() == Code::kCancelled) return End();
      const bool waits =
          asked.code() == Code::kNotFound || (asked.code() == Code::kUnavailable && answered);
      if (!asked.ok() && (!waits || options_.once))
        return session_.Fail("watch " + Printable(options_.run), asked);
      answered = answered || asked.ok() || asked.code() == Code::kNotFound;
      if (asked.ok()) {
        if (!options_.against.empty()) agreement_.Update(look.run);
        Show(look);
        if (!std::cout || options_.once || look.run.summary().state() == "finished") return End();
      } else {
        Wait(asked);
      }
      if (!collector.WaitUnlessCancelled(interval)) return End();
    }
  }

 private:
  bool screen() const {
    return session_.terminal().out && session_.options().format == Format::kTable && !options_.once;
  }

  Status Ask(Look& look) {
    v1::GetRunRequest request;
    request.set_run(options_.run);
    auto run = session_.collector().GetRun(request);
    if (!run.ok()) return run.status();
    look.run = *std::move(run);
    MeasureSpeed(look);
    STATCOLLECT_RETURN_IF_ERROR(AskScalars(look));
    return AskEvents(look);
  }

  // Between two looks; at the first one, since the start.
  void MeasureSpeed(Look& look) {
    const v1::RunSummary& summary = look.run.summary();
    if (!summary.has_last_step()) return;
    const auto now = steady_clock::now();
    const double done = static_cast<double>(summary.last_step());
    if (last_look_) {
      const double seconds = std::chrono::duration<double>(now - *last_look_).count();
      look.steps_a_second = std::max(0.0, done - last_step_) / std::max(seconds, 1e-3);
    } else if (summary.attempts() == 1 && summary.end_unix_nanos() > summary.start_unix_nanos()) {
      const double seconds =
          static_cast<double>(summary.end_unix_nanos() - summary.start_unix_nanos()) / 1e9;
      look.steps_a_second = (done - static_cast<double>(summary.first_step()) + 1) / seconds;
    }
    last_look_ = now;
    last_step_ = done;
  }

  Status AskScalars(Look& look) {
    const v1::RunSummary& summary = look.run.summary();
    if (!summary.has_last_step() || RanksOf(look.run).empty()) return Status::Ok();
    v1::ListScalarsRequest request;
    request.set_run(options_.run);
    request.add_ranks(RanksOf(look.run).begin()->rank());
    const std::uint64_t last = summary.last_step();
    request.set_steps(std::to_string(last > kLossSteps ? last - kLossSteps : 0) + "-" +
                      std::to_string(last));
    const auto scalars = session_.collector().ListScalars(request);
    if (!scalars.ok()) return scalars.status();
    for (const v1::ScalarRow& row : scalars->records()) {
      const std::string name = Lower(row.name());
      if (name.find("loss") != std::string::npos && name.find("loss_scale") == std::string::npos)
        look.losses[row.name()].push_back(row.value());
      if (name.ends_with("grad_norm")) look.grad_norm = row.value();
    }
    return Status::Ok();
  }

  Status AskEvents(Look& look) {
    v1::ListEventsRequest request;
    request.set_run(options_.run);
    const auto events = session_.collector().ListEvents(request);
    if (!events.ok()) return events.status();
    look.events.assign(events->records().begin(), events->records().end());
    look.alarms =
        static_cast<std::uint64_t>(std::count_if(look.events.begin(), look.events.end(), IsAlarm));
    std::stable_sort(look.events.begin(), look.events.end(),
                     [](const auto& a, const auto& b) { return a.unix_nanos() < b.unix_nanos(); });
    if (look.events.size() > kEventsShown)
      look.events.erase(look.events.begin(),
                        look.events.end() - static_cast<std::ptrdiff_t>(kEventsShown));
    return Status::Ok();
  }

  // --- what is shown

  static std::uint64_t Lag(const Look& look, const v1::RankInfo& rank) {
    const std::uint64_t last = look.run.summary().last_step();
    return rank.has_last_step() && last > rank.last_step() ? last - rank.last_step() : 0;
  }
  static std::uint64_t LargestLag(const Look& look) {
    std::uint64_t lag = 0;
    for (const v1::RankInfo& rank : RanksOf(look.run)) lag = std::max(lag, Lag(look, rank));
    return lag;
  }
  static std::string Speed(const Look& look) {
    return look.steps_a_second ? fmt::format("{:.3g} steps/s", *look.steps_a_second) : "-";
  }

  void Wait(const Status& why) {
    if (why.message() == waited_for_) return;
    waited_for_ = why.message();
    const std::string text =
        why.code() == Code::kNotFound
            ? "waiting for run " + Printable(options_.run) + ": it does not exist yet"
            : "waiting for the collector: " + Printable(why.message(), 500);
    if (session_.options().format == Format::kTable && !session_.options().quiet)
      std::cout << text << std::endl;
  }

  void Show(const Look& look) {
    waited_for_.clear();
    if (session_.options().format == Format::kJson) {
      std::cout << DumpJson(Json(look), -1) << '\n';
    } else if (screen()) {
      std::cout << (std::exchange(drawn_, true) ? "\x1b[H" : "\x1b[2J\x1b[H")
                << Lines(Screen(look).ToText(session_.terminal())) << "\x1b[J";
    } else if (options_.once) {
      session_.PrintPage(Screen(look));
    } else {
      std::cout << Line(look) << '\n';
    }
    std::cout.flush();
  }

  // Each line erases what it was before.
  static std::string Lines(const std::string& text) {
    std::string lines;
    for (const char c : text) lines += c == '\n' ? std::string("\x1b[K\n") : std::string(1, c);
    return lines;
  }

  int End() const {
    if (drawn_) std::cout << std::endl;
    return kExitSame;
  }

  std::string Line(const Look& look) const {
    const v1::RunSummary& s = look.run.summary();
    std::string text = fmt::format(
        "{:%H:%M:%S} {} {} step {}, {}, {}/{} ranks, lag {}", fmt::localtime(std::time(nullptr)),
        Printable(s.run()), s.state(), s.has_last_step() ? std::to_string(s.last_step()) : "-",
        Speed(look), s.ranks(), RanksExpected(s), LargestLag(look));
    for (const auto& [name, values] : look.losses)
      text += fmt::format(", {} {}", Printable(name), FormatNumber(values.back()));
    if (look.grad_norm) text += ", grad norm " + FormatNumber(*look.grad_norm);
    text += fmt::format(", {} records lost, {} alarms", FormatCount(s.dropped()), look.alarms);
    if (!options_.against.empty()) text += "; " + agreement_.Text();
    const auto alarm = std::find_if(look.events.rbegin(), look.events.rend(), IsAlarm);
    if (alarm != look.events.rend()) text += "; last alarm: " + Printable(alarm->text(), 300);
    return text;
  }

  Page Screen(const Look& look) const {
    const v1::RunSummary& s = look.run.summary();
    Page page;
    page.AddSentence(
        fmt::format("is {}: step {}, {}, {} of {} ranks, {} records, {} lost, {} alarms", s.state(),
                    s.has_last_step() ? std::to_string(s.last_step()) : "-", Speed(look), s.ranks(),
                    RanksExpected(s), FormatCount(s.records()), FormatCount(s.dropped()),
                    look.alarms),
        Printable(s.run()), look.alarms > 0 ? Tone::kWarn : Tone::kGood);
    for (const auto& [name, values] : look.losses)
      page.AddSentence(fmt::format("{} {}", Sparkline(values), FormatNumber(values.back())),
                       Printable(name));
    if (look.grad_norm) page.AddSentence(FormatNumber(*look.grad_norm), "grad norm");
    if (!options_.against.empty())
      page.AddSentence(agreement_.Text(), {}, agreement_.diverged() ? Tone::kBad : Tone::kPlain);
    Table ranks({{"rank", Align::kRight},
                 {"host", Align::kLeft, true, Use::kIfItVaries},
                 {"state"},
                 {"last step", Align::kRight},
                 {"lag", Align::kRight},
                 {"records", Align::kRight},
                 {"lost", Align::kRight, false, Use::kIfItVaries}});
    for (const v1::RankInfo& rank : RanksOf(look.run)) {
      std::uint64_t lost = 0;
      for (const auto& [cause, count] : rank.dropped()) lost += count;
      ranks.AddRow({std::to_string(rank.rank()), rank.host(), rank.state(),
                    rank.has_last_step() ? std::to_string(rank.last_step()) : "-",
                    std::to_string(Lag(look, rank)), FormatCount(rank.records()),
                    FormatCount(lost)});
    }
    page.AddTable(std::move(ranks));
    if (look.events.empty()) return page;
    page.AddHeading("Latest events");
    google::protobuf::RepeatedPtrField<v1::EventRow> events(look.events.begin(), look.events.end());
    page.AddTable(EventTable(events));
    return page;
  }

  nlohmann::ordered_json Json(const Look& look) const {
    nlohmann::ordered_json json;
    json["unix_nanos"] = NowUnixNanos();
    json["summary"] = ToJson(look.run.summary());
    json["steps_per_second"] = look.steps_a_second ? nlohmann::ordered_json(*look.steps_a_second)
                                                   : nlohmann::ordered_json(nullptr);
    json["lag"] = LargestLag(look);
    json["alarms"] = look.alarms;
    json["losses"] = nlohmann::ordered_json::object();
    for (const auto& [name, values] : look.losses)
      json["losses"][Printable(name)] = FormatNumber(values.back());
    json["grad_norm"] = look.grad_norm ? nlohmann::ordered_json(FormatNumber(*look.grad_norm))
                                       : nlohmann::ordered_json(nullptr);
    json["events"] = nlohmann::ordered_json::array();
    for (const v1::EventRow& event : look.events) json["events"].push_back(ToJson(event));
    if (!options_.against.empty()) json["against"] = agreement_.Json();
    return json;
  }

  Session& session_;
  const WatchOptions options_;
  Agreement agreement_;
  std::optional<steady_clock::time_point> last_look_;
  double last_step_ = 0;
  std::string waited_for_;
  bool drawn_ = false;
};

}  // namespace

int Watch(Session& session, const WatchOptions& options) {
  for (const std::string* run : {&options.run, &options.against}) {
    if (run->empty() && run == &options.against) continue;
    if (const Status valid = ValidateRunName(*run); !valid.ok())
      return session.Fail("watch " + Printable(options.run), valid);
  }
  return Watcher(session, options).Run();
}

}  // namespace statcollect::client
