#include "client/formats/npy.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "client/formats/convert.h"
#include "common/endian.h"
#include "common/names.h"

namespace statcollect::client::formats {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kHeaderBytesMax = 64u << 10;
constexpr char kForm[] = "NumPy's .npy format, 1.0 to 3.0";

constexpr std::pair<std::string_view, DType> kDTypes[] = {
    {"f2", DType::kF16},  {"f4", DType::kF32}, {"f8", DType::kF64},   {"V2", DType::kBf16},
    {"b1", DType::kBool}, {"i1", DType::kI8},  {"i2", DType::kI16},   {"i4", DType::kI32},
    {"i8", DType::kI64},  {"u1", DType::kU8},  {"u2", DType::kU16},   {"u4", DType::kU32},
    {"u8", DType::kU64},  {"c8", DType::kC64}, {"c16", DType::kC128},
};

// The header's text, a dictionary of Python with three entries of simple types.
class HeaderParser {
 public:
  HeaderParser(const std::string& path, std::string_view text)
      : path_(path), whole_(text), rest_(text) {}

  Result<StoredArray> Parse() {
    StoredArray header;
    bool descr = false, order = false, shape = false, columns = false;
    if (!Take('{')) return Bad("a header that is no dictionary");
    while (!Take('}')) {
      const auto key = Text();
      if (!key || !Take(':')) return Bad("a header that cannot be read");
      if (*key == "descr" && !descr) {
        STATCOLLECT_RETURN_IF_ERROR(Descr(&header));
        descr = true;
      } else if (*key == "fortran_order" && !order) {
        columns = TakeWord("True");
        if (!columns && !TakeWord("False")) return Bad("a header without an order");
        order = true;
      } else if (*key == "shape" && !shape) {
        STATCOLLECT_RETURN_IF_ERROR(Shape(&header));
        shape = true;
      } else {
        return Bad("a header with '" + std::string(*key) + "'");
      }
      if (!Take(',') && !Next('}')) return Bad("a header that cannot be read");
    }
    SkipBlanks();
    if (!descr || !order || !shape || !rest_.empty()) return Bad("a header that is not complete");
    header.stored = header.elements;
    std::int64_t stride = 1;
    for (const std::int64_t size : header.shape) {
      if (columns && header.shape.size() > 1) header.strides.push_back(stride);
      stride *= std::max<std::int64_t>(size, 1);
    }
    return header;
  }

 private:
  Status Bad(const std::string& found) const {
    return BadInput(path_, 0, found + ": " + std::string(whole_.substr(0, 80)),
                    "a dictionary with descr, fortran_order and shape, as numpy.save writes it");
  }

  void SkipBlanks() {
    while (!rest_.empty() && (rest_[0] == ' ' || rest_[0] == '\n' || rest_[0] == '\t'))
      rest_.remove_prefix(1);
  }
  bool Next(char c) {
    SkipBlanks();
    return rest_.starts_with(c);
  }
  bool Take(char c) {
    if (!Next(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  bool TakeWord(std::string_view word) {
    SkipBlanks();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }

  // Between quotes; no text of a header has a quote or a backslash in it.
  std::optional<std::string_view> Text() {
    SkipBlanks();
    if (rest_.empty() || (rest_[0] != '\'' && rest_[0] != '"')) return std::nullopt;
    const std::size_t end = rest_.find(rest_[0], 1);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view text = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return text;
  }

  Status Descr(StoredArray* header) {
    if (Next('['))
      return BadInput(path_, 0, "an array of records", "one of numbers: save each field by itself");
    const auto text = Text();
    if (!text || text->size() < 2) return Bad("a header without a dtype");
    header->dtype_text = *text;
    if ((*text)[1] == 'O') {
      return BadInput(path_, 0, "an array of Python objects",
                      "one of numbers: reading objects would run code "
                      "that the file names");
    }
    header->big_endian = (*text)[0] == '>';
    const auto* found = std::find_if(std::begin(kDTypes), std::end(kDTypes),
                                     [&](const auto& row) { return row.first == text->substr(1); });
    if (std::string_view("<>|=").find((*text)[0]) != std::string_view::npos &&
        found != std::end(kDTypes))
      header->dtype = found->second;
    return Status::Ok();
  }

  Status Shape(StoredArray* header) {
    if (!Take('(')) return Bad("a header without a shape");
    const std::size_t end = rest_.find(')');
    if (end == std::string_view::npos) return Bad("a shape that does not end");
    std::string sizes(rest_.substr(0, end));
    std::erase(sizes, 'L');  // as Python 2 wrote them
    rest_.remove_prefix(end + 1);
    const auto shape = ParseShapeList(sizes, ',');
    const auto elements = shape ? Elements(*shape) : std::nullopt;
    if (!elements) {
      return BadInput(path_, 0, "shape (" + sizes + ")",
                      "sizes of at most " + std::to_string(kDimsMax) +
                          " dimensions and fewer than 2^62 elements");
    }
    header->shape = *shape;
    header->elements = *elements;
    return Status::Ok();
  }

  const std::string& path_;
  const std::string_view whole_;
  std::string_view rest_;
};

}  // namespace

Result<StoredArray> ReadNpyHeader(ByteSource& file) {
  std::array<char, 12> start{};
  const auto read = file.ReadUpTo(start.data(), 10);
  if (!read.ok()) return read.status();
  if (*read < 10 || std::string_view(start.data(), kMagic.size()) != kMagic)
    return BadInput(file.path(), 0, "another kind of file", kForm);
  const int version = static_cast<unsigned char>(start[6]);
  if (version < 1 || version > 3 || start[7] != 0)
    return BadInput(file.path(), 0,
                    "version " + std::to_string(version) + "." + std::to_string(start[7]), kForm);
  std::size_t length = LoadLittleEndian<std::uint16_t>(start.data() + 8);
  if (version > 1) {
    const auto more = file.ReadUpTo(start.data() + 10, 2);
    if (!more.ok()) return more.status();
    length = LoadLittleEndian<std::uint32_t>(start.data() + 8);
  }
  if (length > kHeaderBytesMax)
    return BadInput(file.path(), 0, "a header of " + std::to_string(length) + " bytes",
                    "at most " + std::to_string(kHeaderBytesMax));
  std::string text(length, '\0');
  const auto body = file.ReadUpTo(text.data(), length);
  if (!body.ok()) return body.status();
  if (*body < length) return BadInput(file.path(), 0, "a header that was cut", kForm);
  return HeaderParser(file.path(), text).Parse();
}

}  // namespace statcollect::client::formats
