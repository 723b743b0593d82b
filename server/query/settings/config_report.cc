#include "server/query/settings/config_report.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <span>
#include <tuple>

#include "common/enum_names.h"
#include "common/names.h"
#include "common/text.h"
#include "server/query/settings/config_diff.h"
#include "server/query/settings/recorded_config.h"
#include "server/query/settings/source.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kDifferencesMax = 20;
constexpr std::size_t kValueBytesMax = 60;

char Lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

// "model.lnEps_2" -> model ln eps 2.
std::vector<std::string> WordsOf(std::string_view key) {
  std::vector<std::string> words(1);
  bool lower_before = false;
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) == 0) {
      if (!words.back().empty()) words.emplace_back();
    } else {
      if (std::isupper(byte) != 0 && lower_before) words.emplace_back();
      words.back() += Lower(c);
    }
    lower_before = std::islower(byte) != 0;
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

using WordList = std::span<const std::string_view>;

bool HasAny(const std::vector<std::string>& words, WordList names) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    return std::find(names.begin(), names.end(), word) != names.end();
  });
}

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

struct CategoryRule {
  ConfigCategory category;
  WordList words;
};

// The first that matches decides.
constexpr CategoryRule kCategoryRules[] = {
    {ConfigCategory::kVersions, kVersionWords},
    {ConfigCategory::kDeterminism, kDeterminismWords},
    {ConfigCategory::kPrecision, kPrecisionWords},
    {ConfigCategory::kParallel, kParallelWords},
    {ConfigCategory::kOptimizer, kOptimizerWords},
    {ConfigCategory::kData, kDataWords},
    {ConfigCategory::kEnvironment, kEnvironmentWords},
    {ConfigCategory::kModel, kModelWords},
};

std::optional<ConfigCategory> SectionOf(const std::string& word) {
  if (word == "model") return ConfigCategory::kModel;
  if (word == "data" || word == "dataset") return ConfigCategory::kData;
  if (word == "optimizer" || word == "optim") return ConfigCategory::kOptimizer;
  return std::nullopt;
}

// The command line without the run's name, which always differs.
std::string WithoutName(std::string line, const std::string& run) {
  const auto part_of_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  };
  for (std::size_t at = line.find(run); at != std::string::npos; at = line.find(run, at + 5)) {
    const std::size_t end = at + run.size();
    if ((at > 0 && part_of_word(line[at - 1])) || (end < line.size() && part_of_word(line[end])))
      continue;
    line.replace(at, run.size(), "(run)");
  }
  return line;
}

std::string Shown(const std::string& value) { return Printable(value, kValueBytesMax); }

ConfigItem MakeItem(const std::string& key, std::optional<std::string> a,
                    std::optional<std::string> b) {
  ConfigItem item{.category = CategoryOf(key), .key = key, .a = std::move(a), .b = std::move(b)};
  item.same = item.a && item.b && SameSetting(*item.a, *item.b);
  return item;
}

std::optional<std::string> Find(const std::map<std::string, std::string>& settings,
                                const std::string& key) {
  const auto found = settings.find(key);
  return found == settings.end() ? Implied(key, settings) : std::optional(found->second);
}

void AddNotes(const RunView& view, std::vector<std::string>& notes) {
  for (const std::string& difference : DifferencesBetweenRanks(view))
    notes.push_back("inside " + view.run() + ": " + difference);
}

// Counts and hashes that the agent takes of a whole model: something else in the list says what
// changed.
bool FollowsFromOthers(const std::string& key) {
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

// Differs from rank to rank by its nature.
bool IsOfTheRank(const std::string& key) {
  if (key.starts_with("random.")) return true;
  const auto words = WordsOf(key);
  static constexpr std::string_view kOwn[] = {"rank",   "pid",  "host",     "hostname", "visible",
                                              "device", "port", "platform", "node"};
  return HasAny(words, kOwn);
}

}  // namespace

std::string_view Name(ConfigCategory category) {
  static constexpr std::array<std::string_view, 10> kNames = {
      "unspecified", "model",    "data",     "optimizer",   "precision",
      "determinism", "parallel", "versions", "environment", "other"};
  return NameIn(kNames, category);
}

ConfigCategory CategoryOf(std::string_view key) {
  // The agent's own: settings of one module, whose name may hold any word.
  if (key.starts_with("module."))
    return key.ends_with(".dtype") ? ConfigCategory::kPrecision : ConfigCategory::kModel;
  const auto words = WordsOf(key);
  for (const CategoryRule& rule : kCategoryRules) {
    // "model.dtype" is precision, "model.seed_width" is model.
    if (rule.category == ConfigCategory::kOptimizer && !words.empty()) {
      if (const auto section = SectionOf(words.front())) return *section;
    }
    if (HasAny(words, rule.words)) return rule.category;
  }
  return ConfigCategory::kOther;
}

namespace {

// Facts of where and by what a dump was imported, not of its training.
bool IsOfTheImporter(const std::pair<const std::string, std::string>& fact) {
  return fact.first == "host" || fact.first == "agent.version";
}

void AddFacts(const RunView& view, std::map<std::string, std::string>& settings) {
  const std::size_t newest = view.attempts().size() - 1;
  const auto& ranks = view.ranks(newest);
  if (!ranks.empty()) {
    const SessionInfo& info = ranks.begin()->second.info;
    if (!info.host.empty()) settings.emplace("host", info.host);
    if (!info.agent_version.empty()) settings.emplace("agent.version", info.agent_version);
  }
  if (const auto size = view.attempts()[newest].world_size; size > 0)
    settings.emplace("world_size", std::to_string(size));
}

}  // namespace

std::map<std::string, std::string> Settings(const RunView& view) {
  const auto& ranks = view.ranks(view.attempts().size() - 1);
  std::map<std::string, std::string> settings;
  if (!ranks.empty()) settings = ranks.begin()->second.info.config;
  AddFacts(view, settings);
  return settings;
}

Result<ConfigReport> ReportConfig(const RunView& a, const RunView* b, bool all) {
  ConfigReport report{.run_a = a.run(), .run_b = b == nullptr ? std::string() : b->run()};
  std::map<std::string, std::string> of_a, of_b;
  if (b == nullptr) {
    of_a = Settings(a);
  } else {
    RecordedConfigs configs = ReadConfigs(a, *b);
    of_a = std::move(configs.a);
    of_b = std::move(configs.b);
    report.notes = std::move(configs.notes);
    AddFacts(a, of_a);
    AddFacts(*b, of_b);
    if (!ToolOf(a).empty() || !ToolOf(*b).empty()) {
      for (auto* facts : {&of_a, &of_b}) std::erase_if(*facts, IsOfTheImporter);
    }
  }
  std::set<std::string> keys;
  for (const auto* settings : {&of_a, &of_b}) {
    for (const auto& [key, value] : *settings) keys.insert(key);
  }
  for (const std::string& key : keys) {
    if (b != nullptr && !IsCompared(key, of_a, of_b)) continue;
    ConfigItem item = MakeItem(key, Find(of_a, key), Find(of_b, key));
    if (b != nullptr && key == "command_line" && item.a && item.b)
      item.same = item.same || WithoutName(*item.a, a.run()) == WithoutName(*item.b, b->run());
    item.same = item.same || b == nullptr;
    ++report.compared;
    report.differ += b != nullptr && !item.same ? 1 : 0;
    if (b == nullptr || all || !item.same) report.items.push_back(std::move(item));
  }
  report.same = report.differ == 0;
  std::stable_sort(report.items.begin(), report.items.end(),
                   [](const ConfigItem& x, const ConfigItem& y) {
                     return std::tuple(x.category, FollowsFromOthers(x.key), std::tie(x.key)) <
                            std::tuple(y.category, FollowsFromOthers(y.key), std::tie(y.key));
                   });
  AddNotes(a, report.notes);
  if (b != nullptr && b->run() != a.run()) AddNotes(*b, report.notes);
  return report;
}

std::vector<std::string> DifferencesBetweenRanks(const RunView& view) {
  const auto& ranks = view.ranks(view.attempts().size() - 1);
  std::map<std::string, std::map<std::string, std::vector<std::uint32_t>>> holders;  // key, value
  for (const auto& [rank, meta] : ranks) {
    for (const auto& [key, value] : meta.info.config) {
      if (!IsVolatileSetting(key) && !IsOfTheRank(key)) holders[key][value].push_back(rank);
    }
  }
  std::vector<std::string> sentences;
  std::size_t more = 0;
  for (auto& [key, values] : holders) {
    std::vector<std::uint32_t> without;
    for (const auto& [rank, meta] : ranks) {
      if (!meta.info.config.contains(key)) without.push_back(rank);
    }
    if (values.size() + (without.empty() ? 0 : 1) < 2) continue;
    if (sentences.size() == kDifferencesMax) {
      ++more;
      continue;
    }
    std::string sentence = Shown(key) + " is ";
    std::size_t said = 0;
    for (const auto& [value, who] : values) {
      if (said++ > 0) sentence += ", ";
      sentence += "'" + Shown(value) + "' on " + RanksNamed("rank", who);
      if (said == 3 && values.size() > 3) {
        sentence += ", and " + std::to_string(values.size() - 3) + " more elsewhere";
        break;
      }
    }
    if (!without.empty()) sentence += ", not set on " + RanksText(without);
    sentences.push_back(sentence);
  }
  if (more > 0) sentences.push_back("ranks differ in " + std::to_string(more) + " more settings");
  return sentences;
}

}  // namespace statcollect::query
