#include "server/store/codec/block_columns.h"

#include <algorithm>
#include <bit>
#include <cassert>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "server/store/finished_digest.h"

namespace statcollect {
namespace {

std::uint64_t BitsOf(double value) { return std::bit_cast<std::uint64_t>(value); }

std::uint64_t SignFlag(double value, Flag flag) {
  return BitsOf(value) > kMagnitude ? std::uint64_t{flag} : 0;
}

std::uint64_t FlagsOf(const TensorStats& s, bool wide) {
  return SignFlag(s.mean, kNegativeMean) | SignFlag(s.min, kNegativeMin) |
         SignFlag(s.max, kNegativeMax) | (s.has_finite ? std::uint64_t{kHasFinite} : 0) |
         (wide ? std::uint64_t{kWideSketch} : 0) | SignFlag(s.std, kNegativeStd) |
         SignFlag(s.l1, kNegativeL1) | SignFlag(s.l2, kNegativeL2);
}

// `at`: the record's number in a column.
template <typename At>
TensorStats MakeStats(const At& at) {
  const std::uint64_t flags = at(kFlags);
  const auto real = [&](Column column, Flag negative) {
    return SignedReal(at(column), flags, negative);
  };
  return {.numel = at(kNumel),
          .nan = at(kNan),
          .pos_inf = at(kPosInf),
          .neg_inf = at(kNegInf),
          .zero = at(kZero),
          .neg = at(kNeg),
          .pos = at(kPos),
          .has_finite = (flags & kHasFinite) != 0,
          .min = real(kMin, kNegativeMin),
          .max = real(kMax, kNegativeMax),
          .mean = real(kMean, kNegativeMean),
          .std = real(kStd, kNegativeStd),
          .l1 = real(kL1, kNegativeL1),
          .l2 = real(kL2, kNegativeL2),
          .hash = at(kHash)};
}

bool NeedsWide(std::span<const double> sketch) {
  std::uint64_t differences = 0;
  for (const double sum : sketch)
    differences |= BitsOf(static_cast<double>(static_cast<float>(sum))) ^ BitsOf(sum);
  return differences != 0;
}

void Narrow(std::span<const std::uint64_t> from, std::vector<std::uint32_t>& to) {
  to.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = static_cast<std::uint32_t>(from[i]);
}

}  // namespace

void BlockColumns::Resize(std::size_t size, std::uint32_t sketch_width) {
  if (size != size_) filled_.fill(false);
  size_ = size;
  sketch_width_ = sketch_width;
  numbers_.resize(size * kColumnCount);
  sketch.resize(size * sketch_width);
  samples.clear();
}

void BlockColumns::Fill(Column column, std::uint64_t number) {
  if (filled_[column] && numbers_[column * size_] == number) return;
  std::ranges::fill(of(column), number);
  filled_[column] = true;
}

void BlockColumns::Take(const StatColumns& columns, std::span<const std::uint32_t> indexes,
                        std::span<const std::size_t> sample_at) {
  assert(!indexes.empty() && indexes.size() <= kBlockRecordsMax);
  Resize(indexes.size(), columns.sketch_width);
  filled_.fill(false);
  std::uint64_t* const to = numbers_.data();
  for (std::size_t i = 0; i < size_; ++i) {
    const std::size_t from = indexes[i];
    const auto sums = columns.SketchOf(from);
    std::ranges::copy(sums, sketch.begin() + static_cast<std::ptrdiff_t>(i * sketch_width_));
    const TensorStats& s = columns.stats[from];
    const std::uint32_t sample_count = columns.sample_count[from];
    const ColumnRecord record = {columns.activation[from],
                                 columns.layout[from],
                                 columns.order[from],
                                 FlagsOf(s, NeedsWide(sums)),
                                 s.numel,
                                 s.nan,
                                 s.pos_inf,
                                 s.neg_inf,
                                 s.zero,
                                 s.neg,
                                 s.pos,
                                 BitsOf(s.mean) & kMagnitude,
                                 BitsOf(s.std) & kMagnitude,
                                 BitsOf(s.l2) & kMagnitude,
                                 BitsOf(s.l1) & kMagnitude,
                                 BitsOf(s.min) & kMagnitude,
                                 BitsOf(s.max) & kMagnitude,
                                 s.hash,
                                 sample_count};
    for (std::size_t column = 0; column < kColumnCount; ++column)
      to[column * size_ + i] = record[column];
    if (sample_count == 0) continue;
    const auto first = columns.samples.begin() + static_cast<std::ptrdiff_t>(sample_at[from]);
    samples.insert(samples.end(), first, first + sample_count);
  }
}

ColumnRecord BlockColumns::Record(std::size_t index) const {
  ColumnRecord record;
  for (std::size_t column = 0; column < kColumnCount; ++column)
    record[column] = numbers_[column * size_ + index];
  return record;
}

void BlockColumns::MoveTo(std::uint64_t step, bool sketches, StatColumns* columns) {
  Narrow(of(kActivation), columns->activation);
  Narrow(of(kLayout), columns->layout);
  Narrow(of(kOrder), columns->order);
  columns->step.assign(size_, step);
  columns->stats.resize(size_);
  const std::uint64_t* const numbers = numbers_.data();
  for (std::size_t i = 0; i < size_; ++i)
    columns->stats[i] = MakeStats([&](Column column) { return numbers[column * size_ + i]; });
  if (sketches) {
    Narrow(of(kSamples), columns->sample_count);
    columns->sketch.swap(sketch);
    columns->samples.swap(samples);
  } else {
    columns->sample_count.assign(size_, 0);
    columns->sketch.clear();
    columns->samples.clear();
  }
  columns->sketch_width = sketches ? sketch_width_ : 0;
}

void BlockColumns::CopyHashesTo(HashColumns* columns) const {
  Narrow(of(kActivation), columns->activation);
  Narrow(of(kLayout), columns->layout);
  Narrow(of(kOrder), columns->order);
  columns->hash.assign(of(kHash).begin(), of(kHash).end());
  columns->sketch_width = sketch_width_;
}

NumberColumns BlockColumns::View() const {
  const auto at = [&](Column column) { return of(column).data(); };
  return {.size = size_,
          .sketch_width = sketch_width_,
          .activation = at(kActivation),
          .layout = at(kLayout),
          .order = at(kOrder),
          .flags = at(kFlags),
          .numel = at(kNumel),
          .nan = at(kNan),
          .pos_inf = at(kPosInf),
          .neg_inf = at(kNegInf),
          .zero = at(kZero),
          .neg = at(kNeg),
          .pos = at(kPos),
          .mean = at(kMean),
          .std = at(kStd),
          .l2 = at(kL2),
          .l1 = at(kL1),
          .min = at(kMin),
          .max = at(kMax),
          .hash = at(kHash),
          .sketch = sketch.data()};
}

BlockDigest BlockColumns::Digest() const {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  const std::uint64_t shape[] = {size_, sketch_width_};
  XXH3_128bits_update(&state, shape, sizeof shape);
  XXH3_128bits_update(&state, numbers_.data(), numbers_.size() * sizeof(std::uint64_t));
  XXH3_128bits_update(&state, sketch.data(), sketch.size() * sizeof(double));
  XXH3_128bits_update(&state, samples.data(), samples.size() * sizeof(double));
  return FinishedDigest(state);
}

std::size_t BlockColumns::memory_bytes() const {
  return sizeof(*this) + sizeof(std::uint64_t) * numbers_.capacity() +
         sizeof(double) * (sketch.capacity() + samples.capacity());
}

StatPoint PointOf(std::uint64_t step, const ColumnRecord& record) {
  return {.step = step,
          .layout = static_cast<std::uint32_t>(record[kLayout]),
          .order = static_cast<std::uint32_t>(record[kOrder]),
          .stats = MakeStats([&](Column column) { return record[column]; })};
}

}  // namespace statcollect
