#include "client/formats/sglang_name.h"

#include <algorithm>
#include <set>

#include "client/formats/file_tree.h"
#include "client/formats/source.h"

namespace statcollect::client::formats {
namespace {

constexpr std::string_view kTagSeparator = "___", kHooked = "non_intrusive__", kGradient = "grad__",
                           kParameter = "param__";
// They say where and when, not which tensor.
const std::set<std::string, std::less<>> kPlaceTags = {
    "step",    "forward_pass_id", "rank",    "dump_index", "name",
    "pp_rank", "tp_rank",         "cp_rank", "ep_rank",    "etp_rank"};

bool Eat(std::string_view* text, std::string_view prefix) {
  if (!text->starts_with(prefix)) return false;
  text->remove_prefix(prefix.size());
  return true;
}

// Whether a module's path has the number in it: "model.layers.3.mlp".
bool HasPart(std::string_view path, std::string_view part) {
  const std::string whole = "." + std::string(path) + ".";
  return whole.find("." + std::string(part) + ".") != std::string::npos;
}

std::string ParentOf(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

// "model.layers.0.inputs.1", "model.layers.0.output", "output.0": the root has no path.
bool SetHooked(std::string_view name, bool gradient, TensorKey* key) {
  for (const auto& [word, kind, of_gradient] :
       {std::tuple(std::string_view("inputs"), Kind::kInput, Kind::kGradInput),
        std::tuple(std::string_view("output"), Kind::kOutput, Kind::kGradOutput)}) {
    const std::string whole = "." + std::string(name) + ".";
    const std::size_t at = whole.rfind("." + std::string(word) + ".");
    if (at == std::string::npos) continue;
    const std::size_t after = at + word.size() + 2;
    key->kind = gradient ? of_gradient : kind;
    key->name = at == 0 ? "model" : whole.substr(1, at - 1);
    key->output_path = after < whole.size() ? whole.substr(after, whole.size() - after - 1) : "";
    return true;
  }
  return false;
}

}  // namespace

std::optional<SglangName> ParseSglangName(std::string_view path) {
  if (!path.ends_with(".pt")) return std::nullopt;
  path.remove_suffix(3);
  // From the folder or file on that begins with the first tag.
  std::size_t begin = std::string_view::npos;
  for (const std::string_view first : {"step=", "forward_pass_id="}) {
    const std::size_t inside = path.find("/" + std::string(first));
    if (path.starts_with(first))
      begin = 0;
    else if (inside != std::string_view::npos)
      begin = inside + 1;
  }
  if (begin == std::string_view::npos) return std::nullopt;
  path.remove_prefix(begin);

  SglangName found;
  std::optional<std::uint64_t> step, rank, index;
  bool named = false;
  while (!path.empty()) {
    const std::size_t end = std::min(path.find(kTagSeparator), path.size());
    const std::string_view tag = path.substr(0, end);
    path.remove_prefix(std::min(path.size(), end + kTagSeparator.size()));
    const std::size_t equals = tag.find('=');
    if (equals == std::string_view::npos) continue;  // of a name with the separator in it
    const std::string key(tag.substr(0, equals)), value(tag.substr(equals + 1));
    if (key == "step" || key == "forward_pass_id") step = ParseUnsigned(value);
    if (key == "rank") rank = ParseUnsigned(value);
    if (key == "dump_index") index = ParseUnsigned(value);
    if (key == "name") {
      found.name = value;
      named = true;
    }
    const bool again = key == "recompute_status" && value != "recompute";
    if (!kPlaceTags.contains(key) && !again) found.tags.emplace_back(key, value);
  }
  if (!step || !rank || !index || !named) return std::nullopt;
  found.step = *step;
  found.rank = *rank;
  found.index = *index;
  return found;
}

TensorDef SglangTensor(const std::string& name,
                       const std::vector<std::pair<std::string, std::string>>& tags) {
  TensorDef def;
  std::string_view rest = name;
  const bool gradient = Eat(&rest, kGradient);
  if (Eat(&rest, kParameter)) {
    def.key = {.name = std::string(rest), .kind = gradient ? Kind::kWeightGrad : Kind::kWeight};
    def.parent = ParentOf(def.key.name);
  } else if (Eat(&rest, kHooked) && SetHooked(rest, gradient, &def.key)) {
    def.parent = ParentOf(def.key.name);
  } else {
    def.key = {.name = std::string(rest), .kind = gradient ? Kind::kInspectGrad : Kind::kInspect};
    def.depth = -1;
  }
  for (const auto& [tag, value] : tags) {
    if (tag == "layer_id" && HasPart(def.key.name, value)) continue;
    def.key.name += "[" + (tag == "recompute_status" ? value : tag + "=" + value) + "]";
  }
  return def;
}

std::optional<SglangPass> ParseSglangPass(std::string_view path) {
  static const NumberPattern kPass("Pass", ".pt");
  const std::size_t slash = path.rfind('/');
  const std::string_view file = slash == std::string_view::npos ? path : path.substr(slash + 1);
  const auto pass = kPass.Match(file);
  if (!pass) return std::nullopt;
  return SglangPass{.pass = *pass,
                    .rank = NumberAfter(path.substr(0, path.size() - file.size()), "_rank")};
}

TensorDef SglangPassTensor(const std::string& name) {
  constexpr std::string_view kBatch = ".forward_batch_info.";
  TensorDef def;
  const std::size_t at = name.find(kBatch);
  if (at == std::string::npos) {
    def.key = {.name = name, .kind = Kind::kOutput};
  } else {
    def.key = {.name = name.substr(0, at),
               .kind = Kind::kInput,
               .output_path = name.substr(at + kBatch.size())};
  }
  def.parent = ParentOf(def.key.name);
  return def;
}

}  // namespace statcollect::client::formats
