#include "server/store/codec/predictions.h"

#include <bit>
#include <cmath>
#include <limits>

#include "common/wide_loops.h"

namespace statcollect {
namespace {

double Real(std::uint64_t magnitude) { return std::bit_cast<double>(magnitude); }

std::uint64_t Prediction(double value) {
  return value >= 0 && std::isfinite(value) ? std::bit_cast<std::uint64_t>(value) : 0;
}

// The values of a record and of its counterpart in the key frame that predictions use.
struct Known {
  std::uint64_t numel, nan, pos_inf, neg_inf, zero, neg, pos, mean, std, l2;
  std::uint64_t key_l1, key_l2;  // 0 without a key frame
};

std::uint64_t PredictPos(const Known& r) {
  return r.numel - (r.nan + r.pos_inf + r.neg_inf + r.zero + r.neg);
}

// l2^2 = n (mean^2 + std^2).
std::uint64_t PredictL2(const Known& r) {
  const double n = static_cast<double>(r.zero + r.neg + r.pos);
  return Prediction(std::sqrt(n * (Real(r.mean) * Real(r.mean) + Real(r.std) * Real(r.std))));
}

// l1 = n |mean| if no element has the other sign; else its ratio to l2 is the key frame's, nearly,
// or that of a normal distribution, sqrt(2 n / pi).
std::uint64_t PredictL1(const Known& r) {
  const double n = static_cast<double>(r.zero + r.neg + r.pos);
  if (r.neg == 0 || r.pos == 0) return Prediction(n * Real(r.mean));
  if (r.key_l1 != 0 && r.key_l2 != 0)
    return Prediction(Real(r.l2) * (Real(r.key_l1) / Real(r.key_l2)));
  return Prediction(Real(r.l2) * (0.7978845608028654 * std::sqrt(n)));
}

// The same from column-wise blocks, which must not be resized meanwhile.
class KnownColumns {
 public:
  KnownColumns(const BlockColumns& block, const BlockColumns* key_frame)
      : numbers_(block.of(kActivation).data()),
        size_(block.size()),
        key_l1_(key_frame != nullptr ? key_frame->of(kL1).data() : nullptr),
        key_l2_(key_frame != nullptr ? key_frame->of(kL2).data() : nullptr) {}

  // Record `i`, and its counterpart in the key frame if there is one.
  Known At(std::size_t i) const {
    const auto of = [&](Column column) { return numbers_[column * size_ + i]; };
    return {.numel = of(kNumel),
            .nan = of(kNan),
            .pos_inf = of(kPosInf),
            .neg_inf = of(kNegInf),
            .zero = of(kZero),
            .neg = of(kNeg),
            .pos = of(kPos),
            .mean = of(kMean),
            .std = of(kStd),
            .l2 = of(kL2),
            .key_l1 = key_l1_ != nullptr ? key_l1_[i] : 0,
            .key_l2 = key_l2_ != nullptr ? key_l2_[i] : 0};
  }

 private:
  const std::uint64_t* const numbers_;  // column by column
  const std::size_t size_;
  const std::uint64_t *const key_l1_, *const key_l2_;
};

Known KnownOf(const ColumnRecord& record, const ColumnRecord* key) {
  return {.numel = record[kNumel],
          .nan = record[kNan],
          .pos_inf = record[kPosInf],
          .neg_inf = record[kNegInf],
          .zero = record[kZero],
          .neg = record[kNeg],
          .pos = record[kPos],
          .mean = record[kMean],
          .std = record[kStd],
          .l2 = record[kL2],
          .key_l1 = key != nullptr ? (*key)[kL1] : 0,
          .key_l2 = key != nullptr ? (*key)[kL2] : 0};
}

template <typename PredictRecord>
void PredictAll(const KnownColumns& known, std::span<const std::uint16_t> indexes,
                std::span<std::uint64_t> predictions, const PredictRecord& predict) {
  for (std::size_t j = 0; j < predictions.size(); ++j)
    predictions[j] = predict(known.At(indexes.empty() ? j : indexes[j]));
}

// Loops in vectors give the same bits as one record alone: a product and a sum are not fused, and
// IEEE 754 defines every operation in them.
STATCOLLECT_WIDE_LOOPS void PredictEveryPos(const std::uint64_t* numbers, std::size_t size,
                                            std::uint64_t* to) {
  const auto *numel = numbers + kNumel * size, *nan = numbers + kNan * size;
  const auto *pos_inf = numbers + kPosInf * size, *neg_inf = numbers + kNegInf * size;
  const auto *zero = numbers + kZero * size, *neg = numbers + kNeg * size;
  for (std::size_t i = 0; i < size; ++i)
    to[i] = numel[i] - (nan[i] + pos_inf[i] + neg_inf[i] + zero[i] + neg[i]);
}

STATCOLLECT_WIDE_LOOPS void PredictEveryL2(const std::uint64_t* numbers, std::size_t size,
                                           std::uint64_t* to) {
  const auto *zero = numbers + kZero * size, *neg = numbers + kNeg * size,
             *pos = numbers + kPos * size;
  const auto *means = numbers + kMean * size, *stds = numbers + kStd * size;
  for (std::size_t i = 0; i < size; ++i) {
    const double n = static_cast<double>(zero[i] + neg[i] + pos[i]);
    const double mean = std::bit_cast<double>(means[i]), std = std::bit_cast<double>(stds[i]);
    const double value = __builtin_sqrt(n * (mean * mean + std * std));
    const bool finite =
        value <= std::numeric_limits<double>::max();  // and a number; a root is not negative
    to[i] = finite ? std::bit_cast<std::uint64_t>(value) : 0;
  }
}

}  // namespace

void PredictColumn(Column column, const BlockColumns& block, const BlockColumns* key_frame,
                   std::span<const std::uint16_t> indexes, std::span<std::uint64_t> predictions) {
  const std::uint64_t* const numbers = block.of(kActivation).data();  // column by column
  if (indexes.empty() && column == kPos)
    return PredictEveryPos(numbers, block.size(), predictions.data());
  if (indexes.empty() && column == kL2)
    return PredictEveryL2(numbers, block.size(), predictions.data());
  const KnownColumns known(block, key_frame);
  const auto all = [&](const auto& predict) { PredictAll(known, indexes, predictions, predict); };
  column == kPos  ? all([](const Known& r) { return PredictPos(r); })
  : column == kL2 ? all([](const Known& r) { return PredictL2(r); })
                  : all([](const Known& r) { return PredictL1(r); });
}

std::uint64_t PredictOne(Column column, const ColumnRecord& record, const ColumnRecord* key) {
  const Known known = KnownOf(record, key);
  return column == kPos ? PredictPos(known) : column == kL2 ? PredictL2(known) : PredictL1(known);
}

}  // namespace statcollect
