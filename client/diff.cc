#include <algorithm>
#include <cmath>
#include <cstdio>

#include <fmt/format.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/sync_stream.h>

#include "client/commands.h"
#include "common/names.h"
#include "proto/json.h"

namespace statcollect::client {
namespace {

// "[=====>    ] 40 %" on standard error, rewritten in place; erased at the end.
class ProgressBar {
 public:
  explicit ProgressBar(bool shown) : shown_(shown) {}
  ~ProgressBar() {
    if (drawn_) std::fputs("\r\x1b[K", stderr);
  }
  void Draw(const v1::Progress& progress) {
    if (!shown_ || progress.total() == 0) return;
    constexpr std::size_t kWidth = 40;
    const double share = static_cast<double>(progress.done()) / static_cast<double>(progress.total());
    const auto filled = static_cast<std::size_t>(share * kWidth);
    std::fputs(
        fmt::format("\rcomparing [{:<{}}] {:3.0f} %", std::string(filled, '='), kWidth, share * 100).c_str(),
        stderr);
    drawn_ = true;
  }

 private:
  const bool shown_;
  bool drawn_ = false;
};

v1::DiffRequest MakeRequest(const DiffOptions& options, Status* status) {
  v1::DiffRequest request;
  request.set_run_a(options.run_a);
  request.set_run_b(options.run_b);
  if (options.tolerance) request.set_tolerance(*options.tolerance);
  request.set_exact(options.exact);
  request.set_all(options.all);
  request.set_top(options.top);
  request.set_steps(options.steps);
  const auto ranks = ParseRanks(options.ranks);
  const auto kinds = ParseKinds(options.kinds);
  if (!ranks.ok() || !kinds.ok()) {
    *status =
        ranks.ok() ? Status(Code::kInvalidArgument, "--kinds: " + kinds.status().message()) : ranks.status();
    return request;
  }
  request.mutable_ranks()->Add(ranks->begin(), ranks->end());
  for (const v1::Kind kind : *kinds) request.add_kinds(kind);
  return request;
}

std::string StageText(const v1::Divergence& d) { return EnumText(*v1::Stage_descriptor(), d.stage()); }
std::string ReasonText(const v1::Divergence& d) { return EnumText(*v1::Reason_descriptor(), d.reason()); }

// "blocks.1.ln2", "blocks.1.attn[1] call 2".
std::string PlaceText(const v1::Divergence& d) {
  std::string text = Printable(d.activation());
  if (!d.output_path().empty() && d.output_path() != "0") text += "[" + Printable(d.output_path()) + "]";
  if (d.call() > 0) text += fmt::format(" call {}", d.call());
  if (d.mode() == "eval") text += " (eval)";
  return text;
}

std::string DistanceText(const v1::Divergence& d) {
  return d.has_distance() ? FormatShort(d.distance()) : "-";
}

std::string Headline(const v1::DiffReport& report) {
  const v1::Divergence& first = report.first();
  std::string text = fmt::format("at step {}, rank {}, {}, {}", first.step(), first.rank(), StageText(first),
                                 PlaceText(first));
  if (!first.class_name().empty()) text += " (" + Printable(first.class_name()) + ")";
  text += ": " + ReasonText(first);
  if (first.has_distance()) text += fmt::format(", distance {}", FormatShort(first.distance()));
  if (first.has_distance_low()) {
    text += fmt::format(" ({} to {})", FormatShort(first.distance_low()), FormatShort(first.distance_high()));
  }
  if (first.has_tolerance()) text += fmt::format(", tolerance {}", FormatShort(first.tolerance()));
  return text + "; origin: everything observed before it agrees.";
}

void AddVerdict(const v1::DiffReport& report, Page& page) {
  const std::string runs = fmt::format("{} and {}", Printable(report.run_a()), Printable(report.run_b()));
  const v1::Compared& compared = report.compared();
  switch (report.verdict()) {
    case v1::VERDICT_IDENTICAL:
      page.AddSentence(fmt::format("{}: all {} compared records are equal bit for bit.", runs,
                                   FormatCount(compared.records())),
                       "IDENTICAL", Tone::kGood);
      break;
    case v1::VERDICT_WITHIN_TOLERANCE:
      page.AddSentence(fmt::format("{}: {} of {} records differ, all within tolerance.", runs,
                                   FormatCount(compared.within_tolerance()), FormatCount(compared.records())),
                       "WITHIN TOLERANCE", Tone::kGood);
      break;
    case v1::VERDICT_DIVERGED:
      page.AddSentence(Headline(report), "DIVERGED", Tone::kBad);
      break;
    default:
      page.AddSentence(fmt::format("{}: {}.", runs, Printable(report.message(), 1000)), "INCOMPARABLE",
                       Tone::kWarn);
  }
}

std::string ShapeText(const v1::ObservationSide& side) {
  std::string text = side.dtype() + " [";
  for (int i = 0; i < side.shape_size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(side.shape(i));
  return text + "]";
}

std::string Change(double a, double b) {
  if (a == b) return "";
  const double larger = std::max(std::abs(a), std::abs(b));
  return fmt::format("{:+.2g} %", (b - a) / larger * 100);
}

void AddSides(const v1::DiffReport& report, Page& page) {
  const v1::Divergence& first = report.first();
  Table table({{""},
               {Printable(report.run_a()), Align::kRight},
               {Printable(report.run_b()), Align::kRight},
               {"change", Align::kRight}});
  const auto row = [&](const std::string& name, bool has_a, bool has_b, double a, double b) {
    table.AddRow({name, has_a ? FormatNumber(a) : "-", has_b ? FormatNumber(b) : "-",
                  has_a && has_b ? Change(a, b) : ""});
  };
  const v1::ObservationSide &a = first.a(), &b = first.b();
  if (first.stage() == v1::STAGE_LOSS) {
    row("value", a.has_value(), b.has_value(), a.value(), b.value());
  } else {
    table.AddRow(
        {"tensor", first.has_a() ? ShapeText(a) : "missing", first.has_b() ? ShapeText(b) : "missing", ""});
    row("min", a.has_min(), b.has_min(), a.min(), b.min());
    row("max", a.has_max(), b.has_max(), a.max(), b.max());
    row("mean", a.has_mean(), b.has_mean(), a.mean(), b.mean());
    row("std", a.has_std(), b.has_std(), a.std(), b.std());
    row("l2", a.has_l2(), b.has_l2(), a.l2(), b.l2());
    const auto count = [&](const std::string& name, std::uint64_t x, std::uint64_t y) {
      row(name, first.has_a(), first.has_b(), static_cast<double>(x), static_cast<double>(y));
    };
    count("nan", a.nan(), b.nan());
    count("inf", a.pos_inf() + a.neg_inf(), b.pos_inf() + b.neg_inf());
    count("zero", a.zero(), b.zero());
  }
  page.AddHeading("First origin: " + PlaceText(first) +
                  fmt::format(" (step {}, rank {})", first.step(), first.rank()));
  page.AddTable(std::move(table));
}

Table MakeRows(const v1::DiffReport& report) {
  Table table({{"step", Align::kRight},
               {"mb", Align::kRight},
               {"rank", Align::kRight},
               {"stage"},
               {"activation", Align::kLeft, true},
               {"reason"},
               {"distance", Align::kRight},
               {"tolerance", Align::kRight},
               {"cause"}});
  for (const v1::Divergence& d : report.diverged()) {
    table.AddRow({std::to_string(d.step()), std::to_string(d.micro_batch()), std::to_string(d.rank()),
                  StageText(d), PlaceText(d), ReasonText(d), DistanceText(d),
                  d.has_tolerance() ? FormatShort(d.tolerance()) : "-",
                  d.origin() ? "origin" : "propagated"});
  }
  return table;
}

Table MakeCsv(const v1::DiffReport& report) {
  Table table({{"rank"},
               {"step"},
               {"micro_batch"},
               {"kind"},
               {"activation"},
               {"output_path"},
               {"call"},
               {"stage"},
               {"reason"},
               {"distance"},
               {"tolerance"},
               {"origin"}});
  for (const v1::Divergence& d : report.diverged()) {
    table.AddRow({std::to_string(d.rank()), std::to_string(d.step()), std::to_string(d.micro_batch()),
                  EnumText(*v1::Kind_descriptor(), d.kind()), d.activation(), d.output_path(),
                  std::to_string(d.call()), StageText(d), ReasonText(d),
                  d.has_distance() ? fmt::format("{}", d.distance()) : "",
                  d.has_tolerance() ? fmt::format("{}", d.tolerance()) : "", d.origin() ? "true" : "false"});
  }
  return table;
}

std::vector<std::string> Shortened(const google::protobuf::RepeatedPtrField<std::string>& names,
                                   const std::string& run) {
  constexpr int kShown = 5;
  std::vector<std::string> items;
  for (int i = 0; i < names.size() && i < kShown; ++i)
    items.push_back(fmt::format("only in {}: {}", Printable(run), Printable(names[i])));
  if (names.size() > kShown)
    items.push_back(fmt::format("only in {}: and {} more", Printable(run), names.size() - kShown));
  return items;
}

void AddCompared(const v1::DiffReport& report, Page& page) {
  const v1::Compared& c = report.compared();
  page.AddHeading("Compared");
  std::vector<std::uint32_t> ranks(report.ranks().begin(), report.ranks().end());
  std::vector<std::string> items = {
      fmt::format("{} records: {} identical, {} within tolerance, {} diverged", FormatCount(c.records()),
                  FormatCount(c.identical()), FormatCount(c.within_tolerance()), FormatCount(c.diverged()))};
  if (report.has_steps()) {
    items.push_back(fmt::format("steps {}..{}, ranks {}", report.steps().first(), report.steps().last(),
                                FormatRanges(ranks)));
  }
  items.push_back(
      fmt::format("initial weights: {}; batches: {}", report.inputs().weights(), report.inputs().batches()));
  if (report.verdict() == v1::VERDICT_DIVERGED) {
    const v1::Spread& spread = report.spread();
    items.push_back(fmt::format("spread: {} of {} activations, {} steps, ranks {}",
                                FormatCount(spread.activations()), FormatCount(spread.activations_total()),
                                FormatCount(spread.steps()),
                                FormatRanges({spread.ranks().begin(), spread.ranks().end()})));
  }
  if (report.has_first_bitwise() &&
      (!report.has_first() || report.first_bitwise().activation() != report.first().activation() ||
       report.first_bitwise().step() != report.first().step())) {
    const v1::Divergence& d = report.first_bitwise();
    items.push_back(fmt::format("first difference of any size: step {}, rank {}, {}, {}, distance {}",
                                d.step(), d.rank(), StageText(d), PlaceText(d), DistanceText(d)));
  }
  for (const std::string& item : Shortened(report.unmatched().only_a(), report.run_a()))
    items.push_back(item);
  for (const std::string& item : Shortened(report.unmatched().only_b(), report.run_b()))
    items.push_back(item);
  for (const std::string& note : report.notes()) items.push_back("note: " + Printable(note, 1000));
  page.AddItems(std::move(items));
}

void AddConfiguration(const v1::DiffReport& report, Page& page) {
  if (report.inputs().config().empty()) return;
  page.AddHeading("Configuration that differs");
  Table table({{"key", Align::kLeft, true},
               {Printable(report.run_a()), Align::kLeft, true},
               {Printable(report.run_b()), Align::kLeft, true}});
  for (const v1::ConfigDifference& d : report.inputs().config()) {
    table.AddRow({d.key(), d.has_a() ? d.a() : "(not set)", d.has_b() ? d.b() : "(not set)"});
  }
  page.AddTable(std::move(table));
}

void AddNextStep(const v1::DiffReport& report, Page& page) {
  if (report.verdict() != v1::VERDICT_DIVERGED) return;
  const v1::Divergence& first = report.first();
  std::string text = "look at " + PlaceText(first);
  switch (first.stage()) {
    case v1::STAGE_WEIGHTS:
      text = "the runs begin with different weights: check seed, checkpoint and initialisation first";
      break;
    case v1::STAGE_BATCH:
      text = "the runs were fed different data: check the data loader, its seed and sharding first";
      break;
    case v1::STAGE_GRAD:
      text +=
          ": its gradient differs although the backward pass agrees (reduction over ranks, accumulation, "
          "scaling)";
      break;
    case v1::STAGE_OPTIMIZER:
      text += ": its gradient agrees, the update does not (learning rate, weight decay, optimizer settings)";
      break;
    default:
      break;
  }
  if (!first.previous().empty() && first.previous() != first.activation()) {
    text += fmt::format("; what precedes it, {}, agrees", Printable(first.previous()));
    if (first.previous_distance() > 0) {
      text += fmt::format(" to {}", FormatShort(first.previous_distance()));
    } else {
      text += " bit for bit";
    }
  }
  page.AddSentence(text + ".", "Next:", Tone::kWarn);
}

int ExitCode(const v1::DiffReport& report) {
  switch (report.verdict()) {
    case v1::VERDICT_IDENTICAL:
    case v1::VERDICT_WITHIN_TOLERANCE:
      return kExitSame;
    case v1::VERDICT_DIVERGED:
      return kExitDiverged;
    default:
      return kExitNoAnswer;
  }
}

}  // namespace

Page RenderDiff(const v1::DiffReport& report) {
  Page page;
  AddVerdict(report, page);
  if (report.verdict() == v1::VERDICT_DIVERGED) {
    AddSides(report, page);
    page.AddHeading(fmt::format(
        "Diverged, in order of execution (first {} of {})", report.diverged_size(),
        FormatCount(std::max<std::uint64_t>(report.compared().diverged(), report.diverged_size()))));
    page.AddTable(MakeRows(report));
  }
  AddCompared(report, page);
  AddConfiguration(report, page);
  AddNextStep(report, page);
  return page;
}

int Diff(Session& session, const DiffOptions& options) {
  const std::string attempted = "diff " + Printable(options.run_a) + " " + Printable(options.run_b);
  Status usage;
  const v1::DiffRequest request = MakeRequest(options, &usage);
  if (!usage.ok()) return UsageError(usage.message());
  grpc::ClientContext context;
  session.Prepare(context);
  v1::DiffReport report;
  grpc::Status status;
  {
    ProgressBar bar(session.terminal().err && !session.options().quiet);
    const auto stream = session.query().Diff(&context, request);
    v1::DiffResponse response;
    while (stream->Read(&response)) {
      if (response.has_progress()) bar.Draw(response.progress());
      if (response.has_report()) report = std::move(*response.mutable_report());
    }
    status = stream->Finish();
  }
  if (!status.ok()) return session.Fail(attempted, status);
  if (session.json()) {
    session.PrintJson(report);
  } else if (session.csv()) {
    session.PrintCsv(MakeCsv(report));
  } else {
    session.Print(RenderDiff(report));
  }
  return ExitCode(report);
}

}  // namespace statcollect::client
