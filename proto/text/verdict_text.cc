#include "proto/text/verdict_text.h"

#include <cstdint>
#include <string>

#include <fmt/format.h>

#include "common/names.h"
#include "proto/text/divergence_text.h"
#include "proto/text/number_text.h"

namespace statcollect {
namespace {

v1::DiffText Words(std::string verdict, std::string sentence) {
  v1::DiffText text;
  text.set_verdict(std::move(verdict));
  text.set_sentence(std::move(sentence));
  return text;
}

// "all 48 records compared are equal bit for bit", as far as the content hashes tell.
std::string EqualText(const v1::DiffReport& report) {
  const std::uint64_t records = report.compared().records(), unproven = report.without_hash();
  if (unproven == 0)
    return fmt::format("all {} records compared are equal bit for bit", FormatCount(records));
  const std::string all =
      fmt::format("all {} records compared are equal in every statistic that both runs recorded",
                  FormatCount(records));
  if (unproven >= records)
    return all + "; without content hashes it is unknown whether their bits are equal";
  return all + fmt::format(", {} of them bit for bit; the others have no content hash",
                           FormatCount(records - unproven));
}

// " Steps: 0..5 in both (6); base has 0..11, ort has 0..5.", where one run ended before the other.
std::string StepsText(const v1::DiffReport& report) {
  for (const v1::PremiseCheck& check : report.comparable()) {
    if (check.check() == "steps" && !check.ok())
      return " Steps: " + Printable(check.detail(), 1000) + ".";
  }
  return {};
}

bool IsOnlyPossible(const v1::DiffReport& report) {
  return report.has_root() && report.root().confidence() == "possible";
}

// What is known of what comes before it, as the rest of a headline.
std::string BeforeText(const v1::DiffReport& report) {
  switch (WhatIsBefore(report)) {
    case Before::kNothing:
      return "; origin: nothing observed comes before it.";
    case Before::kAgrees:
      return "; origin: everything observed before it agrees.";
    case Before::kWithinRounding:
      // Not of a root of which an earlier one cannot be excluded.
      return IsOnlyPossible(report) || !report.root().origin()
                 ? "."
                 : ". Rounding explains everything before " + WhatTheRootIsAmong(report) + ".";
    case Before::kWithinTolerance:
      break;
  }
  return ".";
}

// The headline of the root, or of the first divergence if there is no root.
std::string RootHeadline(const v1::DiffReport& report) {
  return (IsOnlyPossible(report) ? "(possible) " : "") + Headline(Focus(report), report) +
         BeforeText(report);
}

// " Cause: eps is 1e-05 in base and 0.001 in ort (blocks.1.ln2)."; of several " Causes: (1) ...;
// (2) ...."
std::string CauseText(const v1::DiffReport& report) {
  if (!report.has_root() || !report.root().has_cause()) return {};
  const v1::Cause& first = report.root().cause();
  const auto& causes = report.root().causes();
  const bool several = causes.size() > 1;
  std::string text = several ? " Causes" : " Cause";
  if (first.confidence() != "certain") text += fmt::format(" ({})", Printable(first.confidence()));
  if (!several) return text + ": " + Printable(first.text(), 1000) + ".";
  for (int i = 0; i < causes.size(); ++i)
    text += fmt::format("{} ({}) {}", i == 0 ? ":" : ";", i + 1, Printable(causes[i].text(), 1000));
  return text + ".";
}

// Describes differences that rounding or tolerances explain.
v1::DiffText WithinText(const std::string& runs, const v1::DiffReport& report) {
  const v1::Compared& compared = report.compared();
  const bool measured = report.noise().twins() > 0, noisy = report.has_noise() && !measured;
  const std::uint64_t differ = compared.within_tolerance() + compared.diverged();
  const std::string of =
      fmt::format("{} of {} records differ", FormatCount(differ), FormatCount(compared.records()));
  if (report.explained() == "rounding" && report.has_first()) {
    return Words(
        "SAME UP TO ROUNDING",
        fmt::format("{}: {}, and {} all of them: no tensor differs by more than its inputs and {} "
                    "explain.{}",
                    runs, of,
                    noisy ? "rounding and the noise of the repeats explain" : "rounding explains",
                    noisy ? "these" : "usual rounding", StepsText(report)));
  }
  if (report.has_root()) {
    return Words(
        "WITHIN TOLERANCE",
        fmt::format("{}: {}, none by more than its tolerance{}. But {} them: they begin {}{}", runs,
                    of, noisy ? " or ten times the noise of the repeats" : "",
                    noisy ? "neither rounding nor the noise explains" : "rounding does not explain",
                    RootHeadline(report), CauseText(report)));
  }
  return Words("WITHIN TOLERANCE",
               fmt::format("{}: {}, none by more than its tolerance{}.", runs, of,
                           report.explained() != "rounding" ? ""
                           : noisy ? "; rounding and the noise of the repeats explain all of them"
                                   : "; rounding explains all of them"));
}

}  // namespace

v1::DiffText VerdictText(const v1::DiffReport& report) {
  const std::string runs =
      fmt::format("{} and {}", Printable(report.run_a()), Printable(report.run_b()));
  switch (report.verdict()) {
    case v1::VERDICT_IDENTICAL:
      return Words(report.without_hash() == 0 ? "IDENTICAL" : "EQUAL",
                   fmt::format("{}: {}.{}", runs, EqualText(report), StepsText(report)));
    case v1::VERDICT_WITHIN_TOLERANCE:
      // Rounding and a loss scale also explain records above their tolerance.
      if (report.compared().within_tolerance() + report.compared().diverged() > 0)
        return WithinText(runs, report);
      return Words(
          "WITHIN TOLERANCE",
          fmt::format("{}: {}{} exist in only one run.{}", runs, EqualText(report),
                      report.without_hash() > 0 ? ". Others" : "; others", StepsText(report)));
    case v1::VERDICT_DIVERGED:
      return Words("DIVERGED", RootHeadline(report) + CauseText(report));
    default:
      return Words("INCOMPARABLE", fmt::format("{}: {}.", runs, Printable(report.message(), 1000)));
  }
}

v1::DiffText TextOf(const v1::DiffReport& report) {
  v1::DiffText text = VerdictText(report);
  if (report.verdict() != v1::VERDICT_DIVERGED && !report.has_root()) return text;
  // Where the cause is certain, there is nothing to look for.
  if (report.root().cause().confidence() != "certain") {
    const std::string next = NextStep(report);
    text.set_next(next.ends_with('?') ? next : next + ".");
  }
  if (const std::string values = ValuesAdvice(report); !values.empty())
    text.set_values(values + ".");
  return text;
}

}  // namespace statcollect
