// The text that ONNX Runtime's StatisticsSubscriber writes for one tensor.
#ifndef STATCOLLECT_CLIENT_EXPORTS_ORT_TEXT_H_
#define STATCOLLECT_CLIENT_EXPORTS_ORT_TEXT_H_

#include <optional>
#include <string>
#include <string_view>

#include "client/exports/exporter.h"
#include "client/formats/ort_label.h"

namespace statcollect::client {

using formats::OrtLabel;
using formats::ParseOrtLabel;

// The format knows forward and backward only: outputs, inspected tensors and their gradients.
bool IsOrtKind(Kind kind);
inline bool IsBackward(Kind kind) { return kind == Kind::kGradOutput || kind == Kind::kInspectGrad; }

// "" if the record has what the format needs, else what it lacks.
std::string_view OrtLacks(const Observation& observation);
// The record with its last line's end. Precondition: IsOrtKind, nothing lacks.
std::string OrtText(const Observation& observation, std::string_view label);

// As torch prints a tensor (precision 6, 128 columns), after "samples(top 128): ".
std::string TorchTensor(std::span<const double> values, DType dtype);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_EXPORTS_ORT_TEXT_H_
