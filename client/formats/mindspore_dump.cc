// MindSpore's folders: rank_<id>/<net>/<graph>/<iteration>, the older
// <step>/<time>/<device>/<model>/<model id>/<iteration>, or any part of them, with statistic.csv,
// raw CANN files or tensors at the bottom.
#include <algorithm>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "client/formats/dump.h"
#include "client/formats/mindspore_csv.h"
#include "client/formats/mindspore_tensor.h"
#include "common/names.h"

namespace statcollect::client::formats {
namespace {

constexpr char kTable[] = "statistic.csv";
constexpr char kConstants[] = "constants";
constexpr char kMindSporeForm[] =
    "rank_<id>/<net>/<graph>/<iteration> or <step>/<time>/<device>/<model>/<model id>/<iteration> "
    "with "
    "statistic.csv, "
    "raw files '{op type}.{op name}.{task}.{stream}.{timestamp}.csv' or tensors '{op type}.{op "
    "name}.{task}.{stream}.{timestamp}.{input|output}.{slot}.{format}.npy', or one of those "
    "folders";
constexpr std::size_t kFolderDepthMax = 12;
constexpr std::uint64_t kLeafRankMax = 1'000'000;

using Path = std::vector<std::string>;

// A folder with statistics.
struct Leaf {
  Path path;  // below the root
  std::uint64_t rank = 0, iteration = 0, graph = 0;
  std::optional<std::uint64_t> step;  // of the older layout
};

class MindSporeDump final : public Dump {
 public:
  explicit MindSporeDump(const Reading& reading) : reading_(reading) {
    patterns_ = {NumberPattern("rank_", ""), NumberPattern("rank", "")};
  }

  Status Open() {
    const ReadOptions& options = reading_.options;
    if (!options.rank_pattern.empty()) {
      const auto pattern = NumberPattern::Parse(options.rank_pattern);
      if (!pattern.ok()) return pattern.status();
      patterns_ = {*pattern};
    }
    const auto is_folder = IsFolder(options.path);
    if (!is_folder.ok()) return is_folder.status();
    if (!*is_folder) {
      ranks_ = {options.rank.value_or(0)};
      return Status::Ok();
    }
    auto root = Folder::Open(options.path);
    if (!root.ok()) return root.status();
    root_ = *std::move(root);
    Path path;
    STATCOLLECT_RETURN_IF_ERROR(Find(*root_, &path));
    if (leaves_.empty()) return BadInput(options.path, 0, "no statistics", kMindSporeForm);
    return Arrange();
  }

  const std::vector<std::uint32_t>& ranks() const override { return ranks_; }

  Status Read(std::uint32_t rank, ObservationSink& sink) override {
    if (!root_) return ReadNamedFile(sink);
    for (const auto& [step, leaves] : steps_[rank]) {
      if (!reading_.options.steps.Contains(step)) continue;
      calls_.clear();
      for (const Leaf* leaf : leaves) STATCOLLECT_RETURN_IF_ERROR(ReadLeaf(leaf->path, step, sink));
      STATCOLLECT_RETURN_IF_ERROR(sink.EndStep(step));
    }
    return Status::Ok();
  }

 private:
  Status Find(const Folder& folder, Path* path) {
    const auto entries = folder.List();
    if (!entries.ok()) return entries.status();
    const bool has_statistics = std::any_of(entries->begin(), entries->end(), [](const Entry& e) {
      return e.type == EntryType::kFile &&
             (e.name == kTable || ParseRawCannName(e.name) || ParseMindSporeTensorName(e.name));
    });
    if (has_statistics) {
      auto leaf = Place(*path);
      if (!leaf.ok()) return leaf.status();
      leaves_.push_back(*std::move(leaf));
    }
    for (const Entry& entry : *entries) {
      if (entry.type == EntryType::kLink) reading_.tally.Skip("symbolic link");
      if (entry.type != EntryType::kFolder || path->size() >= kFolderDepthMax) continue;
      if (entry.name == kConstants) {  // they belong to no step
        reading_.tally.Skip("folder of constants");
        continue;
      }
      const auto sub = folder.Sub(entry.name);
      if (!sub.ok()) return sub.status();
      path->push_back(entry.name);
      STATCOLLECT_RETURN_IF_ERROR(Find(*sub, path));
      path->pop_back();
    }
    return Status::Ok();
  }

  // Derives rank, graph and step from the folders' names, including the root's own name, because
  // PATH may be a part of a dump.
  Result<Leaf> Place(const Path& path) const {
    Leaf leaf{.path = path};
    Path names = path;
    std::string root = reading_.options.path;
    while (root.size() > 1 && root.ends_with('/')) root.pop_back();
    names.insert(names.begin(), root.substr(root.rfind('/') + 1));
    const std::size_t n = names.size();
    const auto number = [&](std::size_t from_end) {
      return from_end <= n ? ParseUnsigned(names[n - from_end]) : std::nullopt;
    };
    leaf.iteration = number(1).value_or(0);
    leaf.graph = number(2).value_or(0);
    const auto rank = NamedRank(names);
    if (rank) {
      leaf.rank = *rank;
    } else if (number(1) && number(2) && number(4) && n >= 5) {
      leaf.rank = *number(4);
      leaf.step = number(6);
    } else {
      leaf.rank = reading_.options.rank.value_or(0);
    }
    if (leaf.rank <= kLeafRankMax) return leaf;
    return BadInput(root_->path(), 0, "rank " + std::to_string(leaf.rank),
                    "at most " + std::to_string(kLeafRankMax));
  }

  std::optional<std::uint64_t> NamedRank(const Path& names) const {
    for (const std::string& name : names) {
      for (const NumberPattern& pattern : patterns_) {
        if (const auto rank = pattern.Match(name)) return rank;
      }
    }
    return std::nullopt;
  }

  // The older layout numbers twice: what differs from folder to folder is the step.
  Status Arrange() {
    std::map<std::uint64_t, int> steps;
    for (const Leaf& leaf : leaves_) {
      if (leaf.step) ++steps[*leaf.step];
    }
    for (const Leaf& leaf : leaves_) {
      const std::uint64_t step = leaf.step && steps.size() > 1 ? *leaf.step : leaf.iteration;
      steps_[static_cast<std::uint32_t>(leaf.rank)][step].push_back(&leaf);
    }
    for (auto& [rank, by_step] : steps_) {
      ranks_.push_back(rank);
      for (auto& [step, leaves] : by_step) {
        std::stable_sort(leaves.begin(), leaves.end(), [](const Leaf* a, const Leaf* b) {
          return std::tie(a->iteration, a->graph) < std::tie(b->iteration, b->graph);
        });
      }
    }
    return Status::Ok();
  }

  Status ReadLeaf(const Path& path, std::uint64_t step, ObservationSink& sink) {
    std::optional<Folder> below;
    for (const std::string& name : path) {
      auto next = (below ? *below : *root_).Sub(name);
      if (!next.ok()) return next.status();
      below = *std::move(next);
    }
    const Folder& folder = below ? *below : *root_;
    const auto entries = folder.List();
    if (!entries.ok()) return entries.status();
    std::vector<std::pair<RawCannFile, std::string>> raw;
    std::vector<std::pair<MindSporeTensorFile, std::string>> tensors;
    bool table = false;
    for (const Entry& entry : *entries) {
      if (entry.type != EntryType::kFile) continue;
      if (entry.name == kTable) {
        table = true;
      } else if (auto tensor = ParseMindSporeTensorName(entry.name)) {
        tensors.emplace_back(*std::move(tensor), entry.name);
      } else if (auto file = ParseRawCannName(entry.name)) {
        raw.emplace_back(*std::move(file), entry.name);
      } else {
        reading_.tally.Skip("other file or folder");
      }
    }
    if (table && !tensors.empty()) {
      reading_.tally.Skip("statistic.csv beside the tensors that it describes");
    } else if (table) {
      STATCOLLECT_RETURN_IF_ERROR(
          reading_.BadFile(ReadFile(folder, kTable, nullptr, step, sink), sink));
    }
    STATCOLLECT_RETURN_IF_ERROR(ReadTensors(folder, &tensors, step, sink));
    std::stable_sort(raw.begin(), raw.end(), [](const auto& a, const auto& b) {
      return std::tie(a.first.timestamp, a.first.task) < std::tie(b.first.timestamp, b.first.task);
    });
    for (const auto& [file, name] : raw)
      STATCOLLECT_RETURN_IF_ERROR(
          reading_.BadFile(ReadFile(folder, name, &file, step, sink), sink));
    return Status::Ok();
  }

  // Inputs and outputs of an operator may have the same time.
  Status ReadTensors(const Folder& folder,
                     std::vector<std::pair<MindSporeTensorFile, std::string>>* tensors,
                     std::uint64_t step, ObservationSink& sink) {
    std::stable_sort(tensors->begin(), tensors->end(), [](const auto& a, const auto& b) {
      const bool output_a = a.first.kind == Kind::kOutput, output_b = b.first.kind == Kind::kOutput;
      return std::tie(a.first.timestamp, a.first.task, output_a, a.first.slot) <
             std::tie(b.first.timestamp, b.first.task, output_b, b.first.slot);
    });
    for (const auto& [tensor, name] : *tensors) {
      const auto open = [&, &file = name] { return folder.OpenFile(file, &reading_.tally.bytes); };
      STATCOLLECT_RETURN_IF_ERROR(reading_.BadFile(ReadTensor(tensor, open, step, sink), sink));
    }
    return Status::Ok();
  }

  Status ReadTensor(const MindSporeTensorFile& tensor,
                    const std::function<Result<FileSource>()>& open, std::uint64_t step,
                    ObservationSink& sink) {
    auto read = ReadMindSporeTensor(tensor, open, &reading_.tally);
    if (!read.ok()) return read.status();
    return *read ? Take(**std::move(read), step, sink) : Status::Ok();
  }

  Status Take(Observation o, std::uint64_t step, ObservationSink& sink) {
    o.step = step;
    o.def.key.call = calls_[{o.def.key.name, o.def.key.kind, o.def.key.output_path}]++;
    return sink.Take(std::move(o));
  }

  Status ReadFile(const Folder& folder, const std::string& name, const RawCannFile* raw,
                  std::uint64_t step, ObservationSink& sink) {
    auto file = folder.OpenFile(name, &reading_.tally.bytes);
    return file.ok() ? ReadTable(*file, raw, step, sink) : file.status();
  }

  Status ReadNamedFile(ObservationSink& sink) {
    if (!reading_.options.steps.Contains(0)) return Status::Ok();
    const std::string& path = reading_.options.path;
    const std::string name = path.substr(path.rfind('/') + 1);
    const auto open = [&] { return OpenNamedFile(path, &reading_.tally.bytes); };
    if (const auto tensor = ParseMindSporeTensorName(name)) {
      STATCOLLECT_RETURN_IF_ERROR(reading_.BadFile(ReadTensor(*tensor, open, 0, sink), sink));
      return sink.EndStep(0);
    }
    auto file = open();
    if (!file.ok()) return file.status();
    const auto raw = ParseRawCannName(name);
    STATCOLLECT_RETURN_IF_ERROR(
        reading_.BadFile(ReadTable(*file, raw ? &*raw : nullptr, 0, sink), sink));
    return sink.EndStep(0);
  }

  Status ReadTable(ByteSource& file, const RawCannFile* raw, std::uint64_t step,
                   ObservationSink& sink) {
    lines_.Reset(file);
    ++reading_.tally.files;
    return ReadMindSporeCsv(lines_, raw, &reading_.tally, [&](Observation o) {
      const auto some = [&](Statistic statistic, std::uint64_t count) {
        if ((o.layout.untrusted & BitOf(statistic)) != 0 && count > 0)
          ++reading_.tally.untrusted[std::string(Name(statistic)) + " (number not known)"];
      };
      some(Statistic::kNan, o.stats.nan);
      some(Statistic::kInf, o.stats.pos_inf + o.stats.neg_inf);
      return Take(std::move(o), step, sink);
    });
  }

  const Reading reading_;
  std::vector<NumberPattern> patterns_;
  std::optional<Folder> root_;  // none: the path is a file
  std::vector<Leaf> leaves_;
  std::map<std::uint32_t, std::map<std::uint64_t, std::vector<const Leaf*>>> steps_;
  std::vector<std::uint32_t> ranks_;
  LineReader lines_;
  std::map<std::tuple<std::string, Kind, std::string>, std::uint32_t>
      calls_;  // in the step at hand
};

}  // namespace

Result<std::unique_ptr<Dump>> OpenMindSporeDump(const Reading& reading) {
  auto dump = std::make_unique<MindSporeDump>(reading);
  STATCOLLECT_RETURN_IF_ERROR(dump->Open());
  return std::unique_ptr<Dump>(std::move(dump));
}

}  // namespace statcollect::client::formats
