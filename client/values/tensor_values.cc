#include "client/values/tensor_values.h"

#include <cstring>
#include <utility>

#include "common/endian.h"
#include "common/names.h"
#include "common/narrow_float.h"

namespace statcollect::client {
namespace {

template <typename T>
T Read(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

bool IsNarrow(DType dtype) {
  return dtype == DType::kBf16 || dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2;
}

// NumPy's name; of the narrow floats that of what they are written as.
std::string NpyDType(DType dtype, bool raw) {
  switch (dtype) {
    case DType::kF64:
      return "<f8";
    case DType::kF32:
      return "<f4";
    case DType::kF16:
      return "<f2";
    case DType::kBf16:
      return raw ? "<u2" : "<f4";
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return raw ? "|u1" : "<f4";
    case DType::kI8:
      return "|i1";
    case DType::kI16:
      return "<i2";
    case DType::kI32:
      return "<i4";
    case DType::kI64:
      return "<i8";
    case DType::kU8:
      return "|u1";
    case DType::kU16:
      return "<u2";
    case DType::kU32:
      return "<u4";
    case DType::kU64:
      return "<u8";
    case DType::kBool:
      return "|b1";
    case DType::kC64:
      return "<c8";
    case DType::kC128:
      return "<c16";
    case DType::kUnspecified:
      break;
  }
  return "|V1";
}

}  // namespace

std::size_t TensorValues::component_bytes() const {
  return DTypeBytes(dtype) / (IsComplex(dtype) ? 2 : 1);
}

long double TensorValues::At(std::uint64_t i) const {
  const char* const at = bytes.data() + i * component_bytes();
  switch (dtype) {
    case DType::kF64:
    case DType::kC128:
      return Read<double>(at);
    case DType::kF32:
    case DType::kC64:
      return Read<float>(at);
    case DType::kF16:
      return FloatOfF16<float, std::uint32_t>(Read<std::uint16_t>(at));
    case DType::kBf16:
      return FloatOfBf16<float, std::uint32_t>(Read<std::uint16_t>(at));
    case DType::kF8E4M3:
      return FloatOfF8E4M3<float, std::uint32_t>(Read<std::uint8_t>(at));
    case DType::kF8E5M2:
      return FloatOfF8E5M2<float, std::uint32_t>(Read<std::uint8_t>(at));
    case DType::kI8:
      return Read<std::int8_t>(at);
    case DType::kI16:
      return Read<std::int16_t>(at);
    case DType::kI32:
      return Read<std::int32_t>(at);
    case DType::kI64:
      return static_cast<long double>(Read<std::int64_t>(at));
    case DType::kU8:
      return Read<std::uint8_t>(at);
    case DType::kBool:
      return Read<std::uint8_t>(at) != 0 ? 1 : 0;
    case DType::kU16:
      return Read<std::uint16_t>(at);
    case DType::kU32:
      return Read<std::uint32_t>(at);
    case DType::kU64:
      return static_cast<long double>(Read<std::uint64_t>(at));
    case DType::kUnspecified:
      break;
  }
  return 0;
}

bool TensorValues::SameBits(const TensorValues& other, std::uint64_t i) const {
  const std::size_t size = component_bytes();
  return std::memcmp(bytes.data() + i * size, other.bytes.data() + i * size, size) == 0;
}

std::vector<std::int64_t> KeptShape(const v1::CaptureRow& row) {
  std::vector<std::int64_t> shape(row.shape().begin(), row.shape().end());
  if (row.elements() == row.numel() || shape.empty()) return shape;
  const std::uint64_t rows = static_cast<std::uint64_t>(shape.front());
  const std::uint64_t each = rows == 0 ? 0 : row.numel() / rows;
  if (each == 0 || row.elements() % each != 0 || row.elements() == 0)
    return {static_cast<std::int64_t>(row.elements())};
  shape.front() = static_cast<std::int64_t>(row.elements() / each);
  return shape;
}

Result<TensorValues> MakeTensorValues(v1::CaptureRow row, std::string bytes) {
  const auto dtype = ParseDType(row.dtype());
  if (!dtype || bytes.size() != row.elements() * DTypeBytes(*dtype)) {
    return Status(Code::kDataLoss, "the collector answered with " + std::to_string(bytes.size()) +
                                       " bytes of " + std::to_string(row.elements()) +
                                       " elements of dtype '" + Printable(row.dtype()) +
                                       "', which do not fit together; upgrade statctl");
  }
  TensorValues values{
      .row = std::move(row), .dtype = *dtype, .shape = {}, .bytes = std::move(bytes)};
  values.shape = KeptShape(values.row);
  return values;
}

std::string ToNpy(const TensorValues& values, bool raw) {
  std::string shape;
  for (const std::int64_t size : values.shape) shape += std::to_string(size) + ", ";
  if (values.shape.size() > 1) shape.resize(shape.size() - 2);
  if (values.shape.size() == 1) shape.pop_back();  // "(3,)"
  std::string header = "{'descr': '" + NpyDType(values.dtype, raw) +
                       "', 'fortran_order': False, 'shape': (" + shape + "), }";
  constexpr std::size_t kBefore = 10, kAlignment = 64;
  while ((kBefore + header.size() + 1) % kAlignment != 0) header += ' ';
  header += '\n';
  std::string file("\x93NUMPY\x01\x00", 8);
  AppendLittleEndian(&file, static_cast<std::uint16_t>(header.size()));
  file += header;
  if (raw || !IsNarrow(values.dtype)) return file + values.bytes;
  for (std::uint64_t i = 0; i < values.elements(); ++i) {
    const auto wide = static_cast<float>(values.At(i));
    file.append(reinterpret_cast<const char*>(&wide), sizeof wide);
  }
  return file;
}

}  // namespace statcollect::client
