// Reads the tensors that MindSpore writes with "saved_data": "tensor", one .npy file each.
#ifndef STATCOLLECT_CLIENT_FORMATS_MINDSPORE_TENSOR_H_
#define STATCOLLECT_CLIENT_FORMATS_MINDSPORE_TENSOR_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "client/formats/observation.h"
#include "client/formats/source.h"

namespace statcollect::client::formats {

// What a file's name says: "{op type}.{op
// name}.{task}.{stream}.{timestamp}.{input|output}.{slot}.{format}.npy", since 2.5 with ".{dtype}"
// before ".npy", because bfloat16 is saved as float32.
struct MindSporeTensorFile {
  std::string op_type, op_name;
  std::uint64_t task = 0, timestamp = 0, slot = 0;
  Kind kind = Kind::kUnspecified;  // kInput, kOutput
  std::string dtype;               // "bfloat16"; empty if the name has none
};
std::optional<MindSporeTensorFile> ParseMindSporeTensorName(std::string_view file);

// The observation, without step and call; nothing if its dtype has no statistics, which is counted.
// `open` opens the file, which may be read twice. kInvalidArgument, with the file: see npy.h.
Result<std::optional<Observation>> ReadMindSporeTensor(
    const MindSporeTensorFile& name, const std::function<Result<FileSource>()>& open, Tally* tally);

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_CLIENT_FORMATS_MINDSPORE_TENSOR_H_
