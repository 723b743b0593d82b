// Saved logs of PyTorch's DebugMode: one, or a folder of them whose names say the rank and the
// step.
#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "client/formats/debug_mode_log.h"
#include "client/formats/dump.h"
#include "client/formats/file_tree.h"

namespace statcollect::client::formats {
namespace {

constexpr char kLogNames[] =
    "files that DebugMode.save_logs wrote, such as rank0_step1.json, or folders of them";

class DebugModeDump final : public Dump {
 public:
  DebugModeDump(const Reading& reading, FileTree tree)
      : reading_(reading), tree_(std::move(tree)) {}

  Status Find(const std::optional<NumberPattern>& pattern) {
    std::map<std::uint32_t, std::vector<FilePath>> files;
    for (const FilePath& path : tree_.files()) {
      const auto is_log = IsLog(path);
      if (!is_log.ok()) return is_log.status();
      if (!*is_log) continue;
      const auto named = pattern ? Match(*pattern, path) : NumberAfter(Joined(path), "rank");
      const std::uint64_t rank = named.value_or(reading_.options.rank.value_or(0));
      if (rank > kRankMax)
        return BadInput(tree_.PathOf(path), 0, "rank " + std::to_string(rank),
                        "at most " + std::to_string(kRankMax));
      files[static_cast<std::uint32_t>(rank)].push_back(path);
    }
    for (const auto& [rank, paths] : files) {
      ranks_.push_back(rank);
      STATCOLLECT_RETURN_IF_ERROR(SetSteps(rank, paths));
    }
    if (!ranks_.empty()) return Status::Ok();
    return BadInput(reading_.options.path, 0, tree_.files().empty() ? "no files" : "no such log",
                    kLogNames);
  }

  const std::vector<std::uint32_t>& ranks() const override { return ranks_; }

  Status Read(std::uint32_t rank, ObservationSink& sink) override {
    for (const auto& [step, path] : steps_[rank]) {
      if (!reading_.options.steps.Contains(step)) continue;
      STATCOLLECT_RETURN_IF_ERROR(reading_.BadFile(ReadFile(path, step, sink), sink));
      STATCOLLECT_RETURN_IF_ERROR(sink.EndStep(step));
    }
    return Status::Ok();
  }

 private:
  // Whether it is to be read. A file that the user named is, whatever it holds.
  Result<bool> IsLog(const FilePath& path) {
    if (tree_.files().size() == 1 && path.size() == 1) return true;
    bool is_log = false;
    if (MayBeDebugModeLog(path.back())) {
      auto file = tree_.OpenFile(path, nullptr);
      if (!file.ok()) return file.status();
      const auto found = IsDebugModeLog(*file);
      if (!found.ok()) return found.status();
      is_log = *found;
    }
    if (!is_log) reading_.tally.Skip("other file or folder");
    return is_log;
  }

  static std::optional<std::uint64_t> Match(const NumberPattern& pattern, const FilePath& path) {
    for (const std::string& name : path) {
      if (const auto number = pattern.Match(name.substr(0, name.rfind('.')))) return number;
    }
    return std::nullopt;
  }

  // All of them from the names, or all of them by counting.
  Status SetSteps(std::uint32_t rank, const std::vector<FilePath>& paths) {
    const bool named = std::all_of(paths.begin(), paths.end(), [](const FilePath& path) {
      return NumberAfter(Joined(path), "step").has_value();
    });
    if (!named && paths.size() > 1)
      reading_.tally.Note(
          "the names of some logs do not say their step: all were numbered in the order of names");
    std::map<std::uint64_t, FilePath>& steps = steps_[rank];
    for (const FilePath& path : paths) {
      const std::uint64_t step =
          named ? NumberAfter(Joined(path), "step").value_or(0) : steps.size();
      const auto [other, is_new] = steps.emplace(step, path);
      if (!is_new)
        return BadInput(reading_.options.path, 0,
                        "two logs of rank " + std::to_string(rank) + " and step " +
                            std::to_string(step) + ", '" + Joined(other->second) + "' and '" +
                            Joined(path) + "'",
                        "one");
    }
    return Status::Ok();
  }

  Status ReadFile(const FilePath& path, std::uint64_t step, ObservationSink& sink) {
    auto file = tree_.OpenFile(path, &reading_.tally.bytes);
    if (!file.ok()) return file.status();
    ++reading_.tally.files;
    return ReadDebugModeLog(*file, &reading_.tally, [&](Observation o) {
      o.step = step;
      return sink.Take(std::move(o));
    });
  }

  const Reading reading_;
  const FileTree tree_;
  std::map<std::uint32_t, std::map<std::uint64_t, FilePath>> steps_;  // by rank
  std::vector<std::uint32_t> ranks_;
};

}  // namespace

Result<std::unique_ptr<Dump>> OpenDebugModeDump(const Reading& reading) {
  std::optional<NumberPattern> pattern;
  if (!reading.options.rank_pattern.empty()) {
    auto parsed = NumberPattern::Parse(reading.options.rank_pattern);
    if (!parsed.ok()) return parsed.status();
    pattern = *std::move(parsed);
  }
  auto tree = FileTree::Open(reading.options.path, &reading.tally);
  if (!tree.ok()) return tree.status();
  auto dump = std::make_unique<DebugModeDump>(reading, *std::move(tree));
  STATCOLLECT_RETURN_IF_ERROR(dump->Find(pattern));
  return std::unique_ptr<Dump>(std::move(dump));
}

}  // namespace statcollect::client::formats
