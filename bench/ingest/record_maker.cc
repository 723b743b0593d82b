#include "bench/ingest/record_maker.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "bench/ingest/random.h"

namespace statcollect::bench {
namespace {

constexpr std::size_t kPool = std::size_t{1} << 16;
constexpr double kMeanOfHalfNormal = 0.79788456080286536;  // sqrt(2 / pi)

// An element of a float32 or bfloat16 tensor near `value`.
double AsElement(double value, bool bf16) {
  auto element = static_cast<float>(value);
  if (bf16) element = std::bit_cast<float>(std::bit_cast<std::uint32_t>(element) & 0xffff0000u);
  return element;
}

std::uint64_t Clamped(double count, std::uint64_t max) {
  return std::min(static_cast<std::uint64_t>(std::max(count, 0.0)), max);
}

}  // namespace

void MadeColumns::Resize(std::size_t records, std::uint32_t k) {
  for (auto* column : {&zero, &neg, &pos, &hash}) column->resize(records);
  for (auto* column : {&min, &max, &mean, &std, &l1, &l2}) column->resize(records);
  sketch.resize(records * k);
}

RecordMaker::RecordMaker(const Network& network, const MakerOptions& options)
    : network_(network), options_(options), normals_(kPool + kSketchMax) {
  std::mt19937_64 engine(0x5eed);
  std::normal_distribution<float> normal;
  for (float& value : normals_) value = normal(engine);
}

void RecordMaker::Cut(std::uint32_t rank, std::size_t at, std::uint32_t n, MadeColumns* out) const {
  const std::uint32_t shards = options_.shards;
  const auto share = [&](std::uint64_t count) {
    return count / shards + (rank < count % shards ? 1 : 0);
  };
  const double root = std::sqrt(static_cast<double>(shards));
  for (std::size_t i = at; i < at + n; ++i) {
    const std::uint64_t numel = (out->zero[i] + out->neg[i] + out->pos[i]) / shards;
    out->zero[i] = share(out->zero[i]);
    out->neg[i] = std::min(share(out->neg[i]), numel - out->zero[i]);
    out->pos[i] = numel - out->zero[i] - out->neg[i];
    out->l1[i] /= shards;
    out->l2[i] /= root;
    const std::uint64_t hash = out->hash[i];
    out->hash[i] = rank > 0 ? Mix(hash + rank) : hash;
    for (std::uint32_t other = 1; rank == 0 && other < shards; ++other)
      out->hash[i] -= Mix(hash + other);
  }
  for (std::size_t i = at * options_.sketch; i < (at + n) * options_.sketch; ++i)
    out->sketch[i] /= static_cast<float>(shards);
}

void RecordMaker::Make(std::uint32_t rank, std::uint64_t step, std::uint32_t first, std::uint32_t n,
                       std::size_t at, MadeColumns* out) const {
  const bool differs = step >= options_.differ_from;
  const std::size_t begin = at;
  const std::uint64_t stream = Mix(options_.seed + (differs ? 0x10000000000u + options_.salt : 0)) ^
                               Mix(~std::uint64_t{options_.shards > 1 ? 0 : rank});
  const std::uint64_t moving = Mix(stream + step + 1), fixed = Mix(stream);
  // All tensors drift together by a few per cent, each step adds noise of its own.
  const double drift = 1.0 + 0.05 * std::sin(0.02 * static_cast<double>(step));
  const float* normals = normals_.data();
  const auto normal = [normals](std::uint64_t bits, int shift) {
    return static_cast<double>(normals[(bits >> shift) & (kPool - 1)]);
  };
  const std::uint32_t k = options_.sketch;
  const double sketch_scale = k > 0 ? 1.0 / std::sqrt(static_cast<double>(k)) : 0;
  for (std::uint32_t i = 0; i < n; ++i, ++at) {
    const Profile& p = network_.profiles()[first + i];
    const std::uint64_t a =
        Mix((p.fixed ? fixed : moving) + (std::uint64_t{first} + i) * 0xd1342543de82ef95u);
    const std::uint64_t b = Mix(a), c = Mix(b);
    const auto numel = static_cast<double>(p.numel);
    const double root = std::sqrt(numel);

    double std = p.std * (p.fixed ? 1.0 : drift) * (1.0 + 0.02 * normal(a, 0));
    double mean = std * normal(a, 16) / root;
    double l1 = numel * std * kMeanOfHalfNormal * (1.0 + 0.6 * normal(a, 32) / root);
    std::uint64_t zero = 0;
    std::uint64_t neg = Clamped(0.5 * numel + 0.5 * root * normal(b, 0), p.numel);
    double min = -std * (p.extreme + 0.2 * normal(b, 16));
    const double max = std * (p.extreme + 0.2 * normal(b, 32));
    if (p.rectified) {
      zero = neg;
      neg = 0;
      min = 0;
      mean = 0.5 * l1 / numel;
      l1 = mean * numel;
      std *= 0.5838;  // of a rectified normal
    }
    out->zero[at] = zero;
    out->neg[at] = neg;
    out->pos[at] = p.numel - zero - neg;
    out->min[at] = AsElement(min, p.bf16);
    out->max[at] = AsElement(max, p.bf16);
    out->mean[at] = mean;
    out->std[at] = std;
    out->l1[at] = l1;
    // The engine adds squares in another order than this formula: a few units in the last place.
    const double rounding = 1.0 + (static_cast<double>(b >> 60) - 7.5) * 0x1p-53;
    const double l2 = root * std::sqrt(mean * mean + std * std) * rounding;
    out->l2[at] = l2;
    out->hash[at] = c;
    const float* from = normals + (b >> 44 & (kPool - 1));
    const auto scale = static_cast<float>(l2 * sketch_scale);
    float* sketch = out->sketch.data() + at * k;
    for (std::uint32_t j = 0; j < k; ++j) sketch[j] = from[j] * scale;
  }
  if (options_.shards > 1) Cut(rank, begin, n, out);
}

}  // namespace statcollect::bench
