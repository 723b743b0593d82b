// msProbe's folders: step<N>/rank<R>/dump.json (older: step<N>/proc<pid>), or any part of that.
#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "client/formats/dump.h"
#include "client/formats/msprobe_json.h"
#include "common/names.h"

namespace statcollect::client::formats {
namespace {

constexpr char kDumpFile[] = "dump.json";
constexpr char kConstructFile[] = "construct.json";
constexpr char kMsProbeForm[] = "step<N>/rank<R>/dump.json, or one of those folders";

bool Has(const std::vector<Entry>& entries, std::string_view name) {
  return std::any_of(entries.begin(), entries.end(),
                     [&](const Entry& e) { return e.name == name && e.type == EntryType::kFile; });
}

std::string BaseName(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

class MsProbeDump final : public Dump {
 public:
  explicit MsProbeDump(const Reading& reading) : reading_(reading), rank_pattern_("rank", "") {}

  Status Open() {
    const ReadOptions& options = reading_.options;
    if (!options.rank_pattern.empty()) {
      const auto pattern = NumberPattern::Parse(options.rank_pattern);
      if (!pattern.ok()) return pattern.status();
      rank_pattern_ = *pattern;
    }
    const auto is_folder = IsFolder(options.path);
    if (!is_folder.ok()) return is_folder.status();
    if (*is_folder) {
      STATCOLLECT_RETURN_IF_ERROR(FindAll());
    } else {
      ranks_ = {options.rank.value_or(0)};
    }
    return Status::Ok();
  }

  const std::vector<std::uint32_t>& ranks() const override { return ranks_; }

  Status Read(std::uint32_t rank, ObservationSink& sink) override {
    if (!root_) return ReadNamedFile(sink);
    for (const auto& [step, folders] : steps_) {
      const auto own = folders.find(rank);
      if (own == folders.end() || !reading_.options.steps.Contains(step)) continue;
      STATCOLLECT_RETURN_IF_ERROR(reading_.BadFile(ReadFolder(own->second, step, sink), sink));
      STATCOLLECT_RETURN_IF_ERROR(sink.EndStep(step));
    }
    return Status::Ok();
  }

 private:
  using Path = std::vector<std::string>;  // components below the root

  Status FindAll() {
    auto root = Folder::Open(reading_.options.path);
    if (!root.ok()) return root.status();
    root_ = *std::move(root);
    const auto entries = root_->List();
    if (!entries.ok()) return entries.status();
    const std::string name = BaseName(reading_.options.path);
    const std::uint64_t step = kStep.Match(name).value_or(0);
    if (Has(*entries, kDumpFile)) {
      steps_[step][OwnRank(name)] = {};
    } else {
      STATCOLLECT_RETURN_IF_ERROR(FindSteps(*entries));
      if (steps_.empty()) STATCOLLECT_RETURN_IF_ERROR(FindRanksOf(step, *root_, *entries, {}));
    }
    for (const auto& [number, folders] : steps_) {
      for (const auto& [rank, path] : folders) {
        if (std::find(ranks_.begin(), ranks_.end(), rank) == ranks_.end()) ranks_.push_back(rank);
      }
    }
    std::sort(ranks_.begin(), ranks_.end());
    if (!ranks_.empty()) return Status::Ok();
    return BadInput(reading_.options.path, 0, "no dump.json", kMsProbeForm);
  }

  Status FindSteps(const std::vector<Entry>& entries) {
    for (const Entry& entry : entries) {
      const auto step = kStep.Match(entry.name);
      if (!step || entry.type != EntryType::kFolder) {
        if (kStep.Match(entry.name))
          reading_.tally.Skip(entry.type == EntryType::kLink ? "symbolic link"
                                                             : "other file or folder");
        continue;
      }
      if (steps_.contains(*step))
        return BadInput(root_->path(), 0, "two folders of step " + std::to_string(*step), "one");
      const auto folder = root_->Sub(entry.name);
      if (!folder.ok()) return folder.status();
      const auto inside = folder->List();
      if (!inside.ok()) return inside.status();
      if (Has(*inside, kDumpFile)) {
        steps_[*step][reading_.options.rank.value_or(0)] = {entry.name};
      } else {
        STATCOLLECT_RETURN_IF_ERROR(FindRanksOf(*step, *folder, *inside, {entry.name}));
      }
    }
    return Status::Ok();
  }

  // The ranks' folders of a step: rank<R>, rank (one device), or proc<pid> in order of the number.
  Status FindRanksOf(std::uint64_t step, const Folder& folder, const std::vector<Entry>& entries,
                     const Path& above) {
    std::map<std::uint32_t, Path> found, processes;
    for (const Entry& entry : entries) {
      if (entry.type != EntryType::kFolder) continue;
      Path path = above;
      path.push_back(entry.name);
      const auto sub = folder.Sub(entry.name);
      const auto inside = sub.ok() ? sub->List() : Result<std::vector<Entry>>(sub.status());
      if (!inside.ok()) return inside.status();
      if (!Has(*inside, kDumpFile)) continue;
      std::optional<std::uint64_t> rank = rank_pattern_.Match(entry.name);
      if (!rank && entry.name == "rank") rank = reading_.options.rank.value_or(0);
      if (rank && *rank > kRankMax)
        return BadInput(folder.path(), 0, "rank " + std::to_string(*rank), "at most 1000000");
      if (rank) {
        if (!found.emplace(static_cast<std::uint32_t>(*rank), path).second)
          return BadInput(folder.path(), 0, "two folders of rank " + std::to_string(*rank), "one");
      } else if (kProcess.Match(entry.name)) {
        processes.emplace(static_cast<std::uint32_t>(processes.size()), path);
      } else {
        reading_.tally.Skip("folder that is not a rank");
      }
    }
    if (found.empty() && !processes.empty())
      reading_.tally.Note(
          "the names of folders proc<pid> do not contain the rank: they were numbered in "
          "order of the pid");
    if (!found.empty()) reading_.tally.Skip("proc<pid> next to rank folders", processes.size());
    for (auto& [rank, path] : found.empty() ? processes : found)
      steps_[step][rank] = std::move(path);
    return Status::Ok();
  }

  std::uint32_t OwnRank(const std::string& name) const {
    const auto named = rank_pattern_.Match(name);
    const std::uint32_t otherwise =
        named && *named <= kRankMax ? static_cast<std::uint32_t>(*named) : 0;
    return reading_.options.rank.value_or(otherwise);
  }

  Status ReadFolder(const Path& path, std::uint64_t step, ObservationSink& sink) {
    std::optional<Folder> below;
    for (const std::string& name : path) {
      auto next = (below ? *below : *root_).Sub(name);
      if (!next.ok()) return next.status();
      below = *std::move(next);
    }
    const Folder& folder = below ? *below : *root_;
    MsProbeTree tree;
    auto construct = folder.OpenFile(kConstructFile, &reading_.tally.bytes);
    if (construct.ok()) {
      ++reading_.tally.files;
      STATCOLLECT_RETURN_IF_ERROR(reading_.BadFile(ReadMsProbeConstruct(*construct, &tree), sink));
    } else if (construct.status().code() == Code::kNotFound) {
      reading_.tally.Note(
          "a dump.json has no construct.json: its parents and micro-batches are unknown");
    } else {
      return construct.status();
    }
    auto file = folder.OpenFile(kDumpFile, &reading_.tally.bytes);
    return file.ok() ? ReadDump(*file, tree, step, sink) : file.status();
  }

  Status ReadNamedFile(ObservationSink& sink) {
    if (!reading_.options.steps.Contains(0)) return Status::Ok();
    auto file = OpenNamedFile(reading_.options.path, &reading_.tally.bytes);
    if (!file.ok()) return file.status();
    STATCOLLECT_RETURN_IF_ERROR(reading_.BadFile(ReadDump(*file, {}, 0, sink), sink));
    return sink.EndStep(0);
  }

  Status ReadDump(ByteSource& file, const MsProbeTree& tree, std::uint64_t step,
                  ObservationSink& sink) {
    ++reading_.tally.files;
    return ReadMsProbeDump(file, &reading_.tally, [&](const MsProbeTensor& tensor) {
      auto observation = ToObservation(tensor, tree, &reading_.tally);
      if (!observation.ok()) return observation.status();
      if (!*observation) return Status::Ok();
      (*observation)->step = step;
      return sink.Take(**std::move(observation));
    });
  }

  static const NumberPattern kStep, kProcess;
  const Reading reading_;
  NumberPattern rank_pattern_;
  std::optional<Folder> root_;  // none: the path is a file
  std::map<std::uint64_t, std::map<std::uint32_t, Path>> steps_;
  std::vector<std::uint32_t> ranks_;
};

const NumberPattern MsProbeDump::kStep("step", "");
const NumberPattern MsProbeDump::kProcess("proc", "");

}  // namespace

Result<std::unique_ptr<Dump>> OpenMsProbeDump(const Reading& reading) {
  auto dump = std::make_unique<MsProbeDump>(reading);
  STATCOLLECT_RETURN_IF_ERROR(dump->Open());
  return std::unique_ptr<Dump>(std::move(dump));
}

}  // namespace statcollect::client::formats
