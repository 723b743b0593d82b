#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "client/commands/captures.h"
#include "client/commands/commands.h"
#include "client/commands/value_diff.h"
#include "common/names.h"
#include "proto/json.h"

namespace statcollect::client {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kBarWidth = 40;

std::string IndexText(const std::vector<std::int64_t>& index) {
  std::string text;
  for (const std::int64_t i : index) text += (text.empty() ? "" : ", ") + std::to_string(i);
  return "[" + text + "]";
}

// "[0:16, 3:4, 0:128]": where every element that differs lies.
std::string BoxText(const ValueDiff& diff) {
  std::string text;
  for (std::size_t d = 0; d < diff.low.size(); ++d)
    text += (d > 0 ? ", " : "") + fmt::format("{}:{}", diff.low[d], diff.high[d] + 1);
  return "[" + text + "]";
}

std::uint64_t BoxElements(const ValueDiff& diff) {
  std::uint64_t elements = 1;
  for (std::size_t d = 0; d < diff.low.size(); ++d)
    elements *= static_cast<std::uint64_t>(diff.high[d] - diff.low[d] + 1);
  return elements;
}

double Share(std::uint64_t part, std::uint64_t of) {
  return of == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(of);
}

std::string BucketText(int bucket) {
  const int decade = bucket + ValueDiff::kLowest;
  if (bucket == 0) return fmt::format("below 1e{}", decade + 1);
  if (bucket == ValueDiff::kBuckets - 1) return fmt::format("1e{} and more", decade);
  return fmt::format("1e{}..1e{}", decade, decade + 1);
}

Table Histogram(const ValueDiff& diff) {
  Table table({{"|a - b|"}, {"elements", Align::kRight}, {""}});
  std::uint64_t most = diff.elements - diff.differ;
  int first = ValueDiff::kBuckets, last = -1;
  for (int i = 0; i < ValueDiff::kBuckets; ++i) {
    const std::uint64_t count = diff.buckets[static_cast<std::size_t>(i)];
    most = std::max(most, count);
    if (count == 0) continue;
    first = std::min(first, i);
    last = i;
  }
  const auto bar = [&](std::uint64_t count) {
    if (count == 0) return std::string();
    return std::string(
        std::max<std::size_t>(1, static_cast<std::size_t>(Share(count, most) / 100 * kBarWidth)),
        '#');
  };
  table.AddRow(
      {"same bits", FormatCount(diff.elements - diff.differ), bar(diff.elements - diff.differ)});
  for (int i = first; i <= last; ++i) {
    const std::uint64_t count = diff.buckets[static_cast<std::size_t>(i)];
    table.AddRow({BucketText(i), FormatCount(count), bar(count)});
  }
  return table;
}

Table Extremes(const ValueDiff& diff, const DiffValuesOptions& options) {
  Table table({{""},
               {"index"},
               {Printable(options.run_a), Align::kRight},
               {Printable(options.run_b), Align::kRight},
               {"|a - b|", Align::kRight},
               {"relative", Align::kRight}});
  const auto add = [&](const char* what, const std::optional<ValueDiff::Element>& element) {
    if (!element) return;
    table.AddRow({what, IndexText(element->index), FormatNumber(element->a),
                  FormatNumber(element->b), FormatShort(element->absolute),
                  FormatShort(element->relative)});
  };
  add("largest", diff.largest);
  add("largest relative", diff.largest_relative);
  add("first", diff.first);
  return table;
}

Page MakePage(const ValueDiff& diff, const TensorValues& a, const TensorValues& b,
              const DiffValuesOptions& options) {
  Page page;
  const std::string what = CaptureText(a.row);
  if (!diff.incomparable.empty()) {
    page.AddSentence(what + ": " + diff.incomparable + ".", "INCOMPARABLE", Tone::kBad);
    return page;
  }
  if (diff.same()) {
    page.AddSentence(
        fmt::format("{}: all {} elements have the same bits.", what, FormatCount(diff.elements)),
        "EQUAL", Tone::kGood);
  } else {
    page.AddSentence(fmt::format("{}: {} of {} elements ({:.3g} %), distance {}.", what,
                                 FormatCount(diff.differ), FormatCount(diff.elements),
                                 Share(diff.differ, diff.elements), FormatShort(diff.distance)),
                     "DIFFER", Tone::kBad);
  }
  if (!a.whole() || !b.whole()) {
    page.AddSentence(
        fmt::format("Only the first {} of {} elements were kept and compared; --max-bytes of "
                    "statctl values get keeps more.",
                    FormatCount(diff.elements), FormatCount(a.row.numel())));
  }
  if (diff.same()) return page;
  if (!diff.low.empty()) {
    page.AddSentence(fmt::format("The elements that differ lie in {} of {} and are {:.3g} % of it.",
                                 BoxText(diff), CaptureShapeText(a.row),
                                 Share(diff.differ, BoxElements(diff))));
  }
  if (diff.nan_only_a + diff.nan_only_b + diff.infinite > 0) {
    page.AddSentence(fmt::format("NaN only in {}: {}; only in {}: {}; infinities on one side: {}.",
                                 Printable(options.run_a), FormatCount(diff.nan_only_a),
                                 Printable(options.run_b), FormatCount(diff.nan_only_b),
                                 FormatCount(diff.infinite)));
  }
  if (diff.equal_value > 0) {
    page.AddSentence(
        fmt::format("{} of them differ in bits only (0 and -0, or NaN with different bits).",
                    FormatCount(diff.equal_value)));
  }
  page.AddTable(Extremes(diff, options));
  page.AddSentence(fmt::format("Mean |a - b| {}, root mean square {}, over the finite elements.",
                               FormatShort(diff.mean_absolute), FormatShort(diff.rms)));
  page.AddTable(Histogram(diff));
  return page;
}

Json ElementJson(const std::optional<ValueDiff::Element>& element) {
  if (!element) return nullptr;
  const auto number = [](double value) {
    return std::isfinite(value) ? Json(value)
                                : Json(std::isnan(value) ? "NaN"
                                       : value > 0       ? "Infinity"
                                                         : "-Infinity");
  };
  return {{"index", element->index},
          {"a", number(element->a)},
          {"b", number(element->b)},
          {"absolute", number(element->absolute)},
          {"relative", number(element->relative)}};
}

Json MakeJson(const ValueDiff& diff, const TensorValues& a, const TensorValues& b,
              const DiffValuesOptions& o) {
  Json json = {{"run_a", o.run_a},
               {"run_b", o.run_b},
               {"verdict", !diff.incomparable.empty() ? "incomparable"
                           : diff.same()              ? "identical"
                                                      : "differ"},
               {"message", diff.incomparable},
               {"a", ToJson(a.row)},
               {"b", ToJson(b.row)},
               {"elements", diff.elements},
               {"differ", diff.differ},
               {"equal_value", diff.equal_value},
               {"nan_only_a", diff.nan_only_a},
               {"nan_only_b", diff.nan_only_b},
               {"infinite", diff.infinite},
               {"distance", diff.distance},
               {"mean_absolute", diff.mean_absolute},
               {"rms", diff.rms},
               {"low", diff.low},
               {"high", diff.high}};
  json["largest"] = ElementJson(diff.largest);
  json["largest_relative"] = ElementJson(diff.largest_relative);
  json["first"] = ElementJson(diff.first);
  json["histogram"] = Json::array();
  for (int i = 0; i < ValueDiff::kBuckets; ++i) {
    if (const std::uint64_t count = diff.buckets[static_cast<std::size_t>(i)]; count > 0)
      json["histogram"].push_back({{"magnitude", BucketText(i)}, {"elements", count}});
  }
  return json;
}

}  // namespace

int DiffValues(Session& session, const DiffValuesOptions& options) {
  const std::string attempted =
      fmt::format("diff-values {} {} {}", Printable(options.run_a), Printable(options.run_b),
                  Printable(options.place.activation));
  for (const std::string* run : {&options.run_a, &options.run_b}) {
    if (const Status valid = ValidateRunName(*run); !valid.ok())
      return session.Fail(attempted, valid);
  }
  const auto a = FetchCapture(session, options.run_a, options.place, options.rank);
  if (!a.ok()) return session.Fail(attempted, a.status());
  CapturePlace place = options.place;
  if (!options.activation_b.empty()) place.activation = options.activation_b;
  const auto b = FetchCapture(session, options.run_b, place, options.rank_b.value_or(options.rank));
  if (!b.ok()) return session.Fail(attempted, b.status());
  const ValueDiff diff = CompareValues(*a, *b);
  if (session.options().format == Format::kJson) {
    session.PrintLine(DumpJson(MakeJson(diff, *a, *b, options)));
  } else if (session.options().format == Format::kCsv) {
    session.PrintCsv(Histogram(diff));
  } else {
    session.PrintPage(MakePage(diff, *a, *b, options));
  }
  if (!diff.incomparable.empty()) return kExitNoAnswer;
  return diff.same() ? kExitSame : kExitDiverged;
}

}  // namespace statcollect::client
