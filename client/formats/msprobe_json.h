// Streaming readers for msProbe's dump.json and construct.json. Memory does not grow with dump.json
// (with construct.json, only with the number of modules), and nesting uses no stack.
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

inline constexpr std::size_t kConstructEntriesMax = 2'000'000;

// One tensor of one entry of "data".
struct MsProbeTensor {
  std::string entry;    // "Module.layers.0.Linear.forward.1"
  std::string section;  // "input_args", "output", "parameters", ...
  std::string path;     // within the section, joined with dots
  std::string type, dtype;
  std::vector<std::int64_t> shape;
  bool shape_known = false;
  std::optional<double> max, min, mean, norm;  // empty: null or missing
  std::string checksum;                        // "md5" or the like
};

using TakeTensor = std::function<Status(const MsProbeTensor&)>;
// Calls `take` for each tensor, in the order of the file, and counts values that are not tensors.
// kInvalidArgument, with file and line: not such a JSON.
Status ReadMsProbeDump(ByteSource& file, Tally* tally, const TakeTensor& take);

struct MsProbePlace {
  std::string parent;  // entry of the enclosing module; empty at the root
  std::uint32_t micro_batch = 0;
};
using MsProbeTree = std::unordered_map<std::string, MsProbePlace>;
Status ReadMsProbeConstruct(ByteSource& file, MsProbeTree* tree);

// The parts of an entry's name.
struct MsProbeEntry {
  std::string name;        // "layers.0", "Tensor.__add__"
  std::string class_name;  // "Linear", "__add__"
  enum class Pass { kForward, kBackward, kParameterGrads, kUnknown } pass = Pass::kUnknown;
  std::uint32_t call = 0;
};
MsProbeEntry ParseMsProbeEntry(std::string_view entry);

// Converts to statcollect's terms (docs/import-export.md), without a step; `tree` may be empty.
// Empty if there is nothing to store; this is counted. kInvalidArgument: invalid names or shapes.
Result<std::optional<Observation>> ToObservation(const MsProbeTensor& tensor,
                                                 const MsProbeTree& tree, Tally* tally);

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_CLIENT_FORMATS_MSPROBE_JSON_H_
