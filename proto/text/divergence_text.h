// Texts about one divergence: where, why, and what to look at next.
#ifndef STATCOLLECT_PROTO_TEXT_DIVERGENCE_TEXT_H_
#define STATCOLLECT_PROTO_TEXT_DIVERGENCE_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "statcollect/v1/query.pb.h"

namespace statcollect {

// "forward", "missing in ort": with the names of the report's runs.
std::string StageText(const v1::Divergence& d);
std::string ReasonText(const v1::Divergence& d, const v1::DiffReport& report);

// "blocks.1.ln2", "blocks.1.attn[1] call 2", "lm_logits inspect". Omits the defaults: the stage's
// usual kind, path 0, call 0.
std::string PlaceText(const v1::Divergence& d);

// "step 3, micro-batch 1, rank 0, forward, blocks.1.ln2 (LayerNorm)"; the micro-batch only if it is
// not 0. Of a part of a larger tensor: "rank 1, which holds [4:8, 0:10] of (8, 10)".
std::string WhereText(const v1::Divergence& d);

// "1"; with merged or combined ranks "1 (B: 3)", if those of B are others.
std::string RankText(const v1::Divergence& d);

// "1.1e-2"; "-" if there is none.
std::string DistanceText(const v1::Divergence& d);

// "4x16", "0-d".
template <typename Sizes>
std::string ShapeText(const Sizes& shape) {
  std::string text;
  for (const std::int64_t size : shape) text += (text.empty() ? "" : "x") + std::to_string(size);
  return text.empty() ? "0-d" : text;
}

// Where, and what differs (distance and tolerance, or both shapes, dtypes or counts), with the
// names of the report's runs. Without a full stop.
std::string Headline(const v1::Divergence& first, const v1::DiffReport& report);

// A root as a row: the two messages number their common fields alike.
v1::Divergence RowOf(const v1::Root& root);

// The root, otherwise the first divergence. Precondition: the report has one of them.
v1::Divergence Focus(const v1::DiffReport& report);

// What is known of the records that come before the focus.
enum class Before {
  kNothing,          // there are none
  kAgrees,           // all agree
  kWithinRounding,   // some differ, and rounding explains it
  kWithinTolerance,  // they agree within their tolerances; more is not known
};
// Precondition: as for Focus.
Before WhatIsBefore(const v1::DiffReport& report);
// What begins where kWithinRounding ends: "it", the focus, or "the gradients of this step". These
// are complete at once, and so are updates: of those that differ, the focus stands out, and
// rounding need not explain others that are listed before it. Precondition: as for Focus.
std::string WhatTheRootIsAmong(const v1::DiffReport& report);

// Of each diverged row: "origin", "propagated" from a row before it, or "-": no row before it can
// have caused it. A logged loss causes nothing, nor does what only one run has.
std::vector<std::string> CausesOf(const v1::DiffReport& report);

// Suggests what to look at next. Precondition: as for Focus.
std::string NextStep(const v1::DiffReport& report);

// The commands that show the values of the first divergence in both runs; empty unless it is a
// tensor that both have. Precondition: as for Focus.
std::string ValuesAdvice(const v1::DiffReport& report);

}  // namespace statcollect

#endif  // STATCOLLECT_PROTO_TEXT_DIVERGENCE_TEXT_H_
