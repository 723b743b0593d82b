#include "server/query/settings/setting_area.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <span>

#include "server/query/settings/dotted.h"

namespace statcollect::query {
namespace {

using WordList = std::span<const std::string_view>;

constexpr std::string_view kVersionWords[] = {"version", "versions", "commit",
                                              "git",     "dirty",    "driver"};
constexpr std::string_view kDeterminismWords[] = {"deterministic",  "determinism", "benchmark",
                                                  "pythonhashseed", "workspace",   "autotune"};
constexpr std::string_view kPrecisionWords[] = {
    "dtype", "dtypes", "precision", "amp",    "autocast", "fp16",         "bf16", "bfloat16", "fp8",
    "fp32",  "tf32",   "half",      "scaler", "quant",    "quantization", "sdp",  "sdpa"};
constexpr std::string_view kParallelWords[] = {
    "world",       "dp",        "tp",       "pp",     "cp",     "ep",   "ddp",   "fsdp",
    "parallel",    "pipeline",  "sharding", "nccl",   "hccl",   "gloo", "nodes", "rank",
    "distributed", "deepspeed", "stage",    "tensor", "expert", "mpi",  "ranks", "replicas"};
constexpr std::string_view kOptimizerWords[] = {
    "lr",       "learning", "optimizer", "optim",    "adam",     "adamw",     "sgd",
    "lamb",     "lion",     "beta",      "betas",    "beta1",    "beta2",     "momentum",
    "decay",    "warmup",   "schedule",  "clip",     "clipping", "scheduler", "accumulation",
    "nesterov", "ema",      "grad",      "gradient", "fused",    "foreach"};
constexpr std::string_view kDataWords[] = {"data",      "dataset", "datasets", "corpus", "seed",
                                           "seeds",     "batch",   "shuffle",  "loader", "epoch",
                                           "tokenizer", "epochs",  "sampler",  "sha256", "split",
                                           "samples",   "workers", "padding",  "random"};
constexpr std::string_view kEnvironmentWords[] = {
    "hardware", "mkldnn", "threads", "platform", "host", "hosts", "hostname",
    "device",   "cuda",   "gpu",     "cpu",      "env",  "line"};
constexpr std::string_view kModelWords[] = {
    "model", "layer",  "layers",   "width",      "hidden",       "heads",
    "head",  "dim",    "eps",      "dropout",    "attention",    "attn",
    "norm",  "vocab",  "mlp",      "vocabulary", "context",      "activation",
    "embed", "init",   "rope",     "bias",       "ffn",          "embedding",
    "depth", "kernel", "channels", "causal",     "intermediate", "architecture"};

struct AreaRule {
  SettingArea area;
  WordList words;
};

// The first that matches decides.
constexpr AreaRule kAreaRules[] = {
    {SettingArea::kVersions, kVersionWords},        {SettingArea::kDeterminism, kDeterminismWords},
    {SettingArea::kPrecision, kPrecisionWords},     {SettingArea::kParallel, kParallelWords},
    {SettingArea::kOptimizer, kOptimizerWords},     {SettingArea::kData, kDataWords},
    {SettingArea::kEnvironment, kEnvironmentWords}, {SettingArea::kModel, kModelWords},
};

std::optional<SettingArea> SectionOf(const std::string& word) {
  if (word == "model") return SettingArea::kModel;
  if (word == "data" || word == "dataset") return SettingArea::kData;
  if (word == "optimizer" || word == "optim") return SettingArea::kOptimizer;
  return std::nullopt;
}

}  // namespace

// Counts and hashes that the agent takes of a whole model: something else in the list says what
// changed.
bool FollowsFromOthers(std::string_view key) {
  static constexpr std::string_view kSums[] = {
      "model.modules", "model.structure",   "model.parameters", "model.buffers",
      "model.device",  "model.activations", "checklist."};
  static constexpr std::string_view kSizes[] = {".tensors", ".elements", "optimizer.parameters"};
  return std::any_of(std::begin(kSums), std::end(kSums),
                     [&](auto sum) { return key.starts_with(sum); }) ||
         (key.starts_with("optimizer.") &&
          std::any_of(std::begin(kSizes), std::end(kSizes),
                      [&](auto size) { return key.ends_with(size); }));
}

SettingArea AreaOf(std::string_view key) {
  // The agent's own: settings of one module, whose name may hold any word.
  if (key.starts_with("module."))
    return key.ends_with(".dtype") ? SettingArea::kPrecision : SettingArea::kModel;
  const auto words = WordsOf(key);
  for (const AreaRule& rule : kAreaRules) {
    // "model.dtype" is precision, "model.seed_width" is model.
    if (rule.area == SettingArea::kOptimizer && !words.empty()) {
      if (const auto section = SectionOf(words.front())) return *section;
    }
    if (HasAny(words, rule.words)) return rule.area;
  }
  return SettingArea::kOther;
}

bool MayChangeNumbers(std::string_view key) {
  if (FollowsFromOthers(key)) return false;
  switch (AreaOf(key)) {
    case SettingArea::kModel:
    case SettingArea::kData:
    case SettingArea::kOptimizer:
    case SettingArea::kPrecision:
    case SettingArea::kDeterminism:
      return true;
    default:
      return false;
  }
}

}  // namespace statcollect::query
