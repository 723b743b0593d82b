// Parses the text that ONNX Runtime's StatisticsSubscriber writes for a tensor: a separate file, or
// a block of a merged summary. Supports all versions, including the older ones in which the name
// ends in "_forward".
#ifndef STATCOLLECT_CLIENT_FORMATS_ORT_TEXT_H_
#define STATCOLLECT_CLIENT_FORMATS_ORT_TEXT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/formats/observation.h"
#include "client/formats/source.h"

namespace statcollect::client::formats {

// As printed: over all elements, with infinities counted in neg and pos, and the sample's std.
struct OrtRecord {
  std::string name;  // "Linear_7_0th_output", or the name given to inspect_activation
  bool backward = false;
  std::int32_t depth = -1;            // root 1; -1 for inspected tensors
  DType dtype = DType::kUnspecified;  // kUnspecified: unsupported
  std::string dtype_text;
  std::vector<std::int64_t> shape;
  std::uint64_t numel = 0;
  double min = 0, max = 0, mean = 0, std = 0;
  std::uint64_t nan = 0, inf = 0, neg = 0, pos = 0, zero = 0;
  std::vector<double> samples;  // the first elements, if requested and readable
};

// Position in the module tree, from a name "{class}_{index}_{k}th_output".
struct OrtModule {
  std::string class_name;
  std::uint64_t index = 0;
};
std::optional<OrtModule> ParseOrtName(std::string_view name);

// Reads the record that begins at the next line that is not empty; false at the end of the source.
// kInvalidArgument, with file and line: not a record.
Result<bool> ReadOrtRecord(LineReader& reader, bool with_samples, OrtRecord* record);
// Reads only its first line and sets name, backward and depth.
Result<bool> ReadOrtHeader(LineReader& reader, OrtRecord* record);

// Converts to statcollect's terms (docs/import-export.md), without step and parent.
Observation ToObservation(const OrtRecord& record, bool trust_std, Tally* tally);

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_CLIENT_FORMATS_ORT_TEXT_H_
