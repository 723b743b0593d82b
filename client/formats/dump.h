// An open dump of another tool: its ranks, and their observations in order.
#ifndef STATCOLLECT_CLIENT_FORMATS_DUMP_H_
#define STATCOLLECT_CLIENT_FORMATS_DUMP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/formats/observation.h"
#include "client/formats/source.h"
#include "common/status.h"
#include "common/step_set.h"

namespace statcollect::client::formats {

enum class DumpFormat { kOrt, kMindSpore, kMsProbe, kSglang, kDebugMode, kTransformerEngine };
inline constexpr int kDumpFormatCount = 6;
std::string_view Name(DumpFormat format);
std::optional<DumpFormat> ParseDumpFormat(std::string_view name);

struct ReadOptions {
  std::string path;
  std::optional<std::uint32_t>
      rank;  // of a path that holds one rank; default 0, or as the dump says
  std::string
      rank_pattern;  // "rank{}": the ranks' folders in `path`; empty: the format's own names
  StepSet steps;
  bool trust_std = false;   // ort: the printed std is correct
  bool samples = false;     // ort: keep the printed first elements
  bool keep_going = false;  // skip bad files and count them
};

// Context of every reader. `warn` is called for each skipped file.
struct Reading {
  const ReadOptions& options;
  Tally& tally;
  std::function<void(const Status&)> warn;

  // With keep_going: counts the file and returns kOk. Failures of the sink itself are always
  // returned.
  Status BadFile(const Status& status, const ObservationSink& sink) const;
};

class Dump {
 public:
  virtual ~Dump() = default;
  virtual const std::vector<std::uint32_t>& ranks() const = 0;  // ascending
  virtual Status Read(std::uint32_t rank, ObservationSink& sink) = 0;
};

// kInvalidArgument, kNotFound or kPermissionDenied say what was found and expected. `reading` must
// outlive the dump.
Result<std::unique_ptr<Dump>> OpenDump(DumpFormat format, const Reading& reading);
Result<std::unique_ptr<Dump>> OpenOrtDump(const Reading& reading);
Result<std::unique_ptr<Dump>> OpenMindSporeDump(const Reading& reading);
Result<std::unique_ptr<Dump>> OpenMsProbeDump(const Reading& reading);
Result<std::unique_ptr<Dump>> OpenSglangDump(const Reading& reading);
Result<std::unique_ptr<Dump>> OpenDebugModeDump(const Reading& reading);
Result<std::unique_ptr<Dump>> OpenTransformerEngineDump(const Reading& reading);

// --- shared by the formats

inline constexpr std::uint32_t kRankMax = 1'000'000;

// kInvalidArgument if there is one: the format's files always say their rank.
Status RefuseRankPattern(const ReadOptions& options);

// The folders in `folder` that match the pattern, by rank. kInvalidArgument: two of the same rank.
struct RankFolder {
  std::uint32_t rank = 0;
  std::string name;
};
Result<std::vector<RankFolder>> FindRanks(const Folder& folder, const NumberPattern& pattern);
// Total size of the regular files at and below the path, at most `depth` folders deep; for a
// progress bar.
std::uint64_t BytesBelow(const std::string& path, int depth = 10);

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_CLIENT_FORMATS_DUMP_H_
