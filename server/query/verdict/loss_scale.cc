#include "server/query/verdict/loss_scale.h"

#include <cmath>

#include "server/query/cause/text.h"

namespace statcollect::query {
namespace {

std::optional<double> ScaleIn(std::span<const ScalarRecord> scalars) {
  std::optional<double> scale;
  for (const ScalarRecord& scalar : scalars) {
    if (scalar.name == "loss_scale" && scalar.value > 0 && std::isfinite(scalar.value))
      scale = scalar.value;
  }
  return scale;
}

}  // namespace

LossScales LossScales::Of(std::uint64_t step, std::span<const ScalarRecord> a,
                          std::span<const ScalarRecord> b) {
  return {.step = step, .a = ScaleIn(a), .b = ScaleIn(b)};
}

std::optional<double> LossScales::Ratio() const {
  const double ratio = b.value_or(1) / a.value_or(1);
  return ratio == 1 ? std::nullopt : std::optional(ratio);
}

std::string LossScales::Text(const std::string& run_a, const std::string& run_b) const {
  const auto [text_a, text_b] = cause::NumberTexts(a.value_or(1), b.value_or(1));
  return "the loss scale at step " + std::to_string(step) + " is " + (a ? text_a : "not set") +
         " in " + run_a + " and " + (b ? text_b : "not set") + " in " + run_b +
         "; gradients of outputs were divided by it before rounding was judged";
}

void DivideGradients(double ratio, std::vector<TensorPair>& pairs, std::deque<Divided>& storage) {
  for (TensorPair& pair : pairs) {
    if (pair.loss != nullptr) continue;
    const Kind kind = pair.a.def->key.kind;
    if (kind != Kind::kGradOutput && kind != Kind::kGradInput) continue;
    Divided& divided =
        storage.emplace_back(Divided{*pair.b.stats, {pair.b.sketch.begin(), pair.b.sketch.end()}});
    for (double* value : {&divided.stats.min, &divided.stats.max, &divided.stats.mean,
                          &divided.stats.std, &divided.stats.l1, &divided.stats.l2})
      *value /= ratio;
    for (double& sum : divided.sketch) sum /= ratio;
    pair.b.stats = &divided.stats;
    pair.b.sketch = divided.sketch;
    pair.distance = DistanceBetween(pair.a, pair.b);
  }
}

}  // namespace statcollect::query
