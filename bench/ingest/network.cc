#include "bench/ingest/network.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string>

#include "bench/ingest/random.h"

namespace statcollect::bench {
namespace {

struct Part {
  const char* name;
  const char* class_name;
  std::int64_t rows, columns;  // of its weight; columns 0: a vector
  std::int64_t width;          // of its output
  bool rectified;
};

// One block of width 2048; outputs have 8 x 512 tokens in front. Elements: 2 Ki to 50 Mi.
constexpr std::array<Part, 12> kParts = {{{"norm1", "RMSNorm", 2048, 0, 2048, false},
                                          {"attn.q_proj", "Linear", 2048, 2048, 2048, false},
                                          {"attn.k_proj", "Linear", 512, 2048, 512, false},
                                          {"attn.v_proj", "Linear", 512, 2048, 512, false},
                                          {"attn.core", "Attention", 1024, 0, 2048, false},
                                          {"attn.o_proj", "Linear", 2048, 2048, 2048, false},
                                          {"norm2", "RMSNorm", 2048, 0, 2048, false},
                                          {"mlp.up", "Linear", 8192, 2048, 8192, false},
                                          {"mlp.act", "ReLU", 1024, 0, 8192, true},
                                          {"mlp.down", "Linear", 2048, 8192, 2048, false},
                                          {"mlp", "MLP", 4096, 6144, 2048, false},
                                          {"", "Block", 6144, 8192, 2048, false}}};
constexpr std::int64_t kBatch = 8, kTokens = 512;
constexpr std::array<Kind, 4> kStages = {Kind::kOutput, Kind::kGradOutput, Kind::kWeightGrad,
                                         Kind::kWeight};

std::uint64_t Elements(const Layout& layout) {
  std::uint64_t count = 1;
  for (const std::int64_t size : layout.shape) count *= static_cast<std::uint64_t>(size);
  return count;
}

bool IsWeight(Kind kind) { return kind == Kind::kWeight || kind == Kind::kWeightGrad; }

// Every eighth module computes in bfloat16.
Layout LayoutOf(Kind kind, std::uint32_t module, const Part& part) {
  Layout layout{.id = 0, .dtype = module % 8 == 5 ? DType::kBf16 : DType::kF32, .shape = {}};
  if (!IsWeight(kind)) {
    layout.shape = {kBatch, kTokens, part.width};
  } else if (part.columns == 0) {
    layout.shape = {part.rows};
  } else {
    layout.shape = {part.rows, part.columns};
  }
  return layout;
}

TensorDef Define(Kind kind, std::uint32_t module, const Part& part) {
  const std::string block = "model.layers." + std::to_string(module / kParts.size());
  const std::string name = *part.name == '\0' ? block : block + "." + part.name;
  TensorDef def;
  def.key.name = IsWeight(kind) ? name + ".weight" : name;
  def.key.kind = kind;
  def.parent = IsWeight(kind) ? name : name.substr(0, name.rfind('.'));
  def.class_name = part.class_name;
  def.depth = 1 + static_cast<std::int32_t>(std::count(name.begin(), name.end(), '.'));
  return def;
}

}  // namespace

Network::Network(std::uint32_t activations, double repeat) {
  for (std::size_t stage = 0; stage < kStages.size(); ++stage) {
    // An equal share of each stage, the first ones rounded up.
    const auto stages = static_cast<std::uint32_t>(kStages.size());
    const std::uint32_t modules =
        (activations + stages - 1 - static_cast<std::uint32_t>(stage)) / stages;
    for (std::uint32_t i = 0; i < modules; ++i) {
      const Kind kind = kStages[stage];
      const std::uint32_t module = kind == Kind::kGradOutput ? modules - 1 - i : i;
      const Part& part = kParts[module % kParts.size()];
      Add(Define(kind, module, part), LayoutOf(kind, module, part));
      profiles_.back().rectified = part.rectified && kind == Kind::kOutput;
    }
  }
  const auto fixed = static_cast<std::size_t>(std::llround(repeat * static_cast<double>(size())));
  for (std::size_t i = 0; i < fixed; ++i) profiles_[profiles_.size() - 1 - i].fixed = true;
}

void Network::Add(const TensorDef& def, const Layout& layout) {
  const auto known = std::find_if(layouts_.begin(), layouts_.end(), [&](const Layout& other) {
    return other.dtype == layout.dtype && other.shape == layout.shape;
  });
  layout_of_.push_back(static_cast<std::uint32_t>(known - layouts_.begin()));
  if (known == layouts_.end()) {
    layouts_.push_back(layout);
    layouts_.back().id = layout_of_.back();
  }
  activations_.push_back(def);
  activations_.back().id = size();

  // Magnitudes from 1e-5 (gradients) to 10 (residual stream), the same in every run.
  const double uniform = static_cast<double>(Mix(activations_.size()) >> 11) * 0x1p-53;
  Profile profile;
  profile.numel = Elements(layout);
  const double exponent =
      def.key.kind == Kind::kGradOutput || def.key.kind == Kind::kWeightGrad ? -5.0 : -2.0;
  profile.std = std::pow(10.0, exponent + 3.0 * uniform);
  profile.extreme = std::sqrt(2.0 * std::log(static_cast<double>(profile.numel)));
  profile.bf16 = layout.dtype == DType::kBf16;
  profiles_.push_back(profile);
}

}  // namespace statcollect::bench
