#include "server/query/compare/replicas.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>

#include "common/ascii.h"
#include "common/names.h"
#include "common/parse.h"
#include "common/text.h"
#include "server/query/run_view.h"

namespace statcollect::query {
namespace {

using Config = std::map<std::string, std::string>;

enum Axis { kData, kTensor, kPipeline, kContext, kExpert, kAxes };

struct AxisNames {
  std::string_view axis;
  std::array<std::string_view, 3> prefixes;  // before _size, _degree, _rank or nothing
};

constexpr std::array<AxisNames, kAxes> kAxisNames = {{
    {"dp", {"dp", "data_parallel", "data_model_parallel"}},
    {"tp", {"tp", "tensor_parallel", "tensor_model_parallel"}},
    {"pp", {"pp", "pipeline_parallel", "pipeline_model_parallel"}},
    {"cp", {"cp", "context_parallel", "context_model_parallel"}},
    {"ep", {"ep", "expert_parallel", "expert_model_parallel"}},
}};

std::string Lower(std::string_view text) {
  std::string lower = ascii::Lower(text);
  std::replace(lower.begin(), lower.end(), '-', '_');
  return lower;
}

std::string LeafOf(const std::string& key) { return Lower(key.substr(key.rfind('.') + 1)); }

bool IsOff(const std::string& value) {
  const std::string lower = Lower(value);
  for (const std::string_view off :
       {"", "0", "false", "none", "no", "off", "null", "no_shard", "ddp"}) {
    if (lower == off) return true;
  }
  return false;
}

// "tp_size", "tensor_parallel": the axis, if the leaf is one of its names before one of the
// suffixes.
std::optional<Axis> AxisOf(std::string_view leaf,
                           std::initializer_list<std::string_view> suffixes) {
  for (const std::string_view suffix : suffixes) {
    if (!leaf.ends_with(suffix)) continue;
    const std::string_view stem = leaf.substr(0, leaf.size() - suffix.size());
    for (int axis = 0; axis < kAxes; ++axis) {
      const auto& prefixes = kAxisNames[static_cast<std::size_t>(axis)].prefixes;
      if (std::find(prefixes.begin(), prefixes.end(), stem) != prefixes.end())
        return static_cast<Axis>(axis);
    }
  }
  return std::nullopt;
}

using AxisValues = std::array<std::optional<std::uint32_t>, kAxes>;

AxisValues ReadAxes(const Config& config, std::initializer_list<std::string_view> suffixes,
                    std::uint32_t least, std::set<std::string>& used) {
  AxisValues values;
  for (const auto& [key, text] : config) {
    const auto axis = AxisOf(LeafOf(key), suffixes);
    const auto number = axis ? ParseNumber<std::uint32_t>(text) : std::nullopt;
    if (!number || *number < least || values[*axis]) continue;
    values[*axis] = number;
    used.insert(Printable(key));
  }
  return values;
}

class LayoutReader {
 public:
  LayoutReader(const std::map<std::uint32_t, Config>& configs, std::uint32_t world_size)
      : configs_(configs), world_size_(world_size) {}

  ReplicaLayout Read() && {
    if (!configs_.empty()) ReadSharding(configs_.begin()->second);
    if (!GroupByCoordinates() && !GroupBySizes()) {
      Ranks all;
      for (const auto& [rank, config] : configs_) all.push_back(rank);
      if (!all.empty()) Add({0, 0}, std::move(all));
    }
    return std::move(layout_);
  }

 private:
  void Shard(bool weights, bool gradients, bool state, const std::string& key) {
    layout_.weights_sharded = layout_.weights_sharded || weights;
    layout_.gradients_sharded = layout_.gradients_sharded || gradients;
    layout_.state_sharded = layout_.state_sharded || state;
    if (weights || gradients || state) {
      layout_.sharded.push_back("sharded over the ranks by the configuration (" + Printable(key) +
                                "), not compared: " + (weights ? "weights, " : "") +
                                (gradients ? "gradients, " : "") + "optimizer state");
    }
  }

  void ReadSharding(const Config& config) {
    for (const auto& [key, value] : config) {
      const std::string leaf = LeafOf(key), lower = Lower(value);
      const bool names_strategy = leaf == "strategy" || leaf == "parallel" ||
                                  leaf == "parallelism" || leaf == "distributed_type" ||
                                  leaf == "sharding_strategy" || leaf == "sharding";
      if (leaf == "fsdp" || leaf == "fully_shard" || leaf == "use_fsdp") {
        if (!IsOff(value)) Shard(true, true, true, key);
      } else if (names_strategy && (lower.find("fsdp") != std::string::npos ||
                                    lower.find("full_shard") != std::string::npos ||
                                    lower.find("hybrid_shard") != std::string::npos ||
                                    lower.find("shard_grad_op") != std::string::npos)) {
        Shard(true, true, true, key);
      } else if (leaf == "dp_shard" || leaf == "data_parallel_shard_degree") {
        if (const auto degree = ParseNumber<std::uint32_t>(value); degree.value_or(2) > 1)
          Shard(true, true, true, key);
      } else if (leaf == "zero" || leaf == "zero_stage" ||
                 Lower(key).ends_with("zero_optimization.stage")) {
        const auto stage = ParseNumber<std::uint32_t>(value).value_or(0);
        Shard(stage >= 3, stage >= 2, stage >= 1, key);
      } else if (leaf == "distributed_optimizer" || leaf == "use_distributed_optimizer" ||
                 leaf == "zero_redundancy_optimizer" || leaf == "sharded_optimizer") {
        Shard(false, false, !IsOff(value), key);
      } else if (names_strategy && lower == "ddp") {
        layout_.stated = true;
      }
    }
  }

  // Each rank says where it stands.
  bool GroupByCoordinates() {
    std::map<std::array<std::uint32_t, 2>, Ranks> groups;
    std::set<std::string> used;
    bool any = false;
    for (const auto& [rank, config] : configs_) {
      const AxisValues at = ReadAxes(config, {"_rank"}, 0, used);
      const bool says = at[kTensor] || at[kPipeline];
      any = any || says;
      if (!says && !at[kData]) return false;
      groups[{at[kTensor].value_or(0), at[kPipeline].value_or(0)}].push_back(rank);
    }
    if (!any) return false;
    std::set<std::string> ignored;
    layout_.experts_differ =
        ReadAxes(configs_.begin()->second, {"_size", "_degree", ""}, 1, ignored)[kExpert].value_or(
            1) > 1;
    Take(groups, "from each rank's own " + Joined(used));
    return true;
  }

  bool GroupBySizes() {
    if (configs_.empty()) return false;
    std::set<std::string> used;
    const AxisValues size = ReadAxes(configs_.begin()->second, {"_size", "_degree", ""}, 1, used);
    if (used.empty()) return false;
    const std::uint64_t tp = size[kTensor].value_or(1), pp = size[kPipeline].value_or(1),
                        cp = size[kContext].value_or(1);
    const std::uint64_t other = tp * pp * cp, world = std::max<std::uint64_t>(world_size_, 1);
    const std::uint64_t dp =
        size[kData].value_or(static_cast<std::uint32_t>(world / std::max<std::uint64_t>(other, 1)));
    if (dp * other != world) {
      layout_.notes.push_back("the layout in the configuration (" + Joined(used) + ") makes " +
                              std::to_string(dp * other) + " ranks, the run has " +
                              std::to_string(world) +
                              "; it was not used: all ranks are taken as replicas of each other");
      return false;
    }
    layout_.experts_differ = size[kExpert].value_or(1) > 1;
    std::map<std::array<std::uint32_t, 2>, Ranks> groups;
    for (const auto& [rank, config] : configs_) {
      groups[{static_cast<std::uint32_t>(rank % tp),
              static_cast<std::uint32_t>(rank / (tp * cp * dp))}]
          .push_back(rank);
    }
    Take(groups,
         "from " + Joined(used) + ", ranks numbered tensor first, then context, data, pipeline");
    return true;
  }

  void Add(const std::array<std::uint32_t, 2>& place, Ranks ranks) {
    layout_.places.push_back(place);
    layout_.groups.push_back(std::move(ranks));
  }

  void Take(std::map<std::array<std::uint32_t, 2>, Ranks>& groups, const std::string& source) {
    layout_.stated = true;
    for (auto& [at, ranks] : groups) Add(at, std::move(ranks));
    layout_.notes.push_back(std::to_string(layout_.groups.size()) +
                            (layout_.groups.size() == 1 ? " group" : " groups") + " of replicas, " +
                            source);
  }

  const std::map<std::uint32_t, Config>& configs_;
  const std::uint32_t world_size_;
  ReplicaLayout layout_;
};

}  // namespace

ReplicaLayout FindReplicas(const std::map<std::uint32_t, Config>& configs,
                           std::uint32_t world_size) {
  return LayoutReader(configs, world_size).Read();
}

ReplicaLayout FindReplicas(const RunView& view) {
  std::map<std::uint32_t, Config> configs;
  for (std::size_t attempt = 0; attempt < view.attempts().size(); ++attempt) {
    for (const auto& [rank, meta] : view.ranks(attempt)) configs[rank] = meta.info.config;
  }
  return FindReplicas(configs, view.attempts().back().world_size);
}

}  // namespace statcollect::query
