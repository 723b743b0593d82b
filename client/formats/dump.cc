#include "client/formats/dump.h"

#include <sys/stat.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "common/names.h"

namespace statcollect::client::formats {
namespace {

std::uint64_t BytesIn(const Folder& folder, int depth) {
  const auto entries = folder.List();
  if (!entries.ok()) return 0;
  std::uint64_t bytes = 0;
  for (const Entry& entry : *entries) {
    if (entry.type == EntryType::kFile) bytes += entry.bytes;
    if (entry.type != EntryType::kFolder || depth == 0) continue;
    if (const auto sub = folder.Sub(entry.name); sub.ok()) bytes += BytesIn(*sub, depth - 1);
  }
  return bytes;
}

}  // namespace

std::string_view Name(DumpFormat format) {
  switch (format) {
    case DumpFormat::kOrt:
      return "ort";
    case DumpFormat::kMindSpore:
      return "mindspore";
    case DumpFormat::kSglang:
      return "sglang";
    case DumpFormat::kDebugMode:
      return "debugmode";
    case DumpFormat::kTransformerEngine:
      return "transformerengine";
    default:
      return "msprobe";
  }
}

std::optional<DumpFormat> ParseDumpFormat(std::string_view name) {
  for (int i = 0; i < kDumpFormatCount; ++i) {
    if (Name(static_cast<DumpFormat>(i)) == name) return static_cast<DumpFormat>(i);
  }
  return std::nullopt;
}

Status Reading::BadFile(const Status& status, const ObservationSink& sink) const {
  if (status.ok() || !options.keep_going || sink.failed()) return status;
  tally.Skip("bad file");
  if (warn) warn(status);
  return Status::Ok();
}

Result<std::unique_ptr<Dump>> OpenDump(DumpFormat format, const Reading& reading) {
  switch (format) {
    case DumpFormat::kOrt:
      return OpenOrtDump(reading);
    case DumpFormat::kMsProbe:
      return OpenMsProbeDump(reading);
    case DumpFormat::kSglang:
      return OpenSglangDump(reading);
    case DumpFormat::kDebugMode:
      return OpenDebugModeDump(reading);
    case DumpFormat::kTransformerEngine:
      return OpenTransformerEngineDump(reading);
    default:
      return OpenMindSporeDump(reading);
  }
}

Status RefuseRankPattern(const ReadOptions& options) {
  if (options.rank_pattern.empty()) return Status::Ok();
  return {Code::kInvalidArgument,
          "--rank-pattern: found '" + Printable(options.rank_pattern) +
              "'; expected none, as each file of such a dump says its rank"};
}

Result<std::vector<RankFolder>> FindRanks(const Folder& folder, const NumberPattern& pattern) {
  const auto entries = folder.List();
  if (!entries.ok()) return entries.status();
  std::vector<RankFolder> ranks;
  for (const Entry& entry : *entries) {
    const auto rank = pattern.Match(entry.name);
    if (entry.type != EntryType::kFolder || !rank) continue;
    if (*rank > kRankMax)
      return BadInput(folder.PathOf(entry.name), 0, "rank " + std::to_string(*rank),
                      "at most " + std::to_string(kRankMax));
    ranks.push_back({static_cast<std::uint32_t>(*rank), entry.name});
  }
  std::sort(ranks.begin(), ranks.end(),
            [](const RankFolder& a, const RankFolder& b) { return a.rank < b.rank; });
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    if (ranks[i].rank == ranks[i - 1].rank) {
      return BadInput(folder.path(), 0,
                      "two folders of rank " + std::to_string(ranks[i].rank) + ": '" +
                          ranks[i - 1].name + "' and '" + ranks[i].name + "'",
                      "one");
    }
  }
  return ranks;
}

std::uint64_t BytesBelow(const std::string& path, int depth) {
  const auto folder = Folder::Open(path);
  if (folder.ok()) return BytesIn(*folder, depth);
  struct stat status {};
  return stat(path.c_str(), &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
}

}  // namespace statcollect::client::formats
