#include "agent/stats/cpu/noise.h"

#include <algorithm>
#include <array>
#include <string>

#include "agent/stats/cpu/kernels.h"
#include "agent/stats/float_environment.h"
#include "common/mix_bits.h"
#include "common/records.h"

namespace statcollect::stats {
namespace {

struct NoiseDim {
  std::int64_t size, from, to, index;
};

// The dimensions in the order in which they lie in `to`, the outermost first, and those joined that
// can be walked as one. At least one.
class NoiseDims {
 public:
  explicit NoiseDims(const NoiseLayout& layout) {
    for (std::size_t d = 0; d < layout.shape.size(); ++d) {
      if (layout.shape[d] == 1) continue;
      dims_[count_++] = {layout.shape[d], layout.from_strides[d], layout.to_strides[d],
                         layout.index_strides[d]};
    }
    std::stable_sort(dims_.begin(), dims_.begin() + count_,
                     [](const NoiseDim& a, const NoiseDim& b) { return a.to > b.to; });
    Join();
    if (count_ == 0) dims_[count_++] = {1, 1, 1, 1};
  }
  std::size_t count() const { return count_; }
  const NoiseDim& operator[](std::size_t d) const { return dims_[d]; }

 private:
  void Join() {
    std::size_t kept = 0;
    for (std::size_t d = 0; d < count_; ++d) {
      const NoiseDim& inner = dims_[d];
      if (kept > 0) {
        NoiseDim& outer = dims_[kept - 1];
        if (outer.from == inner.from * inner.size && outer.to == inner.to * inner.size &&
            outer.index == inner.index * inner.size) {
          outer = {outer.size * inner.size, inner.from, inner.to, inner.index};
          continue;
        }
      }
      dims_[kept++] = inner;
    }
    count_ = kept;
  }

  std::array<NoiseDim, kDimsMax> dims_;
  std::size_t count_ = 0;
};

const NoiseFunctions& NoiseFunctionsFor(DType dtype) {
  const CpuKernels& kernels = BestKernels();
  switch (dtype) {
    case DType::kF64:
      return kernels.noise_f64;
    case DType::kF16:
      return kernels.noise_f16;
    case DType::kBf16:
      return kernels.noise_bf16;
    default:
      return kernels.noise_f32;
  }
}

double NoiseEpsilon(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 0x1p-52;
    case DType::kF16:
      return 0x1p-10;
    case DType::kBf16:
      return 0x1p-7;
    default:
      return 0x1p-23;
  }
}

std::int64_t NoiseBytes(DType dtype) {
  if (dtype == DType::kF64) return 8;
  return dtype == DType::kF32 ? 4 : 2;
}

Status RefuseNoise(const std::string& found, const std::string& expected) {
  return Status(Code::kInvalidArgument, "noise: " + found + "; expected " + expected);
}

}  // namespace

Status Validate(const NoiseLayout& layout) {
  if (layout.dtype != DType::kF64 && layout.dtype != DType::kF32 && layout.dtype != DType::kF16 &&
      layout.dtype != DType::kBf16) {
    return RefuseNoise("dtype is " + std::to_string(static_cast<int>(layout.dtype)),
                       "float64, float32, float16 or bfloat16");
  }
  const std::size_t dims = layout.shape.size();
  if (dims > kDimsMax || layout.from_strides.size() != dims || layout.to_strides.size() != dims ||
      layout.index_strides.size() != dims) {
    return RefuseNoise(std::to_string(dims) + " dimensions",
                       "at most " + std::to_string(kDimsMax) + ", and as many strides");
  }
  for (const std::int64_t size : layout.shape) {
    if (size < 0) return RefuseNoise("a size of " + std::to_string(size), "sizes from 0");
  }
  return Status::Ok();
}

void AddNoise(const NoiseLayout& layout, const void* from, void* to, const Noise& noise,
              bool difference) noexcept {
  for (const std::int64_t size : layout.shape) {
    if (size == 0) return;
  }
  const DefaultFloatEnvironment environment;
  const std::uint64_t mixed = MixBits(noise.key + noise.step * 0x9e3779b97f4a7c15u);
  const NoiseWords words{
      .first = static_cast<std::uint32_t>(mixed),
      .second = static_cast<std::uint32_t>(mixed >> 32),
      .scale = std::min(noise.ulps * NoiseEpsilon(layout.dtype), kNoiseMax) * 0x1p-24};
  const NoiseFunctions& functions = NoiseFunctionsFor(layout.dtype);
  const NoiseFunction run = difference ? functions.differences : functions.values;
  const std::int64_t bytes = NoiseBytes(layout.dtype);
  const auto* source = static_cast<const unsigned char*>(from);
  auto* target = static_cast<unsigned char*>(to);

  const NoiseDims dims(layout);
  const std::size_t inner = dims.count() - 1;
  const NoiseDim& last = dims[inner];
  const bool together = last.from == 1 && last.to == 1;
  std::array<std::int64_t, kDimsMax> place{};
  std::uint64_t index = layout.first_index;
  while (true) {
    const auto step = static_cast<std::uint32_t>(last.index);
    if (together) {
      run(source, target, static_cast<std::size_t>(last.size), static_cast<std::uint32_t>(index),
          step, words);
    } else {
      for (std::int64_t i = 0; i < last.size; ++i) {
        run(source + i * last.from * bytes, target + i * last.to * bytes, 1,
            static_cast<std::uint32_t>(index) + static_cast<std::uint32_t>(i) * step, step, words);
      }
    }
    std::size_t d = inner;
    while (true) {  // to the next run: the outer dimensions count like digits
      if (d == 0) return;
      --d;
      source += dims[d].from * bytes;
      target += dims[d].to * bytes;
      index += static_cast<std::uint64_t>(dims[d].index);
      if (++place[d] < dims[d].size) break;
      place[d] = 0;
      source -= dims[d].size * dims[d].from * bytes;
      target -= dims[d].size * dims[d].to * bytes;
      index -= static_cast<std::uint64_t>(dims[d].size * dims[d].index);
    }
  }
}

}  // namespace statcollect::stats
