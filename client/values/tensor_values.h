// A captured tensor at the client: fetched, taken as numbers, written as .npy.
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
  std::vector<std::int64_t> shape;  // of what is there
  std::string bytes;                // row-major, little-endian

  std::uint64_t elements() const { return row.elements(); }
  bool whole() const { return row.elements() == row.numel(); }
  // Real numbers an element: 2 of a complex one.
  std::uint64_t components() const;
  // Component i. Exact for every dtype.
  long double At(std::uint64_t i) const;
  // Whether component i has the same bits as that of `other`, of the same dtype.
  bool SameBits(const TensorValues& other, std::uint64_t i) const;

 private:
  std::size_t component_bytes() const;
};

// What `row` and its bytes say. kDataLoss if they do not fit together.
Result<TensorValues> MakeTensorValues(v1::CaptureRow row, std::string bytes);

// Shape of what was kept: the tensor's; of a part whole rows of its first dimension, else one dimension.
std::vector<std::int64_t> KeptShape(const v1::CaptureRow& row);

// The file's content (format version 1.0). bfloat16 and the two float8 have no dtype there: they become
// float32, which holds each of their values exactly; `raw`: uint16 or uint8 with their bits instead.
std::string ToNpy(const TensorValues& values, bool raw);

// One value of a narrow format, as float32 holds it exactly. `bits`: the lowest 8 or 16.
float WidenBf16(std::uint16_t bits);
float WidenF16(std::uint16_t bits);
float WidenF8E4M3(std::uint8_t bits);
float WidenF8E5M2(std::uint8_t bits);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_VALUES_TENSOR_VALUES_H_
