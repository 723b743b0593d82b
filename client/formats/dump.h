// A dump of another tool, opened: which ranks it has, and their observations in order.
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

enum class DumpFormat { kOrt, kMindSpore, kMsProbe };
std::string_view Name(DumpFormat format);
std::optional<DumpFormat> ParseDumpFormat(std::string_view name);

struct ReadOptions {
  std::string path;
  std::optional<std::uint32_t> rank;  // of a path that is one rank's; else 0, or as the dump says
  std::string rank_pattern;  // "rank{}": the folders in `path` that are ranks; empty: as the format has it
  StepSet steps;
  bool trust_std = false;   // ort: the printed std is right
  bool samples = false;     // ort: keep the printed first elements
  bool keep_going = false;  // leave bad files out and count them
};

// What every reader carries along. `warn` hears of each file that is left out.
struct Reading {
  const ReadOptions& options;
  Tally& tally;
  std::function<void(const Status&)> warn;

  // With keep_going: counts the file, and all is well. The sink's own failure is never kept going after.
  Status BadFile(const Status& status, const ObservationSink& sink) const;
};

class Dump {
 public:
  virtual ~Dump() = default;
  virtual const std::vector<std::uint32_t>& ranks() const = 0;  // ascending
  virtual Status Read(std::uint32_t rank, ObservationSink& sink) = 0;
};

// kInvalidArgument, kNotFound or kPermissionDenied say what is there and what was expected. `reading`
// outlives it.
Result<std::unique_ptr<Dump>> OpenDump(DumpFormat format, const Reading& reading);
Result<std::unique_ptr<Dump>> OpenOrtDump(const Reading& reading);
Result<std::unique_ptr<Dump>> OpenMindSporeDump(const Reading& reading);
Result<std::unique_ptr<Dump>> OpenMsProbeDump(const Reading& reading);

// --- shared by the formats

// The folders of `folder` that the pattern matches, by rank. Two of one rank: kInvalidArgument.
struct RankFolder {
  std::uint32_t rank = 0;
  std::string name;
};
Result<std::vector<RankFolder>> FindRanks(const Folder& folder, const NumberPattern& pattern);
// Bytes of the regular files at and below the path, at most `depth` folders down; for a progress bar.
std::uint64_t BytesBelow(const std::string& path, int depth = 10);

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_CLIENT_FORMATS_DUMP_H_
