#include "proto/text/routers_text.h"

#include <cmath>
#include <cstddef>

#include <fmt/format.h>

#include "common/names.h"
#include "proto/text/number_text.h"

namespace statcollect {
namespace {

constexpr std::size_t kRoutersShown = 10;

std::string ShareText(double share) {
  const double percent = 100 * share;
  // What is not all must not read as all.
  return percent > 99.9 && percent < 100 ? "over 99.9 %" : fmt::format("{:.3g} %", percent);
}

std::string AgreementText(const v1::RouterDiff& router) {
  const std::uint64_t choices = router.tokens() * router.chosen();
  if (router.flips() == 0) return fmt::format("all {} choices agree", FormatCount(choices));
  return fmt::format(
      "{} of {} choices agree, {} of {} tokens go to other experts",
      ShareText(static_cast<double>(router.agreeing()) / static_cast<double>(choices)),
      FormatCount(choices), FormatCount(router.flips()), FormatCount(router.tokens()));
}

std::string MarginText(const v1::RouterDiff& router) {
  if (router.flips() == 0) return {};
  if (!router.has_margin()) return ", with a margin that is not known";
  const std::string near = router.near_ties() == router.flips() ? "all"
                           : router.near_ties() == 0            ? "none"
                                                                : FormatCount(router.near_ties());
  return fmt::format(
      ", {} of them near ties (largest margin {} of the logits, rounding explains {})", near,
      FormatShort(router.margin()), FormatShort(router.margin_limit()));
}

std::string PartText(const v1::RouterDiff& router) {
  if (router.flips() == 0 || !router.has_explained()) return {};
  return fmt::format("; they make {} of the difference of {}", ShareText(router.explained()),
                     Printable(router.layer()));
}

std::string RouterItself(const v1::RouterDiff& router, const v1::DiffReport& report) {
  if (router.dtype_a() != router.dtype_b()) {
    return fmt::format(
        "; its logits are {} in {} and {} in {}: the difference begins in the router",
        router.dtype_a(), Printable(report.run_a()), router.dtype_b(), Printable(report.run_b()));
  }
  if (!router.has_distance()) return "; its logits were not recorded";
  if (router.distance() > router.distance_limit()) {
    const std::string apart = std::isfinite(router.distance())
                                  ? "differ by " + FormatShort(router.distance())
                                  : "are not finite in one run only";
    return fmt::format("; its logits {}, rounding explains {}: the difference begins in the router",
                       apart, FormatShort(router.distance_limit()));
  }
  return "; its logits agree up to rounding: it chooses otherwise from the same logits";
}

std::string Behind(const v1::RouterDiff& router) {
  const std::uint64_t same = router.tokens() - router.flips();
  std::string text =
      fmt::format("; {} of {} tokens with the same experts differ at {}",
                  FormatCount(router.apart()), FormatCount(same), Printable(router.layer()));
  if (router.finding() == "expert") {
    return text + fmt::format(", they are {} of the {} of expert {}: the expert differs",
                              router.apart() == router.expert_tokens() ? "all" : "most",
                              FormatCount(router.expert_tokens()), router.expert());
  }
  if (router.has_expert()) {
    text +=
        fmt::format(", of {} of expert {}", FormatCount(router.expert_tokens()), router.expert());
  }
  return text + (router.apart() == same
                     ? ": what the mixture does with all of them differs"
                     : ": these were dropped, or their experts' outputs weighted otherwise");
}

}  // namespace

std::string RouterText(const v1::RouterDiff& router, const v1::DiffReport& report) {
  std::string text = fmt::format("router {}, step {}: {}{}", Printable(router.router()),
                                 router.step(), AgreementText(router), MarginText(router));
  if (router.finding() == "router") return text + RouterItself(router, report);
  text += PartText(router);
  if (router.finding() == "expert" || router.finding() == "tokens") return text + Behind(router);
  if (router.finding() == "before") return text + "; the difference begins before it";
  return text + (router.finding() == "rounding" ? ": rounding" : "");
}

std::vector<std::string> RouterLines(const v1::DiffReport& report) {
  std::vector<std::string> lines;
  std::size_t same = 0, more = 0;
  for (const v1::RouterDiff& router : report.routers()) {
    if (router.finding() == "same") {
      ++same;
    } else if (lines.size() < kRoutersShown) {
      lines.push_back(router.text());
    } else {
      ++more;
    }
  }
  if (more > 0) lines.push_back(fmt::format("{} more routers that differ", FormatCount(more)));
  if (same > 0) {
    lines.push_back(fmt::format("{} {} all tokens to the same experts", FormatCount(same),
                                same == 1 ? "router sends" : "routers send"));
  }
  return lines;
}

}  // namespace statcollect
