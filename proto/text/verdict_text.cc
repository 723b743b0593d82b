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
  const std::string all = fmt::format(
      "all {} records compared are equal in every statistic that both runs recorded", FormatCount(records));
  if (unproven >= records) return all + "; without content hashes it is unknown whether their bits are equal";
  return all + fmt::format(", {} of them bit for bit; the others have no content hash",
                           FormatCount(records - unproven));
}

bool IsOnlyPossible(const v1::DiffReport& report) {
  return report.has_root() && report.root().confidence() == "possible";
}

// The headline of the root, or of the first divergence if there is no root.
std::string RootHeadline(const v1::DiffReport& report) {
  v1::Divergence row = Focus(report);
  if (IsOnlyPossible(report)) {
    row.set_origin(report.root().has_agreeing());
    return "(possible) " + Headline(row, report);
  }
  // Without records above their tolerance, or with a difference in an earlier step, what is before it differs.
  const bool differs_before = !report.has_first() || (report.has_first_bitwise() &&
                                                      report.first_bitwise().step() < report.root().step());
  const bool after_rounding = report.has_root() && !report.root().has_agreeing() && row.origin() &&
                              (report.root().has_times_expected() || differs_before);
  if (after_rounding) row.set_origin(false);
  return Headline(row, report) + (after_rounding ? " Rounding explains everything before it." : "");
}

// " Cause: eps is 1e-05 in base and 0.001 in ort (blocks.1.ln2)."
std::string CauseText(const v1::DiffReport& report) {
  if (!report.has_root() || !report.root().has_cause()) return {};
  const v1::Cause& cause = report.root().cause();
  const bool sure = cause.confidence() == "certain";
  return fmt::format(" {}: {}.", sure ? "Cause" : fmt::format("Cause ({})", Printable(cause.confidence())),
                     Printable(cause.text(), 1000));
}

// Describes differences that rounding or tolerances explain.
v1::DiffText WithinText(const std::string& runs, const v1::DiffReport& report) {
  const v1::Compared& compared = report.compared();
  const std::uint64_t differ = compared.within_tolerance() + compared.diverged();
  const std::string of =
      fmt::format("{} of {} records differ", FormatCount(differ), FormatCount(compared.records()));
  if (report.explained() == "rounding" && report.has_first()) {
    return Words(
        "SAME UP TO ROUNDING",
        fmt::format(
            "{}: {}, and rounding explains all of them: no tensor differs by more than its inputs and "
            "usual rounding explain.",
            runs, of));
  }
  if (report.has_root()) {
    return Words(
        "WITHIN TOLERANCE",
        fmt::format(
            "{}: {}, none by more than its tolerance. But rounding does not explain them: they begin {}{}",
            runs, of, RootHeadline(report), CauseText(report)));
  }
  return Words("WITHIN TOLERANCE",
               fmt::format("{}: {}, none by more than its tolerance{}.", runs, of,
                           report.explained() == "rounding" ? "; rounding explains all of them" : ""));
}

}  // namespace

v1::DiffText VerdictText(const v1::DiffReport& report) {
  const std::string runs = fmt::format("{} and {}", Printable(report.run_a()), Printable(report.run_b()));
  switch (report.verdict()) {
    case v1::VERDICT_IDENTICAL:
      return Words("IDENTICAL", fmt::format("{}: {}.", runs, EqualText(report)));
    case v1::VERDICT_WITHIN_TOLERANCE:
      // Rounding and a loss scale also explain records above their tolerance.
      if (report.compared().within_tolerance() + report.compared().diverged() > 0)
        return WithinText(runs, report);
      return Words("WITHIN TOLERANCE", fmt::format("{}: {}{} exist in only one run.", runs, EqualText(report),
                                                   report.without_hash() > 0 ? ". Others" : "; others"));
    case v1::VERDICT_DIVERGED:
      return Words("DIVERGED", RootHeadline(report) + CauseText(report));
    default:
      return Words("INCOMPARABLE", fmt::format("{}: {}.", runs, Printable(report.message(), 1000)));
  }
}

v1::DiffText TextOf(const v1::DiffReport& report) {
  v1::DiffText text = VerdictText(report);
  if (report.verdict() != v1::VERDICT_DIVERGED && !report.has_root()) return text;
  const std::string next = NextStep(report);
  text.set_next(next.ends_with('?') ? next : next + ".");
  if (const std::string values = ValuesAdvice(report); !values.empty()) text.set_values(values + ".");
  return text;
}

}  // namespace statcollect
