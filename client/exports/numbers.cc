#include "client/exports/exporter.h"
#include "common/names.h"

namespace statcollect::client {

Numbers NumbersOf(const Observation& observation) {
  const TensorStats& s = *observation.stats;
  const Layout& layout = *observation.layout;
  Numbers n;
  const auto tell = [&](Statistic statistic, auto value, auto& to) {
    if (layout.Has(statistic)) to = value;
  };
  tell(Statistic::kShape, s.numel, n.numel);
  tell(Statistic::kNan, s.nan, n.nan);
  if (layout.Has(Statistic::kInf)) {
    if (layout.Has(Statistic::kInfSign)) {
      n.pos_inf = s.pos_inf;
      n.neg_inf = s.neg_inf;
    } else {
      n.inf = s.pos_inf;
    }
  }
  tell(Statistic::kZero, s.zero, n.zero);
  tell(Statistic::kNeg, s.neg, n.neg);
  tell(Statistic::kPos, s.pos, n.pos);
  tell(Statistic::kHash, s.hash, n.hash);
  if (!s.has_finite) return n;
  tell(Statistic::kMin, s.min, n.min);
  tell(Statistic::kMax, s.max, n.max);
  tell(Statistic::kMean, s.mean, n.mean);
  tell(Statistic::kStd, s.std, n.std);
  tell(Statistic::kL1, s.l1, n.l1);
  tell(Statistic::kL2, s.l2, n.l2);
  return n;
}

std::string UntrustedOf(const Layout& layout) {
  std::string text;
  for (int i = 0; layout.untrusted != 0 && i < kStatisticCount; ++i) {
    const auto statistic = static_cast<Statistic>(i);
    if ((layout.untrusted & BitOf(statistic)) != 0)
      text.append(text.empty() ? "" : " ").append(Name(statistic));
  }
  return text;
}

std::string_view HashKindOf(const Layout& layout) {
  return layout.hash_kind == HashKind::kContent3 ? std::string_view() : Name(layout.hash_kind);
}

}  // namespace statcollect::client
