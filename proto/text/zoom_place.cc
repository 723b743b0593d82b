#include "proto/text/zoom_place.h"

#include <string_view>

#include <fmt/format.h>

#include "common/names.h"
#include "proto/text/divergence_text.h"
#include "proto/text/verdict_text.h"

namespace statcollect {

std::string ZoomPlace::ToText() const {
  std::string text;
  for (const char c : module) {  // a pattern of the shell that is nothing but the name
    text += std::string_view("*?[").find(c) == std::string_view::npos ? std::string(1, c)
                                                                      : std::string{'[', c, ']'};
  }
  return fmt::format("{}@{}", text, step);
}

Result<ZoomPlace> PlaceToZoom(const v1::DiffReport& report) {
  if (!report.has_root() && report.diverged().empty() && !report.has_first())
    return Status(Code::kNotFound, "their diff names no tensor to zoom into (" +
                                       Printable(VerdictText(report).verdict()) +
                                       "); expected two runs that diverge");
  const v1::Divergence place = Focus(report);
  const bool uncalled = place.reason() == v1::REASON_MISSING_IN_A ||
                        place.reason() == v1::REASON_MISSING_IN_B ||
                        place.reason() == v1::REASON_ORDER;
  const bool renamed = !place.activation_b().empty() && place.activation_b() != place.activation();
  const bool of_module = !place.class_name().empty();
  const bool of_both = !uncalled && !renamed && place.mode() != "eval";
  if (of_module && of_both && place.stage() == v1::STAGE_FORWARD && place.kind() == v1::KIND_OUTPUT)
    return ZoomPlace{.module = place.activation(), .step = place.step()};
  return Status(
      Code::kNotFound,
      fmt::format("their diff begins at {} ({}), step {}, which no forward pass of a module "
                  "computes in the training of both; expected the output of a module; set "
                  "STATAGENT_ZOOM=MODULE@STEP yourself for two further runs",
                  Printable(place.activation()), Name(static_cast<Kind>(place.kind())),
                  place.step()));
}

}  // namespace statcollect
