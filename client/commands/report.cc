// The report of a diff for people: verdict, first origin, what diverged, what was compared, what
// could not be, what to do next.
#include <algorithm>
#include <iterator>
#include <set>

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "common/names.h"
#include "common/text.h"
#include "common/twin_name.h"
#include "proto/json.h"
#include "proto/text/comparable_text.h"
#include "proto/text/divergence_text.h"
#include "proto/text/routers_text.h"
#include "proto/text/verdict_text.h"

namespace statcollect::client {
namespace {

constexpr int kOriginsShown = 5;
constexpr int kConfigShown = 20;

Tone ToneOf(const v1::DiffReport& report, const std::string& verdict) {
  if (report.verdict() == v1::VERDICT_DIVERGED) return Tone::kBad;
  const bool warns = report.verdict() == v1::VERDICT_INCOMPARABLE ||
                     (report.has_root() && verdict == "WITHIN TOLERANCE" &&
                      report.compared().within_tolerance() > 0);
  return warns ? Tone::kWarn : Tone::kGood;
}

void AddVerdict(const v1::DiffReport& report, Page& page) {
  const v1::DiffText text = VerdictText(report);
  page.AddSentence(text.sentence(), text.verdict(), ToneOf(report, text.verdict()));
}

// Both sides of the first origin, statistic by statistic.
class SidesTable {
 public:
  SidesTable(const v1::DiffReport& report)
      : first_(Focus(report)),
        table_({{""},
                {Printable(report.run_a()), Align::kRight, true},
                {Printable(report.run_b()), Align::kRight, true},
                {"relative change", Align::kRight}}) {}

  Table Make() && {
    const v1::ObservationSide &a = first_.a(), &b = first_.b();
    if (a.has_value() || b.has_value()) {
      Value("value", a.has_value(), b.has_value(), a.value(), b.value());
      return std::move(table_);
    }
    Text("dtype", a.dtype(), b.dtype());
    Text("shape", ShapeText(a.shape()), ShapeText(b.shape()));
    Value("min", a.has_min(), b.has_min(), a.min(), b.min());
    Value("max", a.has_max(), b.has_max(), a.max(), b.max());
    Value("mean", a.has_mean(), b.has_mean(), a.mean(), b.mean());
    Value("std", a.has_std(), b.has_std(), a.std(), b.std());
    if (!a.has_l2() && !b.has_l2() && (a.has_l1() || b.has_l1()))  // of a tool without the other
      Value("l1", a.has_l1(), b.has_l1(), a.l1(), b.l1());
    else
      Value("l2", a.has_l2(), b.has_l2(), a.l2(), b.l2());
    Count("nan", a.has_nan(), b.has_nan(), a.nan(), b.nan());
    Count("inf", KnowsInfinities(a), KnowsInfinities(b), Infinities(a), Infinities(b));
    Count("zero", a.has_zero(), b.has_zero(), a.zero(), b.zero());
    return std::move(table_);
  }

 private:
  void Text(const std::string& name, const std::string& a, const std::string& b) {
    table_.AddRow({name, first_.has_a() ? a : "-", first_.has_b() ? b : "-"});
  }
  void Value(const std::string& name, bool has_a, bool has_b, double a, double b) {
    table_.AddRow({name, has_a ? FormatNumber(a) : "-", has_b ? FormatNumber(b) : "-",
                   has_a && has_b ? FormatChange(a, b) : ""});
  }
  static bool KnowsInfinities(const v1::ObservationSide& side) {
    return side.has_inf() || side.has_pos_inf();
  }
  static std::uint64_t Infinities(const v1::ObservationSide& side) {
    return side.inf() + side.pos_inf() + side.neg_inf();
  }
  void Count(const std::string& name, bool has_a, bool has_b, std::uint64_t a, std::uint64_t b) {
    Text(name, has_a ? FormatCount(a) : "-", has_b ? FormatCount(b) : "-");
  }

  const v1::Divergence first_;
  Table table_;
};

bool SamePlace(const v1::Divergence& a, const v1::Divergence& b) {
  return a.step() == b.step() && a.rank() == b.rank() && a.stage() == b.stage() &&
         a.activation() == b.activation() && a.micro_batch() == b.micro_batch();
}

// Of runs that cut the tensor differently: where in it they differ.
void AddParts(const v1::Divergence& focus, Page& page) {
  if (focus.parts().empty()) return;
  std::vector<std::string> items;
  for (const v1::DifferingPart& part : focus.parts()) {
    v1::Divergence holders;
    *holders.mutable_ranks_a() = part.ranks_a();
    *holders.mutable_ranks_b() = part.ranks_b();
    items.push_back(fmt::format("{}: ranks {}, distance {}", Printable(part.place()),
                                RankText(holders), FormatShort(part.distance())));
  }
  page.AddHeading(fmt::format("Differs in {} of the {} parts that both runs have",
                              focus.parts_size(), focus.parts_total()));
  page.AddItems(std::move(items));
}

void AddFocus(const v1::DiffReport& report, Page& page) {
  const v1::Divergence focus = Focus(report);
  page.AddHeading(fmt::format("{}: {}, step {}, micro-batch {}, rank {}",
                              report.has_root() ? "Root" : "First origin", PlaceText(focus),
                              focus.step(), focus.micro_batch(), RankText(focus)));
  if (focus.has_a() || focus.has_b()) page.AddTable(SidesTable(report).Make());
  AddParts(focus, page);
}

// Why the root is believed to be one, where its effect shows, and what else it might be.
void AddReasons(const v1::DiffReport& report, Page& page) {
  if (!report.has_root()) return;
  const v1::Root& root = report.root();
  std::vector<std::string> items;
  for (const std::string& because : root.because()) items.push_back(Printable(because, 1000));
  if (root.has_agreeing() && root.agreeing() > 0)
    items.push_back(fmt::format("{} records of its rank were compared before it",
                                FormatCount(root.agreeing())));
  const v1::Divergence row = RowOf(root);
  if (report.has_first() && !SamePlace(row, report.first()))
    items.push_back(fmt::format("first above its tolerance: {}, distance {}",
                                WhereText(report.first()), DistanceText(report.first())));
  for (const v1::Divergence& other : root.alternatives())
    items.push_back(
        fmt::format("also possible: {}, distance {}", WhereText(other), DistanceText(other)));
  page.AddHeading(fmt::format("Why there ({})", Printable(root.confidence())));
  page.AddItems(std::move(items));
}

// How far apart the runs are, step by step.
void AddCurve(const v1::DiffReport& report, Page& page) {
  constexpr int kPointsShown = 8;
  const auto& points = report.growth().points();
  if (report.explained() != "rounding" || points.size() < 2) return;
  Table table(
      {{"step", Align::kRight}, {"typical distance", Align::kRight}, {"largest", Align::kRight}});
  const int shown = std::min<int>(kPointsShown, points.size());
  for (int i = 0; i < shown; ++i) {
    const v1::GrowthPoint& point = points[i * (points.size() - 1) / (shown - 1)];
    table.AddRow({std::to_string(point.step()),
                  point.has_distance() ? FormatShort(point.distance()) : "-",
                  point.has_distance_max() ? FormatShort(point.distance_max()) : "-"});
  }
  page.AddHeading("How rounding grows");
  page.AddTable(std::move(table));
}

void AddDiverged(const v1::DiffReport& report, Page& page) {
  Table table({{"step", Align::kRight, false, Use::kIfItVaries},
               {"mb", Align::kRight, false, Use::kIfItVaries},
               {"rank", Align::kRight, false, Use::kIfItVaries},
               {"stage", Align::kLeft, false, Use::kIfItVaries},
               {"activation", Align::kLeft, true},
               {"reason", Align::kLeft, false, Use::kIfItVaries},
               {"distance", Align::kRight},
               {"tolerance", Align::kRight, false, Use::kIfItVaries},
               {"cause"}});
  const std::vector<std::string> causes = CausesOf(report);
  for (int i = 0; i < report.diverged_size(); ++i) {
    const v1::Divergence& d = report.diverged(i);
    table.AddRow({std::to_string(d.step()), std::to_string(d.micro_batch()), RankText(d),
                  StageText(d), PlaceText(d), ReasonText(d, report), DistanceText(d),
                  d.has_tolerance() ? FormatShort(d.tolerance()) : "-",
                  causes[static_cast<std::size_t>(i)]});
  }
  const auto shown = static_cast<std::uint64_t>(report.diverged_size());
  const std::uint64_t total = std::max(report.compared().diverged(), shown);
  page.AddHeading(
      total > shown
          ? fmt::format("Diverged, in order of execution (first {} of {}; --all lists every one)",
                        FormatCount(shown), FormatCount(total))
          : "Diverged, in order of execution");
  page.AddTable(std::move(table));
}

void AddOtherOrigins(const v1::DiffReport& report, Page& page) {
  if (report.origins_size() < 2) return;
  page.AddHeading("Further independent origins");
  std::vector<std::string> items;
  for (int i = 1; i < report.origins_size() && i <= kOriginsShown; ++i) {
    const v1::Divergence& d = report.origins(i);
    items.push_back(
        fmt::format("{}: {}, distance {}", WhereText(d), ReasonText(d, report), DistanceText(d)));
  }
  if (report.origins_size() > kOriginsShown + 1) {
    items.push_back(fmt::format("and {} more", report.origins_size() - kOriginsShown - 1));
  }
  page.AddItems(std::move(items));
}

// "growth: typical distance 1.2e-6 at step 0, 3e-5 at step 9; about 1.5 times a step"
void AppendGrowth(const v1::DiffReport& report, std::vector<std::string>& items) {
  const auto& points = report.growth().points();
  const auto with_distance = [](const v1::GrowthPoint& point) { return point.has_distance(); };
  const auto first = std::find_if(points.begin(), points.end(), with_distance);
  if (first == points.end()) return;
  std::string text =
      fmt::format("typical distance of records that are not identical: {} at step {}",
                  FormatShort(first->distance()), first->step());
  const auto last = std::find_if(points.rbegin(), points.rend(), with_distance);
  if (last->step() != first->step()) {
    text += fmt::format(", {} at step {}", FormatShort(last->distance()), last->step());
  }
  if (report.growth().has_factor_per_step()) {
    text += fmt::format("; grows {} times a step at first",
                        FormatShort(report.growth().factor_per_step()));
  }
  items.push_back(std::move(text));
}

// "rounding: measured from 5 twins of base, with noise of 1, 32, 1024 and 32768 units in the last
// place" "rounding: measured from the repeats base2 and base3"
std::string MeasuredText(const v1::DiffReport& report) {
  const v1::NoiseSource& noise = report.noise();
  const auto list = [](int count, const auto& item) {
    std::string all;
    for (int i = 0; i < count; ++i)
      all += (i == 0 ? "" : i + 1 == count ? " and " : ", ") + item(i);
    return all;
  };
  if (BaseOfTwin(noise.runs(0)) != report.run_a())
    return fmt::format("rounding: measured from the {} {}",
                       noise.runs_size() == 1 ? "repeat" : "repeats",
                       list(noise.runs_size(), [&](int i) { return Printable(noise.runs(i)); }));
  const std::set<double> sizes(noise.scale().begin(), noise.scale().end());
  const std::string units = list(static_cast<int>(sizes.size()), [&](int i) {
    return fmt::format("{:g}", *std::next(sizes.begin(), i));
  });
  return fmt::format("rounding: measured from {} {} of {}, with noise of {} {} in the last place",
                     noise.scale_size(), noise.scale_size() == 1 ? "twin" : "twins",
                     Printable(report.run_a()), units, units == "1" ? "unit" : "units");
}

void AppendNoise(const v1::DiffReport& report, std::vector<std::string>& items) {
  const bool uncertain =
      report.has_explained() || (report.has_root() && report.root().confidence() != "certain");
  // Who has recorded twins needs to know why they were not used, which a note says.
  const auto refused =
      std::count_if(report.notes().begin(), report.notes().end(), [](const std::string& note) {
        return note.starts_with(kTwinNoteBegin) && note.ends_with(kTwinNoteEnd);
      });
  const bool unused = report.has_noise() && report.noise().twins() == 0 &&
                      BaseOfTwin(report.noise().runs(0)) == report.run_a();
  if (unused || (!report.has_noise() && uncertain))
    items.push_back(unused || refused > 0
                        ? "rounding: judged by rules, because no twin could be used (see below)"
                        : fmt::format("rounding: judged by rules; to measure it: statctl twins {} "
                                      "-- COMMAND",
                                      Printable(report.run_a())));
  if (unused || !report.has_noise()) return;
  if (report.noise().twins() > 0) {
    items.push_back(MeasuredText(report));
    return;
  }
  std::string runs;
  for (const std::string& run : report.noise().runs())
    runs += (runs.empty() ? "" : ", ") + Printable(run);
  items.push_back(
      fmt::format("noise: {} {}; only differences of more than 10 times the noise diverge",
                  report.noise().stored() ? "as saved from repeats" : "from repeats", runs));
}

void AddAligned(const v1::DiffReport& report, Page& page) {
  if (report.aligned().empty()) return;
  constexpr int kAlignedShown = 10;
  Table table({{Printable(report.run_a()), Align::kLeft, true},
               {Printable(report.run_b()), Align::kLeft, true},
               {"matched by"},
               {"confidence", Align::kRight}});
  for (int i = 0; i < report.aligned_size() && i < kAlignedShown; ++i) {
    const v1::AlignedNames& names = report.aligned(i);
    table.AddRow({Printable(names.a()), Printable(names.b()), Printable(names.method()),
                  fmt::format("{:.2f}", names.confidence())});
  }
  page.AddHeading(
      report.aligned_size() > kAlignedShown
          ? fmt::format("Matched names (first {} of {})", kAlignedShown, report.aligned_size())
          : "Matched names");
  page.AddTable(std::move(table));
}

// "0-3"; of merged ranks "0-1 (B: 0-3)".
using RankList = google::protobuf::RepeatedField<std::uint32_t>;
std::string BothRanks(const RankList& a, const RankList& b) {
  const std::string text = RanksText(a);
  return b.empty() ? text : fmt::format("{} (B: {})", text, RanksText(b));
}

void AddCompared(const v1::DiffReport& report, Page& page) {
  const v1::Compared& c = report.compared();
  std::vector<std::string> items = {fmt::format(
      "{} records: {} identical, {} within tolerance, {} diverged", FormatCount(c.records()),
      FormatCount(c.identical()), FormatCount(c.within_tolerance()), FormatCount(c.diverged()))};
  if (report.verdict() == v1::VERDICT_DIVERGED) {
    const v1::Spread& spread = report.spread();
    items.push_back(fmt::format(
        "spread: {} of {} activations, {} step{}, ranks {}", FormatCount(spread.activations()),
        FormatCount(spread.activations_total()), FormatCount(spread.steps()),
        spread.steps() == 1 ? "" : "s", BothRanks(spread.ranks(), spread.ranks_b())));
  }
  AppendGrowth(report, items);
  AppendNoise(report, items);
  if (report.has_first_bitwise() &&
      !(report.has_first() && SamePlace(report.first(), report.first_bitwise()))) {
    const v1::Divergence& d = report.first_bitwise();
    items.push_back(fmt::format("first difference of any size: {}, {}", WhereText(d),
                                d.has_distance() && d.distance() == 0
                                    ? "smaller than its sketch resolves"
                                    : "distance " + DistanceText(d)));
  }
  page.AddHeading("Compared");
  page.AddItems(std::move(items));
}

void AddRouters(const v1::DiffReport& report, Page& page) {
  std::vector<std::string> lines = RouterLines(report);
  if (lines.empty()) return;
  page.AddHeading("Routers");
  page.AddItems(std::move(lines));
}

void AddRemarks(const v1::DiffReport& report, Page& page) {
  std::vector<std::string> items;
  for (const std::string& note : report.notes()) items.push_back(Printable(note, 1000));
  if (items.empty()) return;
  page.AddHeading("Remarks");
  page.AddItems(std::move(items));
}

void AddConfiguration(const v1::DiffReport& report, Page& page) {
  const auto& differences = report.inputs().config();
  if (differences.empty()) return;
  Table table({{"key", Align::kLeft, true},
               {Printable(report.run_a()), Align::kLeft, true},
               {Printable(report.run_b()), Align::kLeft, true}});
  for (int i = 0; i < differences.size() && i < kConfigShown; ++i) {
    const v1::ConfigDifference& d = differences[i];
    table.AddRow({d.key(), d.has_a() ? d.a() : "(not set)", d.has_b() ? d.b() : "(not set)"});
  }
  page.AddHeading(differences.size() > kConfigShown
                      ? fmt::format("Configuration that differs (first {} of {})", kConfigShown,
                                    differences.size())
                      : "Configuration that differs");
  page.AddTable(std::move(table));
}

void AddNextStep(const v1::DiffReport& report, Page& page) {
  const v1::DiffText text = TextOf(report);
  if (!text.next().empty()) page.AddSentence(text.next(), "Next:");
  if (!text.values().empty()) page.AddSentence(text.values(), "Its values:");
}

}  // namespace

Page RenderVerdict(const v1::DiffReport& report) {
  Page page;
  AddVerdict(report, page);
  return page;
}

Page RenderDiff(const v1::DiffReport& report) {
  Page page = RenderVerdict(report);
  if (!report.comparable().empty()) page.AddItems(ComparableLines(report.comparable()));
  if (report.verdict() == v1::VERDICT_DIVERGED || report.has_root()) {
    AddReasons(report, page);
    AddFocus(report, page);
  }
  if (report.verdict() == v1::VERDICT_DIVERGED) {
    AddDiverged(report, page);
    AddOtherOrigins(report, page);
  }
  AddCurve(report, page);
  AddCompared(report, page);
  AddRouters(report, page);
  AddAligned(report, page);
  AddRemarks(report, page);
  AddConfiguration(report, page);
  AddNextStep(report, page);
  return page;
}

}  // namespace statcollect::client
