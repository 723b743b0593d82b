// A captured tensor in the client: fetched, converted to numbers, written as .npy.
#ifndef STATCOLLECT_CLIENT_VALUES_TENSOR_VALUES_H_
#define STATCOLLECT_CLIENT_VALUES_TENSOR_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "common/types.h"
#include "statcollect/v1/query.pb.h"

namespace statcollect::client {

struct TensorValues {
  v1::CaptureRow row;
  DType dtype = DType::kUnspecified;
  std::vector<std::int64_t> shape;  // of the values that were kept
  std::string bytes;                // row-major, little-endian

  std::uint64_t elements() const { return row.elements(); }
  bool whole() const { return row.elements() == row.numel(); }
  // Component i; a complex element has two. Exact for every dtype.
  long double At(std::uint64_t i) const;
  // Whether component i has the same bits in `other`, which must have the same dtype.
  bool SameBits(const TensorValues& other, std::uint64_t i) const;

 private:
  std::size_t component_bytes() const;
};

// Combines `row` and its bytes. kDataLoss if they do not match.
Result<TensorValues> MakeTensorValues(v1::CaptureRow row, std::string bytes);

// The shape of the kept values: the tensor's own; for a part, whole rows of its first dimension,
// otherwise one dimension.
std::vector<std::int64_t> KeptShape(const v1::CaptureRow& row);

// The content of the file (format version 1.0). bfloat16 and float8 have no .npy dtype: they become
// float32, which holds each of their values exactly, or with `raw` their bits as uint16 or uint8.
std::string ToNpy(const TensorValues& values, bool raw);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_VALUES_TENSOR_VALUES_H_
