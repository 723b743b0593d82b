#include "client/formats/torch_file.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "client/formats/array_stats.h"
#include "client/formats/convert.h"
#include "common/names.h"

namespace statcollect::client::formats {

// As a pickle describes a tensor.
struct StoredTensor {
  std::string key;         // of the member that holds its storage
  std::string dtype_text;  // "FloatStorage", "float8_e4m3fn"
  std::uint64_t offset = 0;
  std::vector<std::int64_t> shape, strides;  // in elements
  bool lazy = false;                         // conjugated or negated once it is read
};

namespace {

using PickleValue = Pickle::Value;
using PickleType = Pickle::Type;

constexpr char kTorchExpected[] = "a file that torch.save wrote, with the tensor in it";
constexpr int kVisitDepthMax = 64;
constexpr std::size_t kVisitedMax = std::size_t{1} << 20;

const std::set<std::string, std::less<>> kRebuildTensor = {"torch._utils._rebuild_tensor",
                                                           "torch._utils._rebuild_tensor_v2",
                                                           "torch._utils._rebuild_tensor_v3"};
// Their first argument is a tensor, for which the rest does not matter.
const std::set<std::string, std::less<>> kWrapTensor = {
    "torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state"};
// Their arguments: what to call, a class, and with what.
const std::set<std::string, std::less<>> kRebuildFromType = {"torch._tensor._rebuild_from_type",
                                                             "torch._tensor._rebuild_from_type_v2"};

constexpr std::pair<std::string_view, DType> kStorages[] = {
    {"DoubleStorage", DType::kF64},       {"FloatStorage", DType::kF32},
    {"HalfStorage", DType::kF16},         {"BFloat16Storage", DType::kBf16},
    {"LongStorage", DType::kI64},         {"IntStorage", DType::kI32},
    {"ShortStorage", DType::kI16},        {"CharStorage", DType::kI8},
    {"ByteStorage", DType::kU8},          {"BoolStorage", DType::kBool},
    {"ComplexFloatStorage", DType::kC64}, {"ComplexDoubleStorage", DType::kC128},
};

DType DTypeOf(std::string_view text) {
  for (const auto& [name, dtype] : kStorages) {
    if (name == text) return dtype;
  }
  return ParseTorchDType(text);
}

std::string LastPart(const std::string& name) { return name.substr(name.rfind('.') + 1); }

std::optional<std::vector<std::int64_t>> Sizes(const Pickle& content, const PickleValue& tuple) {
  std::vector<std::int64_t> sizes;
  for (const Pickle::Id id : tuple.items) {
    const PickleValue& size = content[id];
    if (size.type != PickleType::kInteger || size.integer < 0) return std::nullopt;
    sizes.push_back(size.integer);
  }
  return tuple.type == PickleType::kList && sizes.size() <= kDimsMax ? std::optional(sizes)
                                                                     : std::nullopt;
}

// storage, offset, size, stride, whether it requires a gradient, hooks, then (of v3) the dtype,
// then a dictionary of flags. Empty: something else.
std::optional<StoredTensor> ParseTensor(const Pickle& content, const std::string& called,
                                        const PickleValue& arguments) {
  const auto argument = [&](std::size_t i) -> const PickleValue& {
    static const PickleValue kNone;
    return i < arguments.items.size() ? content[arguments.items[i]] : kNone;
  };
  // "storage", its class, its key, its device, its size
  const PickleValue& storage = argument(0);
  if (storage.type != PickleType::kPersistent || storage.items.size() < 3 ||
      content[storage.items[0]].text != "storage" ||
      content[storage.items[1]].type != PickleType::kName ||
      argument(1).type != PickleType::kInteger || argument(1).integer < 0)
    return std::nullopt;
  const auto shape = Sizes(content, argument(2)), strides = Sizes(content, argument(3));
  if (!shape || !strides || shape->size() != strides->size()) return std::nullopt;
  const bool names_dtype = called.ends_with("_v3");
  if (names_dtype && argument(6).type != PickleType::kName) return std::nullopt;
  const PickleValue& flags = argument(names_dtype ? 7 : 6);
  const auto set = [&](std::string_view flag) {
    const PickleValue* const found = content.Find(flags, flag);
    return found != nullptr && found->integer != 0;
  };
  return StoredTensor{
      .key = content[storage.items[2]].text,
      .dtype_text = LastPart(names_dtype ? argument(6).text : content[storage.items[1]].text),
      .offset = static_cast<std::uint64_t>(argument(1).integer),
      .shape = *shape,
      .strides = *strides,
      .lazy = set("conj") || set("neg")};
}

// Elements from the first to the last one that the strides reach; 2^62 if there are as many.
std::uint64_t Reach(const StoredTensor& tensor, std::uint64_t elements) {
  constexpr std::uint64_t kReachMax = std::uint64_t{1} << 62;
  if (elements == 0) return 0;
  std::uint64_t reach = 1;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    const auto steps = static_cast<std::uint64_t>(tensor.shape[i] - 1),
               stride = static_cast<std::uint64_t>(tensor.strides[i]);
    if (steps > 0 && stride > (kReachMax - reach) / steps) return kReachMax;
    reach += steps * stride;
  }
  return reach;
}

bool IsRowByRow(const StoredTensor& tensor) {
  std::int64_t expected = 1;
  for (std::size_t i = tensor.shape.size(); i > 0; --i) {
    if (tensor.shape[i - 1] != 1 && tensor.strides[i - 1] != expected) return false;
    expected *= tensor.shape[i - 1];
  }
  return true;
}

}  // namespace

Result<TorchFile> TorchFile::Open(ByteSource& file) {
  TorchFile torch(file);
  auto members = ReadZipDirectory(file);
  if (!members.ok()) {
    char first = 0;
    STATCOLLECT_RETURN_IF_ERROR(file.Seek(0));
    if (const auto read = file.Read(&first, 1); read.ok() && *read == 1 && first == '\x80')
      return BadInput(file.path(), 0, "a pickle without a zip file around it",
                      "what torch.save writes since torch 1.6; load the file with the torch that "
                      "wrote it, and save it again");
    return members.status();
  }
  torch.members_ = *std::move(members);
  constexpr std::string_view kContent = "data.pkl";
  const auto found = std::find_if(torch.members_.begin(), torch.members_.end(), [&](const auto& m) {
    return m.first == kContent || m.first.ends_with("/data.pkl");
  });
  if (found == torch.members_.end())
    return BadInput(file.path(), 0, "a zip file without a data.pkl", kTorchExpected);
  torch.folder_ = found->first.substr(0, found->first.size() - kContent.size());

  const auto text = [&](const std::string& name, const ZipMember& member) -> Result<std::string> {
    STATCOLLECT_RETURN_IF_ERROR(SeekInMember(file, name, member, 0));
    std::string bytes(
        static_cast<std::size_t>(std::min<std::uint64_t>(member.bytes, kPickleBytesMax + 1)), '\0');
    const auto read = file.ReadUpTo(bytes.data(), bytes.size());
    if (!read.ok()) return read.status();
    return bytes;
  };
  const auto order = torch.members_.find(torch.folder_ + "byteorder");
  if (order != torch.members_.end()) {
    const auto said = text(order->first, order->second);
    if (!said.ok()) return said.status();
    torch.big_endian_ = *said == "big";
  }
  const auto bytes = text(found->first, found->second);
  if (!bytes.ok()) return bytes.status();
  auto content = Pickle::Read(*bytes);
  if (!content.ok()) return BadInput(file.path(), 0, content.status().message(), kTorchExpected);
  torch.content_ = *std::move(content);
  return torch;
}

Status TorchFile::Visit(const PickleValue& value, const Visitor& visitor) {
  visited_ = 0;
  return VisitAt(value, "", 0, visitor);
}

Status TorchFile::VisitAt(const PickleValue& value, const std::string& path, int depth,
                          const Visitor& visitor) {
  if (++visited_ > kVisitedMax)
    return BadInput(file_.path(), 0, "more than " + std::to_string(kVisitedMax) + " values",
                    "fewer");
  if (depth > kVisitDepthMax) {
    visitor.other("value in more than " + std::to_string(kVisitDepthMax) + " containers");
    return Status::Ok();
  }
  switch (value.type) {
    case PickleType::kList:
    case PickleType::kDict:
      return VisitItems(value, path, depth + 1, visitor);
    case PickleType::kInteger:
      return visitor.number(path, static_cast<double>(value.integer));
    case PickleType::kNumber:
      return visitor.number(path, value.number);
    case PickleType::kCall:
      return VisitCall(content_.NameOf(value), content_[value.items[1]], path, depth, visitor);
    default:
      visitor.other(content_.NameOf(value));
      return Status::Ok();
  }
}

Status TorchFile::VisitItems(const PickleValue& container, const std::string& path, int depth,
                             const Visitor& visitor) {
  const bool dictionary = container.type == PickleType::kDict;
  const std::string before = path.empty() ? "" : path + ".";
  for (std::size_t i = 0; i < container.items.size(); i += dictionary ? 2 : 1) {
    const PickleValue& key = content_[container.items[i]];
    const std::string name = !dictionary                        ? std::to_string(i)
                             : key.type == PickleType::kText    ? key.text
                             : key.type == PickleType::kInteger ? std::to_string(key.integer)
                                                                : "item " + std::to_string(i / 2);
    const PickleValue& value = content_[container.items[dictionary ? i + 1 : i]];
    STATCOLLECT_RETURN_IF_ERROR(VisitAt(value, before + name, depth, visitor));
  }
  return Status::Ok();
}

Status TorchFile::VisitCall(const std::string& called, const PickleValue& arguments,
                            const std::string& path, int depth, const Visitor& visitor) {
  const auto& items = arguments.items;
  if (kWrapTensor.contains(called) && !items.empty())
    return VisitAt(content_[items[0]], path, depth + 1, visitor);
  if (kRebuildFromType.contains(called) && items.size() >= 3 && depth <= kVisitDepthMax)
    return VisitCall(content_.NameOf(content_[items[0]]), content_[items[2]], path, depth + 1,
                     visitor);
  if (!kRebuildTensor.contains(called)) {
    visitor.other(Printable(called, 100));
    return Status::Ok();
  }
  const auto tensor = ParseTensor(content_, called, arguments);
  if (!tensor) return BadInput(file_.path(), 0, "a tensor that cannot be read", kTorchExpected);
  return VisitTensor(*tensor, path, visitor);
}

Status TorchFile::VisitTensor(const StoredTensor& stored, const std::string& path,
                              const Visitor& visitor) {
  const DType dtype = DTypeOf(stored.dtype_text);
  if (dtype == DType::kUnspecified || stored.lazy) {
    visitor.other(stored.lazy ? "tensor that is conjugated or negated only once it is read"
                              : "dtype " + Printable(stored.dtype_text, 40));
    return Status::Ok();
  }
  const auto counted = Elements(stored.shape);
  const std::uint64_t elements = counted.value_or(0), reach = Reach(stored, elements);
  const std::string member = folder_ + "data/" + stored.key;
  const auto found = members_.find(member);
  const std::uint64_t held = found == members_.end() ? 0 : found->second.bytes / DTypeBytes(dtype);
  if (!counted || found == members_.end() || reach > held || stored.offset > held - reach)
    return BadInput(file_.path(), 0, "a tensor beyond its storage '" + Printable(member) + "'",
                    kTorchExpected);
  STATCOLLECT_RETURN_IF_ERROR(
      SeekInMember(file_, member, found->second, stored.offset * DTypeBytes(dtype)));
  const bool rows = elements == 0 || IsRowByRow(stored);
  Tensor tensor{.path = path, .layout = {.dtype = dtype, .shape = stored.shape}};
  tensor.sketch.resize(kSketchSums);
  const auto stats = ReadStats(file_,
                               {.dtype = dtype,
                                .dtype_text = stored.dtype_text,
                                .big_endian = big_endian_,
                                .shape = stored.shape,
                                .elements = elements,
                                .strides = rows ? std::vector<std::int64_t>() : stored.strides,
                                .stored = reach,
                                .ends_file = false},
                               dtype, tensor.sketch);
  if (!stats.ok()) return stats.status();
  tensor.stats = *stats;
  return visitor.tensor(std::move(tensor));
}

}  // namespace statcollect::client::formats
