#include "server/query/verdict/sum_lengths.h"

#include <algorithm>

#include "server/query/compare/step_order.h"
#include "server/query/settings/dotted.h"

namespace statcollect::query {
namespace {

double Elements(const Observation& seen) { return static_cast<double>(seen.stats->numel); }

}  // namespace

void SumLengths::Step(std::span<const TensorPair> pairs) {
  ++step_;
  for (const TensorPair& pair : pairs) {
    if (pair.loss != nullptr) continue;
    const std::string_view name = pair.a.def->key.name;
    const std::vector<std::int64_t>& shape = pair.a.layout->shape;
    switch (pair.a.def->key.kind) {
      case Kind::kOutput: {
        Module& module = modules_[name];
        if (module.step != step_) module.elements = 0;
        module.step = step_;
        module.elements += Elements(pair.a);
        break;
      }
      case Kind::kWeight: {
        Module& module = modules_[ParentOf(name)];
        module.winograd = module.winograd || AllowsWinograd(shape);
        if (shape.size() > 1 && shape.front() > 0)
          module.row = std::max(module.row, Elements(pair.a) / static_cast<double>(shape.front()));
        else
          module.channels = std::max(module.channels, Elements(pair.a));
        break;
      }
      default:
        break;
    }
  }
}

const SumLengths::Module* SumLengths::Find(std::string_view name) const {
  const auto found = modules_.find(name);
  return found == modules_.end() ? nullptr : &found->second;
}

const SumLengths::Module* SumLengths::OwnerOfParameters(std::string_view name) const {
  for (const std::string_view one : {name, ParentOf(name)}) {
    const Module* const module = Find(one);
    if (module != nullptr && (module->row > 0 || module->channels > 0)) return module;
  }
  return nullptr;
}

double SumLengths::Of(const TensorPair& pair) const {
  const TensorKey& key = pair.a.def->key;
  const std::vector<std::int64_t>& shape = pair.a.layout->shape;
  double length = 1;
  switch (key.kind) {
    case Kind::kOutput:
    case Kind::kGradOutput:
    case Kind::kGradInput:
      if (const Module* const module = OwnerOfParameters(key.name)) {
        length = module->row;
        if (module->row == 0 && shape.size() > 1) length = Elements(pair.a) / module->channels;
      }
      break;
    case Kind::kWeightGrad:
      if (const Module* const module = Find(ParentOf(key.name)))
        length = module->elements /
                 (shape.empty() ? 1.0 : std::max<double>(1, static_cast<double>(shape.front())));
      break;
    case Kind::kBuffer:
      if (const Module* const module = Find(ParentOf(key.name)))
        length = module->elements / std::max(1.0, Elements(pair.a));
      break;
    default:
      break;
  }
  return std::max(1.0, length);
}

bool SumLengths::IsOtherConvolution(const TensorPair& pair, OtherConvolutions other) const {
  if (other == OtherConvolutions::kNone) return false;
  const TensorKey& key = pair.a.def->key;
  const Stage stage = StageOf(key);
  const bool backward = stage == Stage::kBackward || stage == Stage::kGrad;
  if (stage != Stage::kForward && !(backward && other == OtherConvolutions::kAll)) return false;
  const Module* const module = Find(key.kind == Kind::kWeightGrad ? ParentOf(key.name) : key.name);
  return module != nullptr && module->winograd;
}

}  // namespace statcollect::query
