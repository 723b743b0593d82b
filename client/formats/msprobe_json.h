// msProbe's dump.json and construct.json, read as they stream by: a file of gigabytes needs no more memory
// than a small one (construct.json: as much as it has modules), and no nesting takes the stack.
#ifndef STATCOLLECT_CLIENT_FORMATS_MSPROBE_JSON_H_
#define STATCOLLECT_CLIENT_FORMATS_MSPROBE_JSON_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "client/formats/observation.h"
#include "client/formats/source.h"

namespace statcollect::client::formats {

inline constexpr std::size_t kJsonDepthMax = 512;
inline constexpr std::size_t kJsonValueBytesMax = std::size_t{1} << 20;
inline constexpr std::size_t kConstructEntriesMax = 2'000'000;

// One tensor of one entry of "data".
struct MsProbeTensor {
  std::string entry;    // "Module.layers.0.Linear.forward.1"
  std::string section;  // "input_args", "output", "parameters", ...
  std::string path;     // within the section, joined with dots
  std::string type, dtype;
  std::vector<std::int64_t> shape;
  bool shape_known = false;
  std::optional<double> max, min, mean, norm;  // none: null or not there
  std::string checksum;                        // "md5" or the like
};

using TakeTensor = std::function<Status(const MsProbeTensor&)>;
// Calls `take` for each tensor, in the order of the file; counts what is no tensor. kInvalidArgument with
// file and line where it is no such JSON.
Status ReadMsProbeDump(ByteSource& file, Tally* tally, const TakeTensor& take);

struct MsProbePlace {
  std::string parent;  // entry of the module around it; empty at the root
  std::uint32_t micro_batch = 0;
};
using MsProbeTree = std::unordered_map<std::string, MsProbePlace>;
Status ReadMsProbeConstruct(ByteSource& file, MsProbeTree* tree);

// What an entry's name says.
struct MsProbeEntry {
  std::string name;        // "layers.0", "Tensor.__add__"
  std::string class_name;  // "Linear", "__add__"
  enum class Pass { kForward, kBackward, kParameterGrads, kUnknown } pass = Pass::kUnknown;
  std::uint32_t call = 0;
};
MsProbeEntry ParseMsProbeEntry(std::string_view entry);

// In our terms (docs/import-export.md), without a step; `tree` may be empty. None if it has nothing to store:
// counted. kInvalidArgument: names or shapes that cannot be.
Result<std::optional<Observation>> ToObservation(const MsProbeTensor& tensor, const MsProbeTree& tree,
                                                 Tally* tally);

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_CLIENT_FORMATS_MSPROBE_JSON_H_
