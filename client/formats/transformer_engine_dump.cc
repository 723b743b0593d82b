// Folders of TransformerEngine's statistics logs: a file for each rank.
#include <map>
#include <memory>
#include <utility>

#include "client/formats/dump.h"
#include "client/formats/file_tree.h"
#include "client/formats/transformer_engine_log.h"

namespace statcollect::client::formats {
namespace {

constexpr char kLogForm[] = "nvdlfw_inspect_statistics_logs/nvdlfw_inspect_globalrank-<R>.log";
// The log beside it has no statistics, but files of the same names.
constexpr std::string_view kOtherFolder = "nvdlfw_inspect_logs/";

class TransformerEngineDump final : public Dump {
 public:
  TransformerEngineDump(const Reading& reading, FileTree tree)
      : reading_(reading), tree_(std::move(tree)) {}

  Status Find() {
    for (const FilePath& path : tree_.files()) {
      const std::string whole = tree_.PathOf(path);
      const auto named = NumberAfter(path.back(), "globalrank");
      const bool alone = tree_.files().size() == 1 && path.size() == 1;  // the user named it
      if (!path.back().ends_with(".log") || (!named && !alone) ||
          whole.find(kOtherFolder) != std::string::npos) {
        reading_.tally.Skip("other file or folder");
        continue;
      }
      const std::uint64_t rank = named.value_or(reading_.options.rank.value_or(0));
      if (rank > kRankMax)
        return BadInput(whole, 0, "rank " + std::to_string(rank),
                        "at most " + std::to_string(kRankMax));
      const auto [other, is_new] = files_.emplace(static_cast<std::uint32_t>(rank), path);
      if (!is_new)
        return BadInput(reading_.options.path, 0,
                        "two logs of rank " + std::to_string(rank) + ", '" + Joined(other->second) +
                            "' and '" + Joined(path) + "'",
                        "one: name the folder or the file of one training");
    }
    for (const auto& [rank, path] : files_) ranks_.push_back(rank);
    if (!ranks_.empty()) return Status::Ok();
    return BadInput(reading_.options.path, 0,
                    tree_.files().empty() ? "no files" : "no file of that name", kLogForm);
  }

  const std::vector<std::uint32_t>& ranks() const override { return ranks_; }

  Status Read(std::uint32_t rank, ObservationSink& sink) override {
    auto source = tree_.OpenFile(files_.at(rank), &reading_.tally.bytes);
    ++reading_.tally.files;
    return reading_.BadFile(source.ok() ? ReadTransformerEngineLog(*source, reading_.options.steps,
                                                                   &reading_.tally, sink)
                                        : source.status(),
                            sink);
  }

 private:
  const Reading reading_;
  const FileTree tree_;
  std::map<std::uint32_t, FilePath> files_;
  std::vector<std::uint32_t> ranks_;
};

}  // namespace

Result<std::unique_ptr<Dump>> OpenTransformerEngineDump(const Reading& reading) {
  STATCOLLECT_RETURN_IF_ERROR(RefuseRankPattern(reading.options));
  auto tree = FileTree::Open(reading.options.path, &reading.tally);
  if (!tree.ok()) return tree.status();
  auto dump = std::make_unique<TransformerEngineDump>(reading, *std::move(tree));
  STATCOLLECT_RETURN_IF_ERROR(dump->Find());
  return std::unique_ptr<Dump>(std::move(dump));
}

}  // namespace statcollect::client::formats
