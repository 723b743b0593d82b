#include "client/formats/array_stats.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "agent/stats/cpu/engine.h"
#include "agent/stats/stats.h"
#include "common/names.h"

namespace statcollect::client::formats {
namespace {

constexpr std::uint64_t kWholeBytesMax = std::uint64_t{4} << 30;
constexpr std::size_t kBytesAtOnce = std::size_t{1} << 20;

// Elements as they come from the file, made what the engine reads.
class ElementReader {
 public:
  ElementReader(ByteSource& file, const StoredArray& array, DType as)
      : file_(file), array_(array), as_(as), stored_bytes_(DTypeBytes(array.dtype)) {}

  std::uint64_t stored_bytes() const { return stored_bytes_; }

  // Reads `count` more into `to`, which has room for them as they are stored.
  Status Read(std::uint64_t count, char* to) {
    const auto wanted = static_cast<std::size_t>(count * stored_bytes_);
    const auto read = file_.ReadUpTo(to, wanted);
    if (!read.ok()) return read.status();
    bytes_ += *read;
    if (*read < wanted) return WrongSize(std::to_string(bytes_) + " bytes of elements");
    return Convert(count, to);
  }

  Status End() {
    char more = 0;
    const auto read = file_.Read(&more, 1);
    if (!read.ok()) return read.status();
    return *read == 0 ? Status::Ok()
                      : WrongSize("more than " + std::to_string(bytes_) + " bytes of elements");
  }

 private:
  Status WrongSize(const std::string& found) const {
    return BadInput(file_.path(), 0, found,
                    std::to_string(array_.stored * stored_bytes_) + ", as shape and dtype '" +
                        array_.dtype_text +
                        "' say; the file is damaged, or the tool was ended while it wrote");
  }

  Status Convert(std::uint64_t count, char* elements) const {
    const std::size_t component = IsComplex(array_.dtype) ? stored_bytes_ / 2 : stored_bytes_;
    if (array_.big_endian && component > 1) {
      for (std::size_t at = 0; at < count * stored_bytes_; at += component)
        std::reverse(elements + at, elements + at + component);
    }
    if (as_ == array_.dtype) return Status::Ok();
    bool fits = true;
    for (std::size_t i = 0; i < count && as_ == DType::kBool; ++i)
      fits = fits && (elements[i] & ~1) == 0;
    for (std::size_t i = 0; i < count && as_ == DType::kBf16; ++i) {  // the upper half of float32
      std::uint32_t bits = 0;
      std::memcpy(&bits, elements + 4 * i, 4);
      fits = fits && (bits & 0xffff) == 0;
      const auto upper = static_cast<std::uint16_t>(bits >> 16);
      std::memcpy(elements + 2 * i, &upper, 2);
    }
    return fits ? Status::Ok()
                : Status(Code::kFailedPrecondition,
                         Printable(file_.path(), 4000) + ": found other numbers than " +
                             std::string(Name(as_)) + " has; expected only such");
  }

  ByteSource& file_;
  const StoredArray& array_;
  const DType as_;
  const std::size_t stored_bytes_;
  std::uint64_t bytes_ = 0;
};

// From front to back, in the stripes that the engine would take.
Result<TensorStats> OfRows(ElementReader& elements, const StoredArray& array, DType as,
                           std::span<double> sketch) {
  const std::uint64_t components = IsComplex(as) ? 2 : 1;
  const std::uint64_t stripe = stats::kStripeComponents / components;
  std::string buffer(
      static_cast<std::size_t>(std::min(stripe, array.elements) * elements.stored_bytes()), '\0');
  stats::Partial partial;
  for (std::uint64_t done = 0; done < array.elements;) {
    const std::uint64_t count = std::min(stripe, array.elements - done);
    STATCOLLECT_RETURN_IF_ERROR(elements.Read(count, buffer.data()));
    const std::int64_t shape[] = {static_cast<std::int64_t>(count)};
    stats::Accumulate({.data = buffer.data(), .dtype = as, .shape = shape, .strides = {}},
                      {.begin = 0, .count = count * components, .first = done * components},
                      static_cast<std::uint32_t>(sketch.size()), stats::BestKernels(), partial);
    done += count;
  }
  if (array.ends_file) STATCOLLECT_RETURN_IF_ERROR(elements.End());
  return stats::Finished(partial, array.elements, sketch);
}

Result<TensorStats> WithStrides(ElementReader& elements, const StoredArray& array, DType as,
                                std::span<double> sketch, const std::string& path) {
  if (std::max(array.stored, array.elements) > kWholeBytesMax / elements.stored_bytes()) {
    return BadInput(path, 0, std::to_string(array.elements) + " elements that are not row by row",
                    "at most 4 GiB of them; save a contiguous copy of the array");
  }
  std::string whole;
  const std::uint64_t at_once = kBytesAtOnce / elements.stored_bytes();
  const std::size_t used = DTypeBytes(as);
  for (std::uint64_t done = 0; done < array.stored;) {
    const std::uint64_t count = std::min(at_once, array.stored - done);
    const std::size_t end = static_cast<std::size_t>(done) * used;
    whole.resize(end + static_cast<std::size_t>(count) * elements.stored_bytes());
    STATCOLLECT_RETURN_IF_ERROR(elements.Read(count, whole.data() + end));
    done += count;
    whole.resize(static_cast<std::size_t>(done) * used);
  }
  if (array.ends_file) STATCOLLECT_RETURN_IF_ERROR(elements.End());
  std::uint32_t samples = 0;
  return stats::ComputeCpu(
      {.data = whole.data(), .dtype = as, .shape = array.shape, .strides = array.strides}, sketch,
      {}, &samples);
}

}  // namespace

Result<TensorStats> ReadStats(ByteSource& file, const StoredArray& array, DType as,
                              std::span<double> sketch) {
  ElementReader elements(file, array, as);
  return array.strides.empty() ? OfRows(elements, array, as, sketch)
                               : WithStrides(elements, array, as, sketch, file.path());
}

}  // namespace statcollect::client::formats
