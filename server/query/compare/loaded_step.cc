#include "server/query/compare/loaded_step.h"

#include <algorithm>

namespace statcollect::query {

void LoadedStep::Index(const RankCatalogue& catalogue) {
  catalogue_ = &catalogue;
  ++generation_;
  places_.resize(catalogue.activations.size());
  for (std::uint32_t b = 0; b < count_; ++b) {
    for (std::uint32_t i = 0; i < blocks_[b].size(); ++i)
      places_[blocks_[b].activation[i]] = {generation_, b, i};
  }
}

std::vector<Observation> LoadedStep::InOrder() const {
  std::vector<Observation> all;
  for (const StatColumns& block : blocks()) {
    for (std::size_t i = 0; i < block.size(); ++i) all.push_back(At(block, i));
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Observation& x, const Observation& y) { return x.order < y.order; });
  return all;
}

}  // namespace statcollect::query
