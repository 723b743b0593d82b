#include "server/query/verdict/kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "server/query/compare/roundoff.h"
#include "server/query/settings/dotted.h"

namespace statcollect::query {
namespace {

constexpr double kAccumulator = 0x1p-24;  // sums of coarser values are kept in f32
// A sum of n terms in a row differs from one in any other order by 0.29 to 0.41 sqrt(n) unit roundoffs of the
// terms' norm (partial sums grow as sqrt(k), each addition rounds to within 0.41 roundoffs on average). That
// of oneDNN's convolutions: 6.8 for 576 terms, 19 for 4,608; its weights' gradients: 38 for 16,384. A first
// difference counts from eight times the expected one on, which leaves a margin of a half. A BatchNorm over
// tensors in channels-last order sums each channel in a row on a CPU: 0.12 to 0.5 sqrt(n), measured.
constexpr double kLongSum = 0.08;
// Winograd's F(6x6,3x3) with the points 0, 1, 2, 1/2 and their negatives, as NNPACK has it, rounds by 27
// (one channel) to 74 (128 channels and more) roundoffs, F(4x4,3x3) by 9 to 28: computed from the transforms
// and measured alike. Barabasz et al., "Error Analysis and Improving the Accuracy of Winograd Convolution for
// Deep Neural Networks", arXiv:1803.10986, derives why. Of eight times this, half is margin.
constexpr double kWinograd = 18;
constexpr double kSumRoundoffs = 4;  // of a sum over a batch, however short

bool Contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

double ElementsOf(const Layout& layout) {
  return std::accumulate(
      layout.shape.begin(), layout.shape.end(), 1.0,
      [](double product, std::int64_t size) { return product * static_cast<double>(size); });
}

}  // namespace

OtherConvolutions ConvolutionsThatMayDiffer(const Config& a, const Config& b) {
  const auto value = [](const Config& config, std::string_view key) {
    const auto found = config.find(std::string(key));
    return found == config.end() ? std::string_view() : std::string_view(found->second);
  };
  const auto differs = [&](std::string_view key) { return value(a, key) != value(b, key); };
  constexpr std::array kEverywhere = {"torch.cudnn.deterministic",
                                      "torch.deterministic_algorithms",
                                      "torch.cpu_capability",
                                      "torch.version",
                                      "cudnn.version",
                                      "cuda.version",
                                      "hip.version",
                                      "hardware.gpu",
                                      "hardware.cpu"};
  // With benchmarking on, cuDNN chooses the algorithm that was fastest in this run.
  const auto measures = [&](const Config& config) {
    return value(config, "torch.cudnn.benchmark") == "true" && config.contains("hardware.gpu");
  };
  if (measures(a) || measures(b) || std::any_of(kEverywhere.begin(), kEverywhere.end(), differs))
    return OtherConvolutions::kAll;
  // Without oneDNN, PyTorch computes the outputs of 16 samples and more by NNPACK, if the memory format
  // allows it, and never gradients.
  const auto without = [&](const Config& config) { return value(config, "torch.mkldnn.enabled") == "false"; };
  return without(a) || without(b) ? OtherConvolutions::kForward : OtherConvolutions::kNone;
}

bool AllowsWinograd(std::span<const std::int64_t> shape) {
  return shape.size() >= 4 && shape[shape.size() - 1] >= 3 && shape[shape.size() - 2] >= 3;
}

bool HasKink(std::string_view class_name) {
  constexpr std::array kKinked = {"ReLU", "SELU", "Hard", "shrink", "Threshold", "MaxPool"};
  return std::any_of(kKinked.begin(), kKinked.end(),
                     [&](const char* part) { return Contains(class_name, part); });
}

void Kernels::Note(const TensorDef& def, const Layout& layout) {
  const Kind kind = def.key.kind;
  if (kind == Kind::kOutput && def.key.mode == Mode::kTrain && Contains(def.class_name, "BatchNorm") &&
      layout.shape.size() >= 2 && layout.shape[1] > 0) {
    modules_[def.key.name].normalised = ElementsOf(layout) / static_cast<double>(layout.shape[1]);
    return;
  }
  if (kind == Kind::kOutput || kind == Kind::kGradOutput) {
    const bool transposed = Contains(def.class_name, "Transpose");
    const bool copies = Contains(def.class_name, "Embedding");
    if (!transposed && !copies) return;
    Module& module = modules_[def.key.name];
    module.transposed = transposed;
    module.copies = copies;
    return;
  }
  const std::vector<std::int64_t>& shape = layout.shape;
  const bool matrix = shape.size() >= 2 && shape[0] > 0 && shape[1] > 0;
  if (!matrix || (kind != Kind::kWeight && kind != Kind::kWeightGrad)) return;
  Module& module = modules_[ParentOf(def.key.name)];
  const double elements = ElementsOf(layout);
  module.by_first = std::max(module.by_first, elements / static_cast<double>(shape[0]));
  module.by_second = std::max(module.by_second, elements / static_cast<double>(shape[1]));
  module.winograd = module.winograd || AllowsWinograd(shape);
}

const Kernels::Module* Kernels::Find(std::string_view module) const {
  const auto found = modules_.find(module);
  return found == modules_.end() ? nullptr : &found->second;
}

double Kernels::Rounding(double terms, bool winograd, double unit) {
  const double accumulator = std::min(unit, kAccumulator);
  const double sum = kLongSum * std::sqrt(std::max(1.0, terms)) * accumulator;
  return std::max({unit, sum, winograd ? kWinograd * accumulator : 0});
}

double Kernels::OfOutput(std::string_view module, double unit) const {
  const Module* of = Find(module);
  if (of == nullptr || of->copies) return unit;
  const double terms = std::max(of->normalised, of->transposed ? of->by_second : of->by_first);
  return Rounding(terms, of->winograd && other_ != OtherConvolutions::kNone, unit);
}

double Kernels::OfInputGradient(std::string_view module, double unit) const {
  const Module* of = Find(module);
  if (of == nullptr || of->copies) return unit;
  const double terms = of->transposed ? of->by_first : of->by_second;
  return Rounding(terms, of->winograd && other_ == OtherConvolutions::kAll, unit);
}

double Kernels::OfParameterGradient(std::string_view module, const Layout& layout, double unit,
                                    double terms) const {
  const Module* of = layout.shape.size() < 2 ? nullptr : Find(module);
  const bool transposed = of != nullptr && of->transposed;
  const double rows = layout.shape.empty() ? 1 : static_cast<double>(layout.shape[transposed ? 1 : 0]);
  const bool winograd = of != nullptr && of->winograd && other_ == OtherConvolutions::kAll;
  return std::max(kSumRoundoffs * unit,
                  Rounding(terms / std::max(1.0, rows), winograd, UnitRoundoff(layout.dtype)));
}

}  // namespace statcollect::query
