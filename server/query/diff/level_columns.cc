#include "server/query/diff/level_columns.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "common/names.h"
#include "common/wide_loops.h"
#include "server/query/rows.h"

namespace statcollect::query {
namespace {

double Real(std::uint64_t magnitude) { return std::bit_cast<double>(magnitude); }

// std::max of each.
STATCOLLECT_WIDE_LOOPS void Largest(const std::uint64_t* x, const std::uint64_t* y,
                                    std::size_t count, std::uint64_t* to) {
  for (std::size_t i = 0; i < count; ++i) to[i] = Real(x[i]) < Real(y[i]) ? y[i] : x[i];
}

// As Rms of top.cc, where nothing is NaN or infinite.
STATCOLLECT_WIDE_LOOPS void Rms(const std::uint64_t* l2, const std::uint64_t* numel,
                                double components, std::size_t count, std::uint64_t* to) {
  for (std::size_t i = 0; i < count; ++i)
    to[i] = std::bit_cast<std::uint64_t>(
        Real(l2[i]) / __builtin_sqrt(static_cast<double>(numel[i]) * components));
}

// Statistics that are a column of their own.
struct OfColumn {
  TopBy by;
  Statistic statistic;
  const std::uint64_t* NumberColumns::*column;
};
constexpr OfColumn kOfColumns[] = {
    {TopBy::kL2, Statistic::kL2, &NumberColumns::l2},
    {TopBy::kL1, Statistic::kL1, &NumberColumns::l1},
    {TopBy::kStd, Statistic::kStd, &NumberColumns::std},
    {TopBy::kMean, Statistic::kMean, &NumberColumns::mean},
    {TopBy::kMax, Statistic::kMax, &NumberColumns::max},
    {TopBy::kMin, Statistic::kMin, &NumberColumns::min},
};

const OfColumn* FindColumn(TopBy by) {
  const auto* const found = std::ranges::find(kOfColumns, by, &OfColumn::by);
  return found == std::end(kOfColumns) ? nullptr : found;
}

bool HasValue(TopBy by, const Layout& layout) {
  const auto has = [&](auto... statistics) { return (layout.Has(statistics) && ...); };
  if (const OfColumn* const of = FindColumn(by)) return has(of->statistic);
  if (by == TopBy::kAbsMax) return has(Statistic::kMin, Statistic::kMax);
  return by == TopBy::kRms &&
         has(Statistic::kL2, Statistic::kNan, Statistic::kInf, Statistic::kShape);
}

bool IsOf(std::span<const std::uint64_t> numbers, const NumberColumns& block) {
  return numbers.size() == 2 * block.size &&
         std::equal(block.activation, block.activation + block.size, numbers.data()) &&
         std::equal(block.layout, block.layout + block.size, numbers.data() + block.size);
}

}  // namespace

bool IsShown(const std::vector<Kind>& kinds, const TensorDef& def, const Layout& layout) {
  if (!kinds.empty()) return IsWanted(kinds, def.key.kind);
  return def.key.kind != Kind::kOperator && !IsWholeNumber(layout.dtype);
}

NumberSet LevelColumns::needs() const {
  const bool later =
      by_ == TopBy::kL1 || by_ == TopBy::kMax || by_ == TopBy::kMin || by_ == TopBy::kAbsMax;
  return later ? NumberSet::kAll : NumberSet::kNorms;
}

const RankCatalogue* LevelColumns::CatalogueOf(const NumberColumns& block) {
  const auto found = plans_.find(block.activation[0]);
  if (found == plans_.end() || !IsOf(found->second.numbers, block)) return nullptr;
  plan_ = &found->second;
  return plan_->catalogue;
}

void LevelColumns::Learn(const RankCatalogue& catalogue, const NumberColumns& block) {
  Plan& plan = plans_[block.activation[0]];
  plan = {.catalogue = &catalogue,
          .numbers = {},
          .shown = {},
          .recorded = {},
          .usual = !CountsElements(by_)};
  for (const std::uint64_t* const numbers : {block.activation, block.layout})
    plan.numbers.insert(plan.numbers.end(), numbers, numbers + block.size);
  for (std::size_t i = 0; i < block.size; ++i) {
    const Layout& layout = catalogue.layouts[block.layout[i]];
    plan.shown.push_back(IsShown(kinds_, catalogue.activations[block.activation[i]], layout) ? 1
                                                                                             : 0);
    const Recorded recorded = RecordedOf(layout);
    if (i == 0) plan.recorded = recorded;
    plan.usual &= recorded == plan.recorded;
  }
  plan_ = &plan;
}

LevelColumns::Recorded LevelColumns::RecordedOf(const Layout& layout) const {
  return {.value = HasValue(by_, layout),
          .nan = layout.Has(Statistic::kNan),
          .inf = layout.Has(Statistic::kInf),
          .inf_sign = layout.Has(Statistic::kInfSign),
          .components = by_ == TopBy::kRms && IsComplex(layout.dtype) ? 2.0 : 1.0};
}

void LevelColumns::AddCells(const NumberColumns& block, std::vector<StatCell>& cells) {
  plan_->usual ? AddUsual(block, cells) : AddOneByOne(block, cells);
}

std::span<const std::uint64_t> LevelColumns::SizesOf(const NumberColumns& block,
                                                     double components) {
  if (const OfColumn* const of = FindColumn(by_)) return {block.*(of->column), block.size};
  sizes_.resize(block.size);
  if (by_ == TopBy::kAbsMax) Largest(block.min, block.max, block.size, sizes_.data());
  if (by_ == TopBy::kRms) Rms(block.l2, block.numel, components, block.size, sizes_.data());
  return sizes_;
}

// As LevelOf of each.
void LevelColumns::AddUsual(const NumberColumns& block, std::vector<StatCell>& cells) {
  const Recorded recorded = plan_->recorded;
  StatLevels(SizesOf(block, recorded.components), levels_);
  for (std::size_t i = 0; i < block.size; ++i) {
    if (plan_->shown[i] == 0) continue;
    std::uint64_t broken = recorded.nan ? block.nan[i] : 0;
    if (recorded.inf) broken += block.pos_inf[i] + (recorded.inf_sign ? block.neg_inf[i] : 0);
    const bool finite =
        (block.flags[i] & kHasFinite) != 0 && (by_ != TopBy::kRms || block.numel[i] > 0);
    const bool value = recorded.value && finite;
    const std::uint16_t level = broken > 0 ? kStatNotFinite : value ? levels_[i] : kStatNoData;
    if (level == kStatNoData) continue;
    cells.push_back({.id = static_cast<std::uint32_t>(block.activation[i]),
                     .order = static_cast<std::uint32_t>(block.order[i]),
                     .level = level});
  }
}

void LevelColumns::AddOneByOne(const NumberColumns& block, std::vector<StatCell>& cells) {
  for (std::size_t i = 0; i < block.size; ++i) {
    if (plan_->shown[i] == 0) continue;
    TensorStats stats = block.StatsAt(i);
    if (by_ == TopBy::kL1) stats.l1 = SignedReal(block.l1[i], block.flags[i], kNegativeL1);
    const Observation observation{.def = &plan_->catalogue->activations[block.activation[i]],
                                  .layout = &plan_->catalogue->layouts[block.layout[i]],
                                  .stats = &stats,
                                  .sketch = {},
                                  .order = static_cast<std::uint32_t>(block.order[i])};
    cells.push_back({.id = static_cast<std::uint32_t>(block.activation[i]),
                     .order = observation.order,
                     .level = LevelOf(by_, observation, side_)});
  }
}

}  // namespace statcollect::query
