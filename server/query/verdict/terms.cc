#include "server/query/verdict/terms.h"

#include <algorithm>
#include <cmath>

#include "server/query/settings/dotted.h"
#include "server/query/verdict/explain.h"

namespace statcollect::query {
namespace {

// 0 if the record does not tell. Pieces of a batch have a mean and a deviation only.
double RootMeanSquare(const Observation& of) {
  const Layout& layout = *of.layout;
  if (layout.Trusts(Statistic::kL2) && of.stats->numel > 0)
    return of.stats->l2 / std::sqrt(static_cast<double>(of.stats->numel));
  const bool moments = layout.Trusts(Statistic::kMean) && layout.Trusts(Statistic::kStd);
  return moments ? std::hypot(of.stats->mean, of.stats->std) : 0;
}

}  // namespace

void Terms::Step(std::span<const TensorPair> pairs) {
  compared_ = std::any_of(pairs.begin(), pairs.end(), [](const TensorPair& pair) {
    return pair.loss == nullptr && pair.a.def->key.kind == Kind::kGradOutput;
  });
  for (auto& [name, module] : modules_) module.gradient = module.output = module.elements = 0;
  for (const TensorPair& pair : pairs) {
    if (pair.loss == nullptr) Note(pair);
  }
}

void Terms::Note(const TensorPair& pair) {
  const TensorKey& key = pair.a.def->key;
  const bool of_weight = LastPart(key.name) == "weight";
  if (key.kind == Kind::kWeight && of_weight) {
    modules_[ParentOf(key.name)].weight = RootMeanSquare(pair.a);
  } else if (compared_) {
    return;
  } else if (key.kind == Kind::kWeightGrad && of_weight) {
    modules_[ParentOf(key.name)].gradient = std::min(pair.a.stats->l2, pair.b.stats->l2);
  } else if (key.kind == Kind::kOutput && key.mode == Mode::kTrain) {
    Module& module = modules_[key.name];
    module.output = std::max(module.output, RootMeanSquare(pair.a));
    module.elements += static_cast<double>(pair.a.stats->numel);
  }
}

std::optional<Terms::Size> Terms::Of(std::string_view bias, double elements) const {
  const auto found = modules_.find(ParentOf(bias));
  if (compared_ || found == modules_.end() || LastPart(bias) == "weight") return std::nullopt;
  const Module& module = found->second;
  const double size = module.gradient * module.weight / module.output;
  if (!(size > 0) || !std::isfinite(size)) return std::nullopt;
  return Size{.l2 = size, .rows = std::max(1.0, module.elements / elements)};
}

}  // namespace statcollect::query
