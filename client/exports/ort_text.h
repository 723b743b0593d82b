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

// The format has only outputs, inspected tensors and their gradients.
bool IsOrtKind(Kind kind);
inline bool IsBackward(Kind kind) {
  return kind == Kind::kGradOutput || kind == Kind::kInspectGrad;
}

// "" if the record has everything that the format needs, otherwise what it lacks.
std::string_view OrtLacks(const Observation& observation);
// The record, including its final end of line. Precondition: IsOrtKind, and OrtLacks is empty.
std::string OrtText(const Observation& observation, std::string_view label);

// The text after "samples(top 128): ", formatted as torch prints a tensor (precision 6, 128
// columns).
std::string TorchTensor(std::span<const double> values, DType dtype);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_EXPORTS_ORT_TEXT_H_
