#include "client/divergence_text.h"

#include <algorithm>

#include <fmt/format.h>

#include "client/table.h"
#include "common/names.h"
#include "proto/json.h"

namespace statcollect::client {
namespace {

// The kind that goes without saying in a stage.
v1::Kind UsualKind(v1::Stage stage) {
  switch (stage) {
    case v1::STAGE_FORWARD:
      return v1::KIND_OUTPUT;
    case v1::STAGE_BACKWARD:
      return v1::KIND_GRAD_OUTPUT;
    case v1::STAGE_GRAD:
      return v1::KIND_WEIGHT_GRAD;
    case v1::STAGE_WEIGHTS:
    case v1::STAGE_OPTIMIZER:
      return v1::KIND_WEIGHT;
    case v1::STAGE_BATCH:
      return v1::KIND_BATCH;
    default:
      return v1::KIND_UNSPECIFIED;
  }
}

bool IsMissing(const v1::Divergence& d) {
  return d.reason() == v1::REASON_MISSING_IN_A || d.reason() == v1::REASON_MISSING_IN_B;
}

std::string NonfiniteText(const v1::ObservationSide& side) {
  if (side.has_value()) return FormatNumber(side.value());
  return fmt::format("{} NaN and {} infinite", FormatCount(side.nan()),
                     FormatCount(side.inf() + side.pos_inf() + side.neg_inf()));
}

std::string MeasureText(const v1::Divergence& d) {
  std::string text;
  if (d.has_distance()) text += fmt::format(", distance {}", FormatShort(d.distance()));
  if (d.has_distance_low() && d.has_distance_high()) {
    text += fmt::format(" ({} to {})", FormatShort(d.distance_low()), FormatShort(d.distance_high()));
  }
  if (d.has_tolerance()) text += fmt::format(", tolerance {}", FormatShort(d.tolerance()));
  if (d.has_times_noise()) text += fmt::format(", {} times noise", FormatShort(d.times_noise()));
  return text;
}

std::string DifferenceText(const v1::Divergence& d) {
  const auto sides = [](const std::string& a, const std::string& b) {
    return fmt::format(", {} in a and {} in b", a, b);
  };
  switch (d.reason()) {
    case v1::REASON_SHAPE:
      return sides(ShapeText(d.a()), ShapeText(d.b()));
    case v1::REASON_DTYPE:
      return sides(Printable(d.a().dtype()), Printable(d.b().dtype())) +
             (d.has_distance() ? ", distance " + DistanceText(d) : "");
    case v1::REASON_NONFINITE:
      return sides(NonfiniteText(d.a()), NonfiniteText(d.b()));
    default:
      return MeasureText(d);
  }
}

// "agrees bit for bit", "agrees to 3e-8"; empty if nothing is known to agree before it.
std::string PreviousText(const v1::Divergence& first) {
  if (first.previous().empty() || first.previous() == first.activation()) return "";
  return "agrees" + (first.has_previous_distance() && first.previous_distance() > 0
                         ? " to " + FormatShort(first.previous_distance())
                         : std::string(" bit for bit"));
}

// Whether the run that lacks the activation in training has it in evaluation.
bool RanInEvaluation(const v1::DiffReport& report) {
  const v1::Divergence& first = report.first();
  const auto& names =
      first.reason() == v1::REASON_MISSING_IN_B ? report.unmatched().only_b() : report.unmatched().only_a();
  const std::string begin = EnumText(*v1::Kind_descriptor(), first.kind()) + " " + first.activation() + "[";
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return name.starts_with(begin) && name.ends_with(" (eval)");
  });
}

std::string MissingAdvice(const v1::DiffReport& report) {
  const v1::Divergence& first = report.first();
  const std::string place = PlaceText(first);
  const bool in_b = first.reason() == v1::REASON_MISSING_IN_B;
  const std::string lacking = Printable(in_b ? report.run_b() : report.run_a());
  switch (first.stage()) {
    case v1::STAGE_WEIGHTS:
      return fmt::format("the models are built differently: {} has no {}", lacking, place);
    case v1::STAGE_BATCH:
      return fmt::format(
          "{} was given no {} here: check how many micro-batches its step has, and whether its optimizer "
          "makes an "
          "update without one",
          lacking, place);
    case v1::STAGE_BACKWARD:
      return fmt::format("no gradient reached {} in {}: look for what is detached or frozen behind it", place,
                         lacking);
    case v1::STAGE_GRAD:
      return fmt::format("{} has no gradient of {}: is it frozen, unused, or left out of the optimizer",
                         lacking, place) +
             "?";
    case v1::STAGE_OPTIMIZER:
      return fmt::format("the optimizers differ: {} has no {}", lacking, place);
    default:
      return RanInEvaluation(report)
                 ? fmt::format("{} ran {} in evaluation mode: is the model set to training?", lacking, place)
                 : fmt::format("{} did not run {}: look at what calls it", lacking, place);
  }
}

std::string ForwardAdvice(const v1::Divergence& first) {
  const std::string agrees = PreviousText(first), place = PlaceText(first);
  if (first.reason() == v1::REASON_ORDER) return fmt::format("look at the order of calls around {}", place);
  if (agrees.empty()) return "look at " + place;
  return fmt::format("look at {}, and at what is computed between it and {}, which {}", place,
                     Printable(first.previous()), agrees);
}

// The gradient of a tensor comes from what used the tensor, so that it is not the named module's own backward
// pass that is wrong.
std::string BackwardAdvice(const v1::Divergence& first) {
  const std::string agrees = PreviousText(first), place = PlaceText(first);
  if (agrees.empty()) {
    return fmt::format(
        "look at how the gradient of the loss comes to {} (scaling, division by micro-batches, hooks): "
        "forward pass "
        "and loss agree",
        place);
  }
  return fmt::format(
      "look at the backward pass between {}, whose gradient {}, and {}: forward pass and loss agree",
      Printable(first.previous()), agrees, place);
}

}  // namespace

std::string StageText(const v1::Divergence& d) { return EnumText(*v1::Stage_descriptor(), d.stage()); }

std::string ReasonText(const v1::Divergence& d) {
  std::string text = EnumText(*v1::Reason_descriptor(), d.reason());
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

std::string PlaceText(const v1::Divergence& d) {
  std::string text = Printable(d.activation());
  if (!d.output_path().empty() && d.output_path() != "0") text += "[" + Printable(d.output_path()) + "]";
  if (d.call() > 0) text += fmt::format(" call {}", d.call());
  if (d.kind() != UsualKind(d.stage())) text += " " + EnumText(*v1::Kind_descriptor(), d.kind());
  if (d.mode() == "eval") text += " (eval)";
  return text;
}

std::string WhereText(const v1::Divergence& d) {
  std::string text = fmt::format("step {}, ", d.step());
  if (d.micro_batch() > 0) text += fmt::format("micro-batch {}, ", d.micro_batch());
  text += fmt::format("rank {}, {}, {}", d.rank(), StageText(d), PlaceText(d));
  if (!d.class_name().empty()) text += " (" + Printable(d.class_name()) + ")";
  return text;
}

std::string DistanceText(const v1::Divergence& d) {
  return d.has_distance() ? FormatShort(d.distance()) : "-";
}

std::string ShapeText(const v1::ObservationSide& side) {
  if (side.shape().empty()) return "0-d";
  std::string text;
  for (const std::int64_t size : side.shape()) text += (text.empty() ? "" : "x") + std::to_string(size);
  return text;
}

std::string Headline(const v1::Divergence& first) {
  return fmt::format("at {}: {}", WhereText(first), ReasonText(first)) + DifferenceText(first) +
         (first.origin() ? "; origin: everything observed before it agrees." : ".");
}

std::string NextStep(const v1::DiffReport& report) {
  const v1::Divergence& first = report.first();
  const std::string agrees = PreviousText(first);
  const std::string after =
      agrees.empty() ? "" : fmt::format("; {}, before it, {}", Printable(first.previous()), agrees);
  if (IsMissing(first)) return MissingAdvice(report);
  switch (first.stage()) {
    case v1::STAGE_WEIGHTS:
      if (first.reason() == v1::REASON_SHAPE) {
        return fmt::format("the models are built differently: {} has another shape", PlaceText(first)) +
               after;
      }
      return "the runs begin with different weights; check seed, checkpoint and initialisation before "
             "anything else" +
             after;
    case v1::STAGE_BATCH:
      return "the runs were fed different data; check the data loader, its seed and its sharding before "
             "anything else" +
             after;
    case v1::STAGE_LOSS:
      return fmt::format("look at how {} is computed: every activation before it agrees", PlaceText(first));
    case v1::STAGE_BACKWARD:
      return BackwardAdvice(first);
    case v1::STAGE_GRAD:
      return fmt::format(
                 "look at how the gradient of {} comes about (reduction over ranks, accumulation, scaling, "
                 "clipping): "
                 "forward and backward agree",
                 PlaceText(first)) +
             after;
    case v1::STAGE_OPTIMIZER:
      return fmt::format(
                 "look at the optimizer (learning rate, weight decay, settings): the gradient of {} agrees, "
                 "its update "
                 "does not",
                 Printable(first.activation())) +
             after;
    default:
      return ForwardAdvice(first);
  }
}

}  // namespace statcollect::client
