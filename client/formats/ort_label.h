// Converts between a tensor's identity and its name in ONNX Runtime's folders.
#ifndef STATCOLLECT_CLIENT_FORMATS_ORT_LABEL_H_
#define STATCOLLECT_CLIENT_FORMATS_ORT_LABEL_H_

#include <string>
#include <string_view>

#include "common/records.h"

namespace statcollect::client::formats {

// NAME[PATH]@mbM@callC@eval, with only the parts that apply (docs/import-export.md). Characters
// that a file name cannot have, or that would be taken for one of these marks, are written as %XX.
// Names beyond 240 bytes are cut and end in a hash.
std::string OrtLabel(const TensorKey& key);
// The inverse; false if OrtLabel cannot have made the label. Sets name, output_path, micro_batch,
// call, mode.
bool ParseOrtLabel(std::string_view label, TensorKey& key);

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_CLIENT_FORMATS_ORT_LABEL_H_
