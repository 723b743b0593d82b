// The name that a tensor of ours has in ONNX Runtime's folders, and the way back.
#ifndef STATCOLLECT_CLIENT_FORMATS_ORT_LABEL_H_
#define STATCOLLECT_CLIENT_FORMATS_ORT_LABEL_H_

#include <string>
#include <string_view>

#include "common/records.h"

namespace statcollect::client::formats {

// NAME[PATH]@mbM@callC@eval, each part only where it says something (docs/import-export.md). What is no part
// of a file name, or would be taken for one of those marks, is written as %XX. Names beyond 240 bytes are cut
// and end in a hash.
std::string OrtLabel(const TensorKey& key);
// The way back: false if the label is none that OrtLabel makes. Sets name, output_path, micro_batch, call,
// mode.
bool ParseOrtLabel(std::string_view label, TensorKey& key);

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_CLIENT_FORMATS_ORT_LABEL_H_
