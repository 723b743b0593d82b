#include "server/query/logical/stage.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <string_view>
#include <vector>

namespace statcollect::query {
namespace {

// The names below one module, from its own name on, in each of two ranks.
using Below = std::array<std::vector<std::string_view>, 2>;

double InCommon(const Below& below) {
  std::map<std::string_view, Below> children;
  for (std::size_t side = 0; side < 2; ++side) {
    for (const std::string_view name : below[side]) {
      const std::size_t dot = std::min(name.find('.'), name.size());
      children[name.substr(0, dot)][side].push_back(name.substr(std::min(dot + 1, name.size())));
    }
  }
  double sum = 0;
  for (const auto& [key, of] : children) {
    if (of[0].empty() || of[1].empty()) continue;
    sum += key.empty() || of[0] == of[1] ? 1 : InCommon(of);
  }
  return sum / static_cast<double>(std::max<std::size_t>(children.size(), 1));
}

}  // namespace

bool AreOfOneStage(const WeightNames& a, const WeightNames& b) {
  return a == b || InCommon({std::vector<std::string_view>(a.begin(), a.end()),
                             std::vector<std::string_view>(b.begin(), b.end())}) >= 0.5;
}

}  // namespace statcollect::query
