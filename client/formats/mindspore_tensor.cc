#include "client/formats/mindspore_tensor.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "client/formats/array_stats.h"
#include "client/formats/convert.h"
#include "client/formats/npy.h"
#include "common/names.h"

namespace statcollect::client::formats {
namespace {

constexpr std::uint64_t kSlotMax = 1'000'000;

std::vector<std::string_view> PartsOf(std::string_view text) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t dot = std::min(text.find('.'), text.size());
    parts.push_back(text.substr(0, dot));
    if (dot == text.size()) return parts;
    text.remove_prefix(dot + 1);
  }
}

// What the engine reads the elements as: what the operator computed, if the file's type holds just
// that.
DType Original(const MindSporeTensorFile& name, const StoredArray& header) {
  const DType original = ParseMindSporeDType(name.dtype);
  const bool widened = original == DType::kBf16 && header.dtype == DType::kF32;
  const bool bits = original == DType::kBool && header.dtype == DType::kU8;  // uint1
  return widened || bits ? original : header.dtype;
}

}  // namespace

std::optional<MindSporeTensorFile> ParseMindSporeTensorName(std::string_view file) {
  if (!file.ends_with(".npy")) return std::nullopt;
  const auto parts = PartsOf(file.substr(0, file.size() - 4));
  // From the back: format, or format and dtype, after "output.0".
  for (const std::size_t behind : {std::size_t{1}, std::size_t{2}}) {
    const std::size_t n = parts.size();
    if (n < 7 + behind) break;
    const std::size_t io = n - behind - 2;
    const auto slot = ParseUnsigned(parts[io + 1]);
    const auto timestamp = ParseUnsigned(parts[io - 1]), stream = ParseUnsigned(parts[io - 2]),
               task = ParseUnsigned(parts[io - 3]);
    const bool input = parts[io] == "input", output = parts[io] == "output";
    if ((!input && !output) || !slot || *slot > kSlotMax || !timestamp || !stream || !task)
      continue;
    const std::size_t name_begin = parts[0].size() + 1;
    const auto name_end = static_cast<std::size_t>(parts[io - 3].data() - file.data()) - 1;
    if (parts[0].empty() || name_end <= name_begin) continue;
    return MindSporeTensorFile{
        .op_type = std::string(parts[0]),
        .op_name = std::string(file.substr(name_begin, name_end - name_begin)),
        .task = *task,
        .timestamp = *timestamp,
        .slot = *slot,
        .kind = input ? Kind::kInput : Kind::kOutput,
        .dtype = std::string(behind == 2 ? parts[n - 1] : "")};
  }
  return std::nullopt;
}

Result<std::optional<Observation>> ReadMindSporeTensor(
    const MindSporeTensorFile& name, const std::function<Result<FileSource>()>& open,
    Tally* tally) {
  Observation o;
  o.def.key.name = name.op_name;
  o.def.key.kind = name.kind;
  o.def.key.output_path = std::to_string(name.slot);
  if (ValidateTensorName("operator type", name.op_type).ok()) o.def.class_name = name.op_type;

  ++tally->files;
  auto file = open();
  if (!file.ok()) return file.status();
  const Status valid = ValidateTensorName("operator", name.op_name);
  if (!valid.ok())
    return BadInput(file->path(), 0, "an invalid name (" + valid.message() + ")", "a valid one");
  const auto header = ReadNpyHeader(*file);
  if (!header.ok()) return header.status();
  if (header->dtype == DType::kUnspecified) {
    tally->Skip("dtype " + Printable(header->dtype_text, 40));
    return std::optional<Observation>();
  }
  o.layout.dtype = Original(name, *header);
  o.layout.shape = header->shape;
  o.sketch.resize(kSketchSums);
  auto stats = ReadStats(*file, *header, o.layout.dtype, o.sketch);
  if (stats.status().code() == Code::kFailedPrecondition) {
    tally->Note(
        "some files hold other numbers than the dtype in their names has, and are read as they are "
        "saved");
    o.layout.dtype = header->dtype;
    auto again = open();
    if (!again.ok()) return again.status();
    const auto same = ReadNpyHeader(*again);
    if (!same.ok()) return same.status();
    stats = ReadStats(*again, *header, header->dtype, o.sketch);
  }
  if (!stats.ok()) return stats.status();
  o.stats = *stats;
  return std::optional<Observation>(std::move(o));
}

}  // namespace statcollect::client::formats
