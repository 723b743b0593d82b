#include "server/query/verdict/kernels.h"

#include <algorithm>
#include <array>

namespace statcollect::query {
namespace {

bool Contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

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
  // Without oneDNN, PyTorch computes the outputs of 16 samples and more by NNPACK, if the memory
  // format allows it, and never gradients.
  const auto without = [&](const Config& config) {
    return value(config, "torch.mkldnn.enabled") == "false";
  };
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

}  // namespace statcollect::query
