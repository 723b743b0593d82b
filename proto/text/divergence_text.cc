#include "proto/text/divergence_text.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/capture_spec.h"
#include "common/names.h"
#include "common/text.h"
#include "proto/json.h"
#include "proto/text/number_text.h"
#include "proto/text/shell_word.h"
#include "proto/text/zoom_place.h"

namespace statcollect {
namespace {

constexpr char kGolden[] = "golden", kImport[] = "import";  // DiffReport.source_a

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

// Ranks of one run differ from each other.
bool IsOfReplicas(const v1::Divergence& d) {
  return d.reason() == v1::REASON_NUMERIC && (d.ranks_a_size() == 0) != (d.ranks_b_size() == 0);
}

std::string NonfiniteText(const v1::ObservationSide& side) {
  if (side.has_value()) return FormatNumber(side.value());
  return fmt::format("{} NaN and {} infinite", FormatCount(side.nan()),
                     FormatCount(side.inf() + side.pos_inf() + side.neg_inf()));
}

// `measured`: by what else the distance is judged.
std::string MeasureText(const v1::Divergence& d, const std::string& measured) {
  std::string text;
  if (d.has_distance()) text += fmt::format(", distance {}", FormatShort(d.distance()));
  if (d.has_distance_low() && d.has_distance_high()) {
    text +=
        fmt::format(" ({} to {})", FormatShort(d.distance_low()), FormatShort(d.distance_high()));
  }
  text += measured;
  if (d.has_tolerance()) text += fmt::format(", tolerance {}", FormatShort(d.tolerance()));
  if (d.has_times_noise()) text += fmt::format(", {} times noise", FormatShort(d.times_noise()));
  return text;
}

bool SamePlace(const v1::Divergence& x, const v1::Divergence& y) {
  return x.step() == y.step() && x.micro_batch() == y.micro_batch() && x.rank() == y.rank() &&
         x.stage() == y.stage() && x.kind() == y.kind() && x.activation() == y.activation() &&
         x.output_path() == y.output_path() && x.call() == y.call() && x.mode() == y.mode();
}

// Why a root below its tolerance is one: ", 72 times what rounding explains".
std::string TimesExplained(const v1::Divergence& d, const v1::DiffReport& report) {
  const bool below = d.has_distance() && d.has_tolerance() && d.distance() <= d.tolerance();
  const v1::Root& root = report.root();
  if (!below || !root.has_times_expected() || !SamePlace(RowOf(root), d)) return {};
  return fmt::format(", {} times what rounding explains", FormatShort(root.times_expected()));
}

std::string DifferenceText(const v1::Divergence& d, const v1::DiffReport& report) {
  const auto sides = [&](const std::string& a, const std::string& b) {
    return fmt::format(", {} in {} and {} in {}", a, Printable(report.run_a()), b,
                       Printable(report.run_b()));
  };
  switch (d.reason()) {
    case v1::REASON_SHAPE:
      return sides(ShapeText(d.a().shape()), ShapeText(d.b().shape()));
    case v1::REASON_DTYPE:
      return sides(Printable(d.a().dtype()), Printable(d.b().dtype())) +
             (d.has_distance() ? ", distance " + DistanceText(d) : "");
    case v1::REASON_NONFINITE:
      return sides(NonfiniteText(d.a()), NonfiniteText(d.b()));
    default:
      return MeasureText(d, TimesExplained(d, report));
  }
}

// Missing, of another shape, or in another place: not compared by value.
bool IsStructural(const v1::Divergence& row) {
  return IsMissing(row) || row.reason() == v1::REASON_SHAPE ||
         (row.reason() == v1::REASON_ORDER && !row.has_distance());
}

// Whether a record differs in its bits that certainly comes before the row.
bool DiffersBefore(const v1::Divergence& row, const v1::DiffReport& report) {
  if (!report.has_first_bitwise() || SamePlace(report.first_bitwise(), row)) return false;
  const v1::Divergence& bitwise = report.first_bitwise();
  if (bitwise.step() != row.step()) return bitwise.step() < row.step();
  if (bitwise.stage() != row.stage()) return bitwise.stage() < row.stage();
  if (!IsStructural(row))
    return true;  // the row differs in its bits as well, and is not the first that does
  for (const v1::Divergence& listed : report.diverged()) {
    if (SamePlace(listed, row)) return false;
    if (!IsStructural(listed)) return true;
  }
  return false;
}

// " up to rounding", " within tolerance": how exactly what comes before the focus agrees; empty:
// exactly.
std::string Closeness(const v1::DiffReport& report) {
  switch (WhatIsBefore(report)) {
    case Before::kWithinRounding:
      return " up to rounding";
    case Before::kWithinTolerance:
      return " within tolerance";
    default:
      return "";
  }
}

// "agrees bit for bit", "agrees to 3e-8"; empty if nothing is known to agree before it.
std::string PreviousText(const v1::Divergence& first, const v1::DiffReport& report) {
  if (first.previous().empty() || first.previous() == first.activation()) return "";
  if (first.has_previous_distance() && first.previous_distance() > 0)
    return "agrees to " + FormatShort(first.previous_distance());
  return report.without_hash() == 0 ? "agrees bit for bit" : "agrees in every recorded statistic";
}

// Whether the run that lacks the activation in training has it in evaluation.
bool RanInEvaluation(const v1::DiffReport& report) {
  const v1::Divergence first = Focus(report);
  const auto& names = first.reason() == v1::REASON_MISSING_IN_B ? report.unmatched().only_b()
                                                                : report.unmatched().only_a();
  const std::string begin =
      EnumText(*v1::Kind_descriptor(), first.kind()) + " " + first.activation() + "[";
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return name.starts_with(begin) && name.ends_with(" (eval)");
  });
}

// The name that the lacking run gives an output of the same module; empty if it has none that the
// other run lacks.
std::string OtherNameOfOutput(const v1::DiffReport& report) {
  const v1::Divergence first = Focus(report);
  const auto& names = first.reason() == v1::REASON_MISSING_IN_B ? report.unmatched().only_b()
                                                                : report.unmatched().only_a();
  const std::string begin = "output " + first.activation() + "[";
  for (const std::string& name : names) {
    const std::size_t end = name.find(']', begin.size());
    if (first.kind() != v1::KIND_OUTPUT || !name.starts_with(begin) || end == std::string::npos ||
        name.ends_with(" (eval)"))
      continue;
    const std::string path = name.substr(begin.size(), end - begin.size());
    if (path != first.output_path()) return path;
  }
  return {};
}

std::string MissingAdvice(const v1::DiffReport& report) {
  const v1::Divergence first = Focus(report);
  const std::string place = PlaceText(first);
  const bool in_b = first.reason() == v1::REASON_MISSING_IN_B;
  const std::string lacking = Printable(in_b ? report.run_b() : report.run_a());
  switch (first.stage()) {
    case v1::STAGE_WEIGHTS:
      return fmt::format("the models are built differently: {} has no {}", lacking, place);
    case v1::STAGE_BATCH:
      return fmt::format(
          "{} got no {} here: check how many micro-batches its step has, and whether its optimizer "
          "makes an "
          "update without one",
          lacking, place);
    case v1::STAGE_BACKWARD:
      return fmt::format(
          "no gradient reached {} in {}: look for what is detached or frozen after it", place,
          lacking);
    case v1::STAGE_GRAD:
      return fmt::format(
                 "{} has no gradient of {}: is it frozen, unused, or left out of the optimizer",
                 lacking, place) +
             "?";
    case v1::STAGE_OPTIMIZER:
      return fmt::format("the optimizers differ: {} has no {}", lacking, place);
    default:
      if (const std::string other = OtherNameOfOutput(report); !other.empty())
        return fmt::format(
            "{} calls an output of {} [{}], the other run [{}]: let the model return its outputs "
            "in the same form in both",
            lacking, Printable(first.activation()), Printable(other),
            Printable(first.output_path()));
      return RanInEvaluation(report)
                 ? fmt::format("{} ran {} in evaluation mode: is the model set to training?",
                               lacking, place)
                 : fmt::format("{} did not run {}: look at what calls it", lacking, place);
  }
}

std::string ForwardAdvice(const v1::Divergence& first, const v1::DiffReport& report) {
  const std::string agrees = PreviousText(first, report), place = PlaceText(first);
  if (first.reason() == v1::REASON_ORDER)
    return fmt::format("look at the order of calls around {}", place);
  if (agrees.empty()) return "look at " + place;
  return fmt::format("look at {}, and at what is computed between it and {}, which {}", place,
                     Printable(first.previous()), agrees);
}

// "; statctl zoom base ort names the operator and the line"; empty where nobody can train again, or
// no module's forward pass computes the focus.
std::string ZoomAdvice(const v1::DiffReport& report) {
  for (const std::string& source : {report.source_a(), report.source_b()})
    if (source == kGolden || source == kImport) return {};
  if (!PlaceToZoom(report).ok()) return {};
  return fmt::format("; statctl zoom {} {} leads to the operator and the line of code",
                     ShellWord(report.run_a()), ShellWord(report.run_b()));
}

// The gradient of a tensor comes from what used the tensor, so that it is not the named module's
// own backward pass that is wrong.
std::string BackwardAdvice(const v1::Divergence& first, const v1::DiffReport& report) {
  const std::string agrees = PreviousText(first, report), place = PlaceText(first);
  const auto& causes = report.root().causes();
  const bool loss_differs = std::any_of(causes.begin(), causes.end(), [](const v1::Cause& cause) {
    return cause.rule() == "loss_term";
  });
  const std::string rest =
      (loss_differs ? "the forward pass agrees" : "forward pass and loss agree") +
      Closeness(report);
  if (agrees.empty()) {
    return fmt::format(
        "look at how the gradient of the loss reaches {} (scaling, division by micro-batches, "
        "hooks): {}",
        place, rest);
  }
  return fmt::format("look at the backward pass between {}, whose gradient {}, and {}: {}",
                     Printable(first.previous()), agrees, place, rest);
}

}  // namespace

v1::Divergence RowOf(const v1::Root& root) {
  v1::Divergence row;
  row.ParsePartialFromString(root.SerializePartialAsString());
  row.DiscardUnknownFields();
  return row;
}

v1::Divergence Focus(const v1::DiffReport& report) {
  return report.has_root() ? RowOf(report.root()) : report.first();
}

Before WhatIsBefore(const v1::DiffReport& report) {
  const v1::Divergence focus = Focus(report);
  const bool differs = DiffersBefore(focus, report);
  if (!report.has_root())
    return focus.origin() && !differs ? Before::kAgrees : Before::kWithinTolerance;
  const v1::Root& root = report.root();
  if (root.has_agreeing()) return root.agreeing() > 0 ? Before::kAgrees : Before::kNothing;
  // Weights as they were loaded: of models that are built differently there is nothing that could
  // agree.
  if (focus.stage() == v1::STAGE_WEIGHTS && IsStructural(focus)) return Before::kNothing;
  const bool only_first = report.has_first() && SamePlace(focus, report.first());
  if (root.confidence() == "possible" && only_first) return Before::kWithinTolerance;
  // Of a difference in size that something computed, all that comes before it is counted, unless
  // some of it differs.
  const bool in_size = focus.reason() == v1::REASON_NUMERIC || focus.reason() == v1::REASON_BITWISE;
  return differs || (in_size && focus.stage() > v1::STAGE_BATCH) ? Before::kWithinRounding
                                                                 : Before::kAgrees;
}

std::string WhatTheRootIsAmong(const v1::DiffReport& report) {
  const v1::Divergence root = Focus(report);
  if (root.stage() != v1::STAGE_GRAD && root.stage() != v1::STAGE_OPTIMIZER) return "it";
  for (const v1::Divergence& row : report.diverged()) {
    if (SamePlace(row, root)) break;
    if (row.step() == root.step() && row.stage() == root.stage())
      return root.stage() == v1::STAGE_GRAD ? "the gradients of this step"
                                            : "the updates of this step";
  }
  return "it";
}

std::vector<std::string> CausesOf(const v1::DiffReport& report) {
  const auto& rows = report.diverged();
  const v1::Divergence root = report.has_root() ? RowOf(report.root()) : v1::Divergence();
  const auto carries = [](const v1::Divergence& row) {
    return row.stage() != v1::STAGE_LOSS && !IsStructural(row);
  };
  const bool listed = std::any_of(rows.begin(), rows.end(),
                                  [&](const v1::Divergence& row) { return SamePlace(row, root); });
  const bool before =
      report.has_root() && !rows.empty() &&
      std::pair(root.step(), root.stage()) <= std::pair(rows[0].step(), rows[0].stage());
  bool carried = before && !listed && carries(root);
  bool by_models = carried && root.stage() > v1::STAGE_BATCH;
  std::vector<std::string> causes;
  for (const v1::Divergence& row : rows) {
    const bool given =
        row.stage() == v1::STAGE_WEIGHTS || (row.stage() == v1::STAGE_BATCH && !by_models);
    causes.emplace_back(row.origin()                             ? "origin"
                        : given || !carried || IsStructural(row) ? "-"
                                                                 : "propagated");
    carried = carried || carries(row);
    by_models = by_models || (carries(row) && row.stage() > v1::STAGE_BATCH);
  }
  return causes;
}

std::string StageText(const v1::Divergence& d) {
  return EnumText(*v1::Stage_descriptor(), d.stage());
}

std::string ReasonText(const v1::Divergence& d, const v1::DiffReport& report) {
  if (d.reason() == v1::REASON_MISSING_IN_A) return "missing in " + Printable(report.run_a());
  if (d.reason() == v1::REASON_MISSING_IN_B) return "missing in " + Printable(report.run_b());
  if (IsOfReplicas(d)) {
    const bool in_a = d.ranks_b_size() == 0;
    return "the replicas of " + Printable(in_a ? report.run_a() : report.run_b()) + " differ";
  }
  std::string text = EnumText(*v1::Reason_descriptor(), d.reason());
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

std::string PlaceText(const v1::Divergence& d) {
  std::string text = Printable(d.activation());
  if (!d.output_path().empty() && d.output_path() != "0")
    text += "[" + Printable(d.output_path()) + "]";
  if (d.call() > 0) text += fmt::format(" call {}", d.call());
  if (d.kind() != UsualKind(d.stage())) text += " " + EnumText(*v1::Kind_descriptor(), d.kind());
  if (d.mode() == "eval") text += " (eval)";
  return text;
}

// "rank 0", "ranks 0-3 (B: 0)", "rank 1, which holds [4:8, 0:10] of (8, 10)"
std::string HoldersText(const v1::Divergence& d) {
  const std::string& place = d.has_a() ? d.a().place() : d.b().place();
  return (std::max(d.ranks_a_size(), d.ranks_b_size()) > 1 ? "ranks " : "rank ") + RankText(d) +
         (place.empty() ? "" : ", which holds " + Printable(place));
}

std::string WhereText(const v1::Divergence& d) {
  std::string text = fmt::format("step {}, ", d.step());
  if (d.micro_batch() > 0) text += fmt::format("micro-batch {}, ", d.micro_batch());
  text += fmt::format("{}, {}, {}", HoldersText(d), StageText(d), PlaceText(d));
  if (!d.class_name().empty()) text += " (" + Printable(d.class_name()) + ")";
  return text;
}

std::string RankText(const v1::Divergence& d) {
  if (d.ranks_a_size() + d.ranks_b_size() > 0) {
    const std::string a = RanksText(d.ranks_a()), b = RanksText(d.ranks_b());
    if (d.ranks_a_size() == 0 || d.ranks_b_size() == 0) return d.ranks_a_size() == 0 ? b : a;
    return a == b ? a : fmt::format("{} (B: {})", a, b);
  }
  return d.has_rank_b() ? fmt::format("{} (B: {})", d.rank(), d.rank_b())
                        : std::to_string(d.rank());
}

std::string DistanceText(const v1::Divergence& d) {
  return d.has_distance() ? FormatShort(d.distance()) : "-";
}

std::string Headline(const v1::Divergence& first, const v1::DiffReport& report) {
  return fmt::format("at {}: {}", WhereText(first), ReasonText(first, report)) +
         DifferenceText(first, report);
}

namespace {

// Where another part of the batch agrees, the loader is not the reason.
std::string BatchAdvice(const v1::Divergence& first, const v1::DiffReport& report) {
  for (const v1::Cause& cause : report.root().causes()) {
    if (cause.rule() == "same_samples")
      return fmt::format(
          "both runs have the same samples; look at how {} is made of them (tokenizer, collator, "
          "shift, mask)",
          PlaceText(first));
  }
  return "the runs were fed different data; check the data loader, its seed and its sharding "
         "before anything else";
}

}  // namespace

std::string NextStep(const v1::DiffReport& report) {
  const v1::Divergence first = Focus(report);
  if (IsMissing(first)) return MissingAdvice(report);
  if (report.has_bracket() && report.bracket().has_last_agreeing()) {
    const bool golden = report.source_a() == kGolden || report.source_b() == kGolden;
    return fmt::format(
        "run {} again with steps={}-{}: an overhead budget left tensors of these steps out, and "
        "the "
        "difference may have begun in any of them",
        golden ? "the golden's training and the other one" : "both",
        report.bracket().last_agreeing(), report.bracket().first_seen());
  }
  switch (first.stage()) {
    case v1::STAGE_WEIGHTS:
      if (first.reason() == v1::REASON_SHAPE) {
        return fmt::format("the models are built differently: {} has a different shape",
                           PlaceText(first));
      }
      return "the runs begin with different weights; check seed, checkpoint and initialisation "
             "before "
             "anything else";
    case v1::STAGE_BATCH: {
      const std::string agrees = PreviousText(first, report);
      return BatchAdvice(first, report) + (agrees.empty()
                                               ? ""
                                               : fmt::format("; {}, of the same batch, {}",
                                                             Printable(first.previous()), agrees));
    }
    case v1::STAGE_LOSS:
      return fmt::format(
          "look at how {} is computed: every activation before it agrees{}. Other targets look the "
          "same unless "
          "both runs record them, with statagent.log_batch(labels=...)",
          PlaceText(first), Closeness(report));
    case v1::STAGE_BACKWARD:
      return BackwardAdvice(first, report);
    case v1::STAGE_GRAD:
      if (!report.ranks_b().empty()) {
        return "check first whether the ranks of both runs divide the same batch in this step: "
               "data, "
               "forward and backward passes cannot be compared across numbers of ranks; then look "
               "at "
               "the reduction over ranks, accumulation, scaling and clipping";
      }
      return fmt::format(
          "look at how the gradient of {} is computed (reduction over ranks, accumulation, "
          "scaling, "
          "clipping): forward and backward agree{}",
          PlaceText(first), Closeness(report));
    case v1::STAGE_OPTIMIZER:
      return fmt::format(
          "look at the optimizer (learning rate, weight decay, settings): the gradient of {} "
          "agrees{}, "
          "its update does not",
          Printable(first.activation()), Closeness(report));
    default:
      return ForwardAdvice(first, report) + ZoomAdvice(report);
  }
}

namespace {

// A free name for another launch of the same training: "base-2", then "base-3". A date at the end
// is not incremented.
std::string NextName(const std::string& run) {
  const std::size_t dash = run.find_last_not_of("0123456789");
  const std::size_t digits = run.size() - dash - 1;
  const bool counted = dash != std::string::npos && dash > 0 && run[dash] == '-' && digits > 0 &&
                       digits < 5 && (run[dash - 1] < '0' || run[dash - 1] > '9');
  return counted ? run.substr(0, dash + 1) + std::to_string(std::stoi(run.substr(dash + 1)) + 1)
                 : run + "-2";
}

// A golden's own name says nothing about the training that it was saved from: that gets `other`.
std::string NameOfNextLaunch(const std::string& source, const std::string& run, const char* other) {
  return source == kGolden ? other : ShellWord(NextName(run));
}

}  // namespace

std::string ValuesAdvice(const v1::DiffReport& report) {
  const v1::Divergence first = Focus(report);
  const bool same_tensor = first.reason() == v1::REASON_NUMERIC ||
                           first.reason() == v1::REASON_NONFINITE ||
                           first.reason() == v1::REASON_BITWISE;
  const bool imported = report.source_a() == kImport || report.source_b() == kImport;
  if (first.kind() == v1::KIND_UNSPECIFIED || !same_tensor || imported || IsOfReplicas(first))
    return {};
  CaptureSpec spec{.activation = first.activation(),
                   .micro_batch = first.micro_batch(),
                   .call = first.call(),
                   .mode = ParseMode(first.mode()).value_or(Mode::kTrain),
                   .steps_text = std::to_string(first.step())};
  std::string options = " --step " + spec.steps_text;
  const auto add = [&](const char* option, const std::string& value) {
    options += std::string(" ") + option + " " + ShellWord(value);
  };
  const TensorKey key{.name = spec.activation,
                      .kind = static_cast<Kind>(first.kind()),
                      .output_path = first.output_path(),
                      .micro_batch = spec.micro_batch,
                      .call = spec.call,
                      .mode = spec.mode};
  if (!spec.Matches(key)) {  // the kind does not go without saying
    spec.kind = key.kind;
    add("--kind", std::string(Name(key.kind)));
  }
  if (!key.output_path.empty() && key.output_path != "0") {
    spec.output_path = key.output_path;
    add("--path", key.output_path);
  }
  if (spec.micro_batch > 0) add("--micro-batch", std::to_string(spec.micro_batch));
  if (spec.call > 0) add("--call", std::to_string(spec.call));
  if (spec.mode != Mode::kTrain) add("--mode", std::string(Name(spec.mode)));
  const bool logical = first.ranks_a_size() + first.ranks_b_size() > 0;
  if (!logical && first.rank() > 0) add("--rank", std::to_string(first.rank()));
  if (first.has_rank_b()) add("--rank-b", std::to_string(first.rank_b()));
  const bool renamed = !first.activation_b().empty() && first.activation_b() != spec.activation;
  if (renamed) add("--activation-b", first.activation_b());
  const std::string a = NameOfNextLaunch(report.source_a(), report.run_a(), "values-a"),
                    b = NameOfNextLaunch(report.source_b(), report.run_b(), "values-b");
  const bool golden = report.source_a() == kGolden || report.source_b() == kGolden;
  return fmt::format(
      "{} as {} and {} (statctl run NAME -- COMMAND, or STATAGENT_RUN=NAME) with "
      "STATAGENT_CAPTURES={}{}, then statctl values diff {} {} {}{}",
      golden ? "a golden has no values: launch its training and the other run again"
             : "launch both again",
      a, b, ShellWord(spec.ToText()), renamed ? " (B with its own name for it)" : "", a, b,
      ShellWord(spec.activation), options);
}

}  // namespace statcollect
