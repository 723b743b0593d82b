#include "proto/text/tokens_text.h"

#include <cmath>

#include <fmt/format.h>

#include "common/names.h"
#include "common/text.h"
#include "proto/json.h"
#include "proto/text/number_text.h"

namespace statcollect {
namespace {

// "position 17 (step 3 of trainer, 5 of engine)".
std::string Where(const v1::TokenPlace& place, const v1::GetTokensResponse& found) {
  std::string text = fmt::format("position {}", place.position());
  if (place.step_a() == place.step_b()) return text + fmt::format(" of step {}", place.step_a());
  return text + fmt::format(" (step {} of {}, {} of {})", place.step_a(), Printable(found.run_a()),
                            place.step_b(), Printable(found.run_b()));
}

std::string Sentence(const v1::GetTokensResponse& found) {
  const std::string runs =
      fmt::format("{} and {}", Printable(found.run_a()), Printable(found.run_b()));
  const std::string tokens = fmt::format("{} tokens of {}", FormatCount(found.tokens()), runs);
  if (found.verdict() == v1::VERDICT_INCOMPARABLE)
    return fmt::format("{}: {}.", runs, Printable(found.message(), 1000));
  if (found.verdict() == v1::VERDICT_IDENTICAL)
    return fmt::format("{} have the same bits at all of {} taps.", tokens, found.taps_size());
  if (!found.has_first()) {
    return fmt::format("{} differ by no more than rounding at all of {} taps.", tokens,
                       found.taps_size());
  }
  const v1::TokenTap& tap = found.taps(static_cast<int>(found.first()));
  return fmt::format("{} part at {}: {} of {} rows {}, first at {}; largest distance {}{}.", tokens,
                     Printable(tap.tap()), FormatCount(tap.diverged()), FormatCount(tap.rows()),
                     found.exact() ? "have other bits" : "are beyond rounding",
                     Where(tap.first(), found), ApartText(tap.distance()),
                     found.exact() ? "" : ", rounding explains " + FormatShort(tap.limit()));
}

}  // namespace

std::string ApartText(double distance) {
  return std::isfinite(distance) ? FormatShort(distance) : "not finite in one run only";
}

v1::DiffText TokensText(const v1::GetTokensResponse& found) {
  v1::DiffText text;
  text.set_verdict(found.verdict() == v1::VERDICT_INCOMPARABLE ? "INCOMPARABLE"
                   : found.verdict() == v1::VERDICT_DIVERGED   ? "DIVERGED"
                   : found.verdict() == v1::VERDICT_IDENTICAL  ? "IDENTICAL"
                                                               : "WITHIN TOLERANCE");
  text.set_sentence(Sentence(found));
  return text;
}

}  // namespace statcollect
