#include "server/query/verdict/row_counts.h"

#include <algorithm>
#include <utility>

#include "server/query/compare/step_order.h"
#include "server/query/settings/dotted.h"

namespace statcollect::query {
namespace {

using Shape = std::vector<std::int64_t>;

bool HasRows(const TensorPair& pair) {
  if (pair.loss != nullptr || pair.a.layout->shape.empty()) return false;
  const Kind kind = pair.a.def->key.kind;
  return kind == Kind::kOutput || kind == Kind::kGradOutput || kind == Kind::kGradInput;
}

// B has other rows, and nothing else.
bool HasOtherRows(const TensorPair& pair) {
  if (!HasRows(pair) || pair.a.layout->dtype != pair.b.layout->dtype) return false;
  const Shape &a = pair.a.layout->shape, &b = pair.b.layout->shape;
  return a.size() == b.size() && a.front() != b.front() &&
         std::equal(a.begin() + 1, a.end(), b.begin() + 1, b.end());
}

std::string NameOf(const TensorKey& key) { return SpreadName(key.kind, key.name, key.output_path); }

}  // namespace

void RowCounts::Step(std::span<const TensorPair> pairs,
                     std::span<const std::vector<Observation>> twins) {
  struct Sisters {
    std::int64_t rows = 0;  // of the first one
    bool vary = false, others = false;
    std::vector<const TensorKey*> all;
  };
  std::map<std::tuple<std::string, Kind, std::string_view, Shape>, Sisters> lists;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (!HasRows(pairs[i])) continue;
    const TensorKey& key = pairs[i].a.def->key;
    const Shape& shape = pairs[i].a.layout->shape;
    const std::string_view path = key.output_path;
    const std::int64_t before =
        first_.try_emplace({std::string_view(key.name), key.kind, path}, shape.front())
            .first->second;
    const bool by_twin = std::any_of(twins.begin(), twins.end(), [&](const auto& twin) {
      return twin[i].def != nullptr && twin[i].layout->shape != shape;
    });
    const bool by_b = HasOtherRows(pairs[i]);
    Sisters& sisters =
        lists[{PatternOf(key.name), key.kind, path, Shape(shape.begin() + 1, shape.end())}];
    if (sisters.all.empty()) sisters.rows = shape.front();
    sisters.vary =
        sisters.vary || by_twin || before != shape.front() || sisters.rows != shape.front();
    sisters.others = sisters.others || by_twin || by_b;
    sisters.all.push_back(&key);
  }
  of_other_rows_.clear();
  for (const auto& [pattern, sisters] : lists) {
    for (const TensorKey* const key : sisters.all) {
      if (!sisters.vary) continue;
      varying_.insert(NameOf(*key));
      if (sisters.others) of_other_rows_.insert(NameOf(*key));
    }
  }
}

bool RowCounts::Differ(const TensorPair& pair) const {
  return HasOtherRows(pair) && varying_.contains(NameOf(pair.a.def->key));
}

bool RowCounts::MayBeOthers(const TensorPair& pair) const {
  return HasRows(pair) && of_other_rows_.contains(NameOf(pair.a.def->key));
}

}  // namespace statcollect::query
