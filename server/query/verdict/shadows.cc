#include "server/query/verdict/shadows.h"

#include <algorithm>

#include "server/query/compare/roundoff.h"
#include "server/query/compare/step_order.h"
#include "server/query/verdict/explain.h"

namespace statcollect::query {
namespace {

constexpr double kAveraging = 4;  // unit roundoffs of an average that is taken in another order

// Modules of a watch with a name stand below that name.
std::string_view ModelOf(std::string_view name) { return name.substr(0, name.find('.')); }

}  // namespace

void Shadows::Step(std::span<const TensorPair> pairs) {
  for (const TensorPair& pair : pairs) {
    if (pair.loss == nullptr && pair.a.def->depth == 1) updated_.try_emplace(pair.a.def->key.name, false);
  }
  for (const TensorPair& pair : pairs) {
    if (pair.loss != nullptr || pair.a.def->key.kind != Kind::kWeight) continue;
    const auto model = updated_.find(ModelOf(pair.a.def->key.name));
    if (model != updated_.end() && StageOf(pair.a.def->key) == Stage::kOptimizer) model->second = any_ = true;
  }
}

void Shadows::NoteUpdate(double distance) { largest_ = std::max(largest_, std::min(distance, 1.0)); }

double Shadows::Of(std::string_view module) const {
  const auto model = updated_.find(ModelOf(module));
  if (!any_ || model == updated_.end() || model->second) return 0;
  return std::max(largest_, kAveraging * UnitRoundoff(DType::kF32));
}

}  // namespace statcollect::query
