// Causes that only the configuration shows: a different library for convolutions; or, as a last resort, the
// only setting that differs among those that concern the root's stage.
#include <algorithm>
#include <string>
#include <vector>

#include "server/query/cause/rules.h"
#include "server/query/cause/text.h"
#include "server/query/settings/config_diff.h"
#include "server/query/settings/config_report.h"

namespace statcollect::query::cause {
namespace {

bool Concerns(ConfigCategory category, Stage stage) {
  switch (stage) {
    case Stage::kWeights:
      return category == ConfigCategory::kModel || category == ConfigCategory::kData;  // has the seeds
    case Stage::kBatch:
      return category == ConfigCategory::kData;
    case Stage::kForward:
    case Stage::kLoss:
    case Stage::kBackward:
      return category == ConfigCategory::kModel || category == ConfigCategory::kPrecision ||
             (stage == Stage::kLoss && category == ConfigCategory::kOther);
    case Stage::kGrad:
      return category == ConfigCategory::kOptimizer || category == ConfigCategory::kParallel;
    case Stage::kOptimizer:
      return category == ConfigCategory::kOptimizer;
    default:
      return false;
  }
}

// Settings found by the agent, not by the user: they have their own rules, or follow from the user's
// settings.
bool IsOfAgent(std::string_view key) {
  constexpr std::string_view kSections[] = {
      "model.class",   "model.modules", "model.training", "model.layers.", "model.parameters",
      "model.buffers", "model.dtypes",  "model.device",   "model.tied",    "model.structure",
      "module.",       "optimizer.",    "random.",        "env.",          "git.",
      "hardware.",     "checklist.",    "parallel.",      "command_line",  "recording."};
  return key.find(".version") != std::string_view::npos ||
         std::any_of(std::begin(kSections), std::end(kSections),
                     [&](std::string_view section) { return key.starts_with(section); });
}

// Another algorithm rounds otherwise, and computes nothing else.
constexpr double kLargestRounding = 1e-3;

bool IsOfConvolution(const Evidence& evidence) {
  if (evidence.root.class_name.find("Conv") != std::string::npos) return true;
  return evidence.root.kind == Kind::kWeightGrad && evidence.HasRootPair() &&
         evidence.a.root->layout->shape.size() >= 4;
}

}  // namespace

Found FindConvolutionLibrary(const Evidence& evidence) {
  constexpr std::string_view kKeys[] = {"torch.mkldnn.enabled", "torch.cudnn.benchmark",
                                        "torch.cudnn.deterministic", "cudnn.version"};
  const Stage stage = evidence.root.stage;
  const bool computed = stage == Stage::kForward || stage == Stage::kBackward || stage == Stage::kGrad;
  const double distance = evidence.root.distance.value_or(0);
  if (!computed || !(distance > 0) || distance > kLargestRounding || !IsOfConvolution(evidence))
    return std::nullopt;
  for (const ConfigDifference& difference : CompareConfig(evidence.a.config, evidence.b.config)) {
    if (std::find(std::begin(kKeys), std::end(kKeys), difference.key) == std::end(kKeys)) continue;
    const std::string a = difference.a.value_or("not set"), b = difference.b.value_or("not set");
    return Cause{
        .rule = "convolution_library",
        .text = difference.key + " is " + InBoth(evidence, a, b) +
                ": convolutions may be computed by a different algorithm, which rounds more coarsely",
        .confidence = Confidence::kLikely,
        .key = difference.key,
        .a = a,
        .b = b};
  }
  return std::nullopt;
}

Found FindConfiguration(const Evidence& evidence) {
  std::vector<ConfigDifference> concerning;
  for (ConfigDifference& difference : CompareConfig(evidence.a.config, evidence.b.config)) {
    if (IsOfAgent(difference.key) || !Concerns(CategoryOf(difference.key), evidence.root.stage)) continue;
    concerning.push_back(std::move(difference));
  }
  if (concerning.size() != 1) return std::nullopt;
  const ConfigDifference& only = concerning.front();
  const std::string a = only.a.value_or("not set"), b = only.b.value_or("not set");
  return Cause{.rule = "configuration",
               .text = only.key + " is " + InBoth(evidence, a, b),
               .confidence = Confidence::kPossible,
               .key = only.key,
               .a = a,
               .b = b};
}

}  // namespace statcollect::query::cause
