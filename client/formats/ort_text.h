// The text of one tensor that ONNX Runtime's StatisticsSubscriber writes: a file of its own, or one of the
// blocks of a merged summary. All versions, and the older spelling in which the name ends in "_forward".
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

// As printed: over all elements, infinities among neg and pos, the sample's std.
struct OrtRecord {
  std::string name;  // "Linear_7_0th_output", or what inspect_activation was given
  bool backward = false;
  std::int32_t depth = -1;            // root 1; -1 for inspected tensors
  DType dtype = DType::kUnspecified;  // unspecified: one that we do not have
  std::string dtype_text;
  std::vector<std::int64_t> shape;
  std::uint64_t numel = 0;
  double min = 0, max = 0, mean = 0, std = 0;
  std::uint64_t nan = 0, inf = 0, neg = 0, pos = 0, zero = 0;
  std::vector<double> samples;  // the first elements, if they were asked for and can be read
};

// Place in the module tree, from a name "{class}_{index}_{k}th_output".
struct OrtModule {
  std::string class_name;
  std::uint64_t index = 0;
};
std::optional<OrtModule> ParseOrtName(std::string_view name);

// The record that begins at the reader's next line that is not empty; false at the end of the source.
// kInvalidArgument with file and line if it is not one.
Result<bool> ReadOrtRecord(LineReader& reader, bool with_samples, OrtRecord* record);
// Its first line only, as far as it says who it is: name, backward, depth.
Result<bool> ReadOrtHeader(LineReader& reader, OrtRecord* record);

// In our terms (docs/import-export.md). No step and parent yet.
Observation ToObservation(const OrtRecord& record, bool trust_std, Tally* tally);

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_CLIENT_FORMATS_ORT_TEXT_H_
