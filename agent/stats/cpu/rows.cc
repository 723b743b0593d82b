#include "agent/stats/rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "agent/stats/component_values.h"
#include "agent/stats/cpu/workers.h"
#include "agent/stats/float_environment.h"
#include "agent/stats/tensor_walk.h"
#include "common/names.h"

namespace statcollect::stats {
namespace {

constexpr std::uint64_t kSignBit = std::uint64_t{1} << 63;
constexpr std::uint64_t kExponentBits = std::uint64_t{0x7ff} << 52;
constexpr std::size_t kChunk = 512;  // components decoded at once; a multiple of the sums
constexpr std::size_t kPartComponents = 65536;  // that are worth a helper

// The sign of each component, in the place of a float64's.
std::vector<std::uint64_t> Signs(std::uint64_t first, std::size_t components) {
  std::vector<std::uint64_t> signs(components);
  for (std::size_t i = 0; i < components; ++i) signs[i] = RowMinus(first + i) ? kSignBit : 0;
  return signs;
}

// Adds `count` components to the sums; the first of them goes to sums[0].
void Add(const double* components, const std::uint64_t* signs, std::size_t count, double* sums) {
  for (std::size_t i = 0; i < count; i += kRowSketch) {
    const std::size_t lanes = std::min(kRowSketch, count - i);
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      const auto bits = std::bit_cast<std::uint64_t>(components[i + lane]);
      const bool finite = (bits & kExponentBits) != kExponentBits;
      sums[lane] += std::bit_cast<double>(finite ? bits ^ signs[i + lane] : 0);
    }
  }
}

class Rows {
 public:
  Rows(const CpuTensor& rows, std::uint64_t first)
      : rows_(rows),
        first_(first),
        parts_(IsComplex(rows.dtype) ? 2 : 1),
        columns_(rows.shape[1]),
        row_stride_(rows.strides.empty() ? rows.shape[1] : rows.strides[0]),
        column_stride_(rows.strides.empty() ? 1 : rows.strides[1]),
        signs_(Signs(first, parts_ * static_cast<std::size_t>(columns_))) {}

  std::size_t components() const { return signs_.size(); }
  RowStats Of(std::int64_t row) const noexcept;

 private:
  void Sketch(const CpuTensor& row, RowStats* stats) const noexcept;

  const CpuTensor& rows_;
  const std::uint64_t first_;
  const std::size_t parts_;  // components of an element
  const std::int64_t columns_, row_stride_, column_stride_;
  const std::vector<std::uint64_t> signs_;
};

RowStats Rows::Of(std::int64_t row) const noexcept {
  const auto bytes = static_cast<std::int64_t>(DTypeBytes(rows_.dtype));
  const auto* data = static_cast<const unsigned char*>(rows_.data);
  if (data != nullptr) data += row * row_stride_ * bytes;
  const CpuTensor one{data, rows_.dtype, {&columns_, 1}, {&column_stride_, 1}};
  // Elements of the whole row up to the end of this part: what lies behind does not matter.
  const auto offset = static_cast<std::int64_t>(first_ / parts_);
  const std::array<std::int64_t, 1> whole{offset + columns_};
  const std::array<std::int64_t, 2> box{offset, columns_};
  const Placement place{.global_shape = whole, .boxes = box};
  std::uint32_t samples = 0;
  const TensorStats found =
      ComputeCpu(one, {}, {}, &samples, nullptr, offset == 0 ? nullptr : &place);
  RowStats stats;
  const bool finite = found.nan + found.pos_inf + found.neg_inf == 0;
  stats.l2 = finite ? RowFloat(found.l2) : std::numeric_limits<float>::quiet_NaN();
  stats.hash = found.hash;
  Sketch(one, &stats);
  return stats;
}

void Rows::Sketch(const CpuTensor& row, RowStats* stats) const noexcept {
  const DefaultFloatEnvironment environment;
  TensorWalk walk(row);
  walk.Seek(0);
  std::array<unsigned char, kChunk * 8> copied;
  std::array<double, kChunk> values;
  std::array<double, kRowSketch> sums{};
  for (std::size_t done = 0; done < components();) {
    const std::size_t count = std::min(kChunk, components() - done);
    const unsigned char* from = copied.data();
    if (walk.contiguous()) {
      from = static_cast<const unsigned char*>(walk.Contiguous(done / parts_));
    } else {
      walk.Copy(count / parts_, copied.data());
    }
    ComponentsToDoubles(rows_.dtype, from, count, values.data());
    Add(values.data(), signs_.data() + done, count, sums.data());
    done += count;
  }
  // The first component belongs to sum first_ % 8, which so far is sums[0].
  for (std::size_t i = 0; i < kRowSketch; ++i)
    stats->sketch[(first_ + i) % kRowSketch] = RowFloat(sums[i]);
  if (first_ == 0 && components() == 1) stats->sketch[0] = RowFloat(values[0]);
}

}  // namespace

Status ValidateRows(const CpuTensor& rows, std::uint64_t first) {
  STATCOLLECT_RETURN_IF_ERROR(Validate(rows));
  if (rows.shape.size() != 2) {
    return Status(Code::kInvalidArgument, "record rows: found a tensor of " +
                                              std::to_string(rows.shape.size()) +
                                              " dimensions; expected two, rows and columns");
  }
  const std::uint64_t columns =
      static_cast<std::uint64_t>(rows.shape[1]) * (IsComplex(rows.dtype) ? 2 : 1);
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint32_t>::max();
  if (first > kMax || columns > kMax - first || (IsComplex(rows.dtype) && first % 2 != 0)) {
    return Status(Code::kInvalidArgument, "record rows: found " + std::to_string(columns) +
                                              " columns from " + std::to_string(first) +
                                              " on; expected at most " + std::to_string(kMax));
  }
  return Status::Ok();
}

void ComputeRows(const CpuTensor& rows, std::uint64_t first, std::span<RowStats> out,
                 CpuWorkers* workers, const std::int64_t* index) {
  const Rows of(rows, first);
  const std::size_t together =
      std::max<std::size_t>(1, kPartComponents / std::max<std::size_t>(1, of.components()));
  const std::size_t parts = (out.size() + together - 1) / together;
  const auto compute = [&](std::size_t part) {
    const std::size_t end = std::min(out.size(), (part + 1) * together);
    for (std::size_t i = part * together; i < end; ++i)
      out[i] = of.Of(index == nullptr ? static_cast<std::int64_t>(i) : index[i]);
  };
  if (workers != nullptr) return workers->Run(parts, compute);
  for (std::size_t part = 0; part < parts; ++part) compute(part);
}

}  // namespace statcollect::stats
