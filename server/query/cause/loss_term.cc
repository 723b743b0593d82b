// A loss of which one term differs.
#include <algorithm>
#include <cmath>
#include <string>

#include "common/names.h"
#include "server/query/cause/constants.h"
#include "server/query/cause/rules.h"
#include "server/query/cause/text.h"
#include "server/query/compare/distance.h"
#include "server/query/compare/pair_judge.h"
#include "server/query/compare/step_order.h"

namespace statcollect::query::cause {
namespace {

// The gradients of a backward pass up to the first that differs.
struct GradientsApart {
  const Pair* at = nullptr;     // null: none does
  const Pair* first = nullptr;  // of the pass
  double by = 0;                // how far apart those of `at` are
};

// By more than rounding, and far more than those before it.
GradientsApart FindGradientsApart(const Evidence& evidence) {
  GradientsApart found;
  double before = 0;
  for (const Pair& pair : evidence.at) {
    const TensorKey& key = pair.key();
    if (key.kind != Kind::kGradOutput || key.mode != Mode::kTrain ||
        key.micro_batch != evidence.root.micro_batch || pair.a->stats->l2 == 0)
      continue;
    if (found.first == nullptr) found.first = &pair;
    const double distance = DistanceBetween(*pair.a, *pair.b);
    if (distance > std::max(evidence.RemainderOf(*pair.a), kTermJump * before)) {
      found.at = &pair;
      found.by = distance;
      return found;
    }
    before = std::max(before, distance);
  }
  return found;
}

Divergence RowOfGradient(const Pair& pair, const Divergence& root) {
  Divergence row = MakeRow(*pair.a->def, root.step, root.rank);
  row.rank_b = root.rank_b;
  row.segment = root.segment;
  FillPair(row, Compare(*pair.a, *pair.b, root.tolerance, /*exact=*/false), *pair.a, *pair.b);
  if (row.reason == Reason::kUnspecified) row.reason = Reason::kNumeric;
  return row;
}

}  // namespace

// The gradients next to the loss agree, so what they are of is weighted alike in both runs.
Found FindLossTerm(const Evidence& evidence) {
  const Divergence& root = evidence.root;
  if (root.stage != Stage::kLoss) return std::nullopt;
  const GradientsApart apart = FindGradientsApart(evidence);
  if (apart.at == nullptr || apart.at == apart.first || !std::isfinite(apart.by))
    return std::nullopt;
  const auto name_of = [](const TensorKey& key) {
    return key.output_path == "0" ? Printable(key.name) : PlaceText(key);
  };
  const std::string name = name_of(apart.at->key());
  Cause cause = Make("loss_term",
                     "the term of " + Printable(root.activation) + " that is computed from " +
                         name + " differs " + evidence.AtStep() + ": the gradient of " + name +
                         " does, and those before it agree, from that of " +
                         name_of(apart.first->key()) + " on",
                     Confidence::kLikely, apart.at->key().name);
  cause.at = RowOfGradient(*apart.at, root);
  cause.why_there = "the loss differs by what depends on it, and by nothing nearer to the loss";
  return cause;
}

}  // namespace statcollect::query::cause
