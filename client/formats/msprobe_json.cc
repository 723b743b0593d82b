#include "client/formats/msprobe_json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "client/formats/convert.h"
#include "client/formats/json_reader.h"
#include "common/names.h"
#include "common/parse.h"

namespace statcollect::client::formats {
namespace {

// --- dump.json

constexpr char kDumpExpected[] =
    "msProbe's dump.json: {\"task\": ..., \"data\": {ENTRY: {\"input_args\": [...], \"output\": "
    "[...]}}}";

class DumpVisitor final : public JsonVisitor {
 public:
  DumpVisitor(Tally* tally, const TakeTensor& take) : tally_(tally), take_(take) {}
  bool has_data() const { return has_data_; }

  Status OnBegin(bool object) override {
    if (frames_.empty() && !object) return Found("a list", kDumpExpected);
    Frame frame{.object = object};
    if (!frames_.empty()) {
      Frame& around = frames_.back();
      if (around.leaf || around.attribute) {
        frame.attribute = true;
        frame.shape = around.leaf && around.key == "shape" && !object;
        if (frame.shape) tensor_.shape_known = true;
      }
      if (!around.object) around.key = std::to_string(around.index++);
      if (frames_.size() == 1 && around.key == "data") {
        if (!object) return Found("\"data\" that is a list", kDumpExpected);
        has_data_ = in_data_ = true;
      }
    }
    frames_.push_back(std::move(frame));
    return Status::Ok();
  }

  Status OnKey(std::string_view key) override {
    frames_.back().key = key;
    return Status::Ok();
  }

  Status OnValue(const JsonValue& value) override {
    if (frames_.empty()) return Found("a single value", kDumpExpected);
    Frame& frame = frames_.back();
    if (frame.shape) return AddSize(value);
    if (!frame.object) {
      ++frame.index;
      return Status::Ok();
    }
    if (!in_data_ || frames_.size() < 4 || frame.attribute) return Status::Ok();
    if (frame.key == "type" && value.type == JsonValue::Type::kString && !frame.leaf) {
      frame.leaf = true;
      tensor_ = {.type = std::string(value.text)};
      return Status::Ok();
    }
    if (frame.leaf) SetMember(frame.key, value);
    return Status::Ok();
  }

  Status OnEnd() override {
    const bool leaf = frames_.back().leaf;
    if (leaf) STATCOLLECT_RETURN_IF_ERROR(Emit());
    frames_.pop_back();
    if (frames_.size() == 1) in_data_ = false;
    return Status::Ok();
  }

 private:
  struct Frame {
    bool object = true;
    bool leaf = false;       // has a "type"
    bool attribute = false;  // within a leaf
    bool shape = false;      // a leaf's shape
    std::string key;         // of the member at hand; in a list its number
    std::size_t index = 0;
  };

  Status AddSize(const JsonValue& value) {
    if (value.type != JsonValue::Type::kNumber || !value.integer || value.number < 0 ||
        value.number >= 9.2e18)
      return Found("a shape with something else", "sizes of 0 or more");
    if (tensor_.shape.size() >= kDimsMax)
      return Found("a shape of more than 64 dimensions", "at most 64");
    tensor_.shape.push_back(static_cast<std::int64_t>(value.number));
    return Status::Ok();
  }

  void SetMember(const std::string& key, const JsonValue& value) {
    using Type = JsonValue::Type;
    if (value.type == Type::kString) {
      if (key == "dtype") tensor_.dtype = value.text;
      if (key == "md5" || key == "xor" || key == "checksum" || key == "hash")
        tensor_.checksum = value.text;
      return;
    }
    if (value.type == Type::kNull) return;
    if (key == "Max") tensor_.max = value.number;
    if (key == "Min") tensor_.min = value.number;
    if (key == "Mean") tensor_.mean = value.number;
    if (key == "Norm") tensor_.norm = value.number;
  }

  // Frames: the file, "data", the entry, the section, then what is nested, the leaf last.
  Status Emit() {
    if (tensor_.dtype.empty() || !tensor_.shape_known) {
      tally_->Skip("not a tensor (" + Printable(tensor_.type, 40) + ")");
      return Status::Ok();
    }
    tensor_.entry = frames_[1].key;
    tensor_.section = frames_[2].key;
    for (std::size_t i = 3; i + 1 < frames_.size(); ++i)
      tensor_.path += (i == 3 ? "" : ".") + frames_[i].key;
    return take_(tensor_);
  }

  Tally* const tally_;
  const TakeTensor& take_;
  std::vector<Frame> frames_;
  MsProbeTensor tensor_;  // the leaf at hand
  bool in_data_ = false, has_data_ = false;
};

// --- construct.json

constexpr char kConstructExpected[] = "msProbe's construct.json: {\"CHILD\": \"PARENT\", ...}";

class ConstructVisitor final : public JsonVisitor {
 public:
  explicit ConstructVisitor(MsProbeTree* tree) : tree_(tree) {}

  Status OnBegin(bool object) override {
    ++depth_;
    index_ = 0;
    const bool root = depth_ == 1;
    return root == object && depth_ <= 2 ? Status::Ok()
                                         : Found("something nested", kConstructExpected);
  }
  Status OnKey(std::string_view key) override {
    if (tree_->size() >= kConstructEntriesMax)
      return Found("more than " + std::to_string(kConstructEntriesMax) + " entries", "fewer");
    place_ = &(*tree_)[std::string(key)];
    return Status::Ok();
  }
  Status OnValue(const JsonValue& value) override {
    if (depth_ == 0) return Found("a single value", kConstructExpected);
    if (value.type == JsonValue::Type::kString && index_ == 0) place_->parent = value.text;
    if (value.type == JsonValue::Type::kNumber && index_ == 1) {
      if (!value.integer || value.number < 0 ||
          value.number > std::numeric_limits<std::int32_t>::max())
        return Found("a micro-batch that is something else", "a number of 0 or more");
      place_->micro_batch = static_cast<std::uint32_t>(value.number);
    }
    ++index_;
    if (depth_ == 1) index_ = 0;
    return Status::Ok();
  }
  Status OnEnd() override {
    --depth_;
    index_ = 0;
    return Status::Ok();
  }

 private:
  MsProbeTree* const tree_;
  MsProbePlace* place_ = nullptr;  // a map of nodes: stays where it is
  std::size_t depth_ = 0, index_ = 0;
};

// --- names

std::vector<std::string_view> Split(std::string_view text) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t stop = text.find('.');
    parts.push_back(text.substr(0, stop));
    if (stop == std::string_view::npos) return parts;
    text.remove_prefix(stop + 1);
  }
}

std::string Join(const std::vector<std::string_view>& parts, std::size_t begin, std::size_t end) {
  std::string text;
  for (std::size_t i = begin; i < end; ++i) text += (i == begin ? "" : ".") + std::string(parts[i]);
  return text;
}

std::optional<std::uint32_t> ParseCall(std::string_view text) {
  const auto number = ParseUnsigned(text);
  if (!number || *number > std::numeric_limits<std::uint32_t>::max()) return std::nullopt;
  return static_cast<std::uint32_t>(*number);
}

MsProbeEntry::Pass PassOf(std::string_view part) {
  if (part == "forward") return MsProbeEntry::Pass::kForward;
  if (part == "backward") return MsProbeEntry::Pass::kBackward;
  return part == "parameters_grad" ? MsProbeEntry::Pass::kParameterGrads
                                   : MsProbeEntry::Pass::kUnknown;
}

// --- numbers

std::optional<std::uint64_t> ParseHex(std::string_view text) {
  return ParseNumber<std::uint64_t>(text, 16);
}

// CRC-32: 8 digits; exclusive or: 0x and 16; MD5: 32; SHA-1: 40. Of the last two the first 64 bits.
bool SetChecksum(std::string_view text, Observation* o) {
  const bool xor64 = text.starts_with("0x");
  if (xor64) text.remove_prefix(2);
  std::optional<std::uint64_t> value;
  if (xor64 && text.size() == 16) {
    o->layout.hash_kind = HashKind::kXor64;
  } else if (!xor64 && text.size() == 8) {
    o->layout.hash_kind = HashKind::kCrc32;
  } else if (!xor64 && text.size() == 32) {
    o->layout.hash_kind = HashKind::kMd5;
  } else if (!xor64 && text.size() == 40) {
    o->layout.hash_kind = HashKind::kSha1;
  } else {
    return false;
  }
  value = ParseHex(text.substr(0, 16));
  if (!value) o->layout.hash_kind = HashKind::kContent3;
  if (value) o->stats.hash = *value;
  return value.has_value();
}

void SetOrAbsent(const std::optional<double>& value, Statistic statistic, double* to,
                 Layout* layout) {
  SetFinite(value.value_or(std::numeric_limits<double>::quiet_NaN()), statistic, to, layout);
}

// NaN and infinities are not counted: a maximum or minimum that is one says that there are some.
// One is stored, and marked as not to be trusted: "at least one".
void SetNonfinite(const MsProbeTensor& t, std::uint64_t components, Observation* o) {
  Layout& layout = o->layout;
  TensorStats& stats = o->stats;
  const auto infinite = [](double value, bool positive) {
    return std::isinf(value) && (value > 0) == positive;
  };
  if (!t.max || !t.min) {
    layout.absent |= BitOf(Statistic::kNan) | BitOf(Statistic::kInf) | BitOf(Statistic::kInfSign);
  } else if (std::isnan(*t.max) || std::isnan(*t.min)) {
    stats.nan = 1;
    layout.untrusted |= BitOf(Statistic::kNan);
    layout.absent |= BitOf(Statistic::kInf) | BitOf(Statistic::kInfSign);
  } else if (infinite(*t.max, false) || infinite(*t.min, true)) {  // all of them
    (infinite(*t.min, true) ? stats.pos_inf : stats.neg_inf) = components;
    stats.has_finite = false;
  } else {
    stats.pos_inf = infinite(*t.max, true) ? 1 : 0;
    stats.neg_inf = infinite(*t.min, false) ? 1 : 0;
    if (stats.pos_inf + stats.neg_inf > 0) layout.untrusted |= BitOf(Statistic::kInf);
  }
}

Status SetStatistics(const MsProbeTensor& t, Observation* o) {
  constexpr std::uint32_t kNever = BitOf(Statistic::kStd) | BitOf(Statistic::kL1) |
                                   BitOf(Statistic::kZero) | BitOf(Statistic::kNeg) |
                                   BitOf(Statistic::kPos);
  Layout& layout = o->layout;
  TensorStats& stats = o->stats;
  layout.absent |= kNever;
  if (stats.numel == 0) return Status::Ok();
  stats.has_finite = true;
  if (t.max && t.min && std::isfinite(*t.max) && std::isfinite(*t.min) && *t.min > *t.max)
    return Found("Min above Max in '" + t.entry + "'", "Min <= Max");
  const std::uint64_t components = stats.numel * (IsComplex(layout.dtype) ? 2 : 1);
  SetNonfinite(t, components, o);
  if (!stats.has_finite) return Status::Ok();
  if (stats.pos_inf + stats.neg_inf >= components)
    return Found("Min or Max infinite, but not both, of a single element in '" + t.entry + "'",
                 "one value");
  SetOrAbsent(t.max, Statistic::kMax, &stats.max, &layout);
  SetOrAbsent(t.min, Statistic::kMin, &stats.min, &layout);
  SetOrAbsent(t.mean, Statistic::kMean, &stats.mean, &layout);
  SetOrAbsent(t.norm, Statistic::kL2, &stats.l2, &layout);
  stats.l2 = std::abs(stats.l2);  // a 0-d tensor's Norm is the element
  // msProbe's are of absolute values; ours are of real and imaginary parts.
  const std::uint32_t magnitudes =
      BitOf(Statistic::kMax) | BitOf(Statistic::kMin) | BitOf(Statistic::kMean);
  if (IsComplex(layout.dtype)) layout.untrusted |= magnitudes & ~layout.absent;
  return Status::Ok();
}

// --- which tensor it is

Kind KindOf(const MsProbeEntry& entry, const std::string& section) {
  using Pass = MsProbeEntry::Pass;
  if (entry.pass == Pass::kParameterGrads) return Kind::kWeightGrad;
  if (section.starts_with("parameters")) return Kind::kWeight;
  const bool output = section == "output";
  // The pass back through a module takes the gradient of its output in, and gives that of its input
  // out.
  if (entry.pass == Pass::kBackward) return output ? Kind::kGradInput : Kind::kGradOutput;
  return output ? Kind::kOutput : Kind::kInput;
}

void SetKey(const MsProbeTensor& t, const MsProbeEntry& entry, TensorDef* def) {
  TensorKey& key = def->key;
  key.kind = KindOf(entry, t.section);
  key.name = entry.name;
  key.output_path = t.path;
  key.call = entry.call;
  if (key.kind != Kind::kWeight && key.kind != Kind::kWeightGrad) return;
  // "weight": [{...}] or {"weight": {...}}: the parameter's name belongs to ours.
  std::string parameter =
      key.kind == Kind::kWeightGrad ? t.section : t.path.substr(0, t.path.find('.'));
  std::string rest = key.kind == Kind::kWeightGrad           ? t.path
                     : t.path.find('.') == std::string::npos ? ""
                                                             : t.path.substr(t.path.find('.') + 1);
  key.name += "." + parameter;
  key.output_path = rest == "0" ? "" : rest;
  def->parent = entry.name;
  // As they are when the step begins: before its forward pass.
  if (key.kind == Kind::kWeight) key.mode = Mode::kInit;
}

void SetPlace(const MsProbeTensor& t, const MsProbeTree& tree, TensorDef* def) {
  constexpr int kDepthMax = 10'000;
  auto at = tree.find(t.entry);
  if (at == tree.end()) return;
  if (def->key.mode != Mode::kInit) def->key.micro_batch = at->second.micro_batch;
  if (def->parent.empty()) def->parent = ParseMsProbeEntry(at->second.parent).name;
  int depth = 1;
  while (at != tree.end() && !at->second.parent.empty() && depth < kDepthMax) {
    ++depth;
    at = tree.find(at->second.parent);
  }
  def->depth = depth < kDepthMax ? depth : 0;  // a circle has none
}

}  // namespace

MsProbeEntry ParseMsProbeEntry(std::string_view text) {
  using Pass = MsProbeEntry::Pass;
  MsProbeEntry entry;
  const auto parts = Split(text);
  std::size_t end = parts.size();
  if (end >= 3 && PassOf(parts[end - 2]) != Pass::kUnknown && ParseCall(parts[end - 1])) {
    entry.pass = PassOf(parts[end - 2]);
    entry.call = *ParseCall(parts[end - 1]);
    end -= 2;
  } else if (end >= 2 && PassOf(parts[end - 1]) != Pass::kUnknown) {
    entry.pass = PassOf(parts[--end]);
    if (end >= 2 && ParseCall(parts[end - 1])) entry.call = *ParseCall(parts[--end]);
  }
  const bool module = parts.front() == "Module" || parts.front() == "Cell";
  if (entry.pass == Pass::kUnknown) {
    entry.name = text;
  } else if (!module || end < 2) {
    entry.name = Join(parts, 0, end);
    entry.class_name = parts[end - 1];
  } else {
    entry.class_name = parts[end - 1];
    std::size_t begin = 1, last = end - 1;
    while (begin < last && parts[begin] == "module") ++begin;  // what wraps a model
    if (begin == last) begin = 1;                              // nothing but wrappers: all of them
    entry.name = begin < last ? Join(parts, begin, last) : entry.class_name;
  }
  return entry;
}

Status ReadMsProbeDump(ByteSource& file, Tally* tally, const TakeTensor& take) {
  DumpVisitor visitor(tally, take);
  STATCOLLECT_RETURN_IF_ERROR(ReadJson(file, visitor, kDumpExpected));
  return visitor.has_data() ? Status::Ok() : BadInput(file.path(), 1, "no \"data\"", kDumpExpected);
}

Status ReadMsProbeConstruct(ByteSource& file, MsProbeTree* tree) {
  ConstructVisitor visitor(tree);
  return ReadJson(file, visitor, kConstructExpected);
}

Result<std::optional<Observation>> ToObservation(const MsProbeTensor& t, const MsProbeTree& tree,
                                                 Tally* tally) {
  const auto skip = [&](const std::string& cause) {
    tally->Skip(cause);
    return std::optional<Observation>();
  };
  Observation o;
  o.layout.dtype =
      t.type.starts_with("mindspore") ? ParseMindSporeDType(t.dtype) : ParseTorchDType(t.dtype);
  if (o.layout.dtype == DType::kUnspecified) o.layout.dtype = ParseMindSporeDType(t.dtype);
  if (o.layout.dtype == DType::kUnspecified) return skip("dtype " + Printable(t.dtype, 40));
  const auto elements = Elements(t.shape);
  if (!elements) return Found("a shape of 2^62 or more elements in '" + t.entry + "'", "fewer");
  o.layout.shape = t.shape;
  o.stats.numel = *elements;
  const bool has_values = t.max || t.min || t.mean || t.norm;
  const bool has_hash = SetChecksum(t.checksum, &o);
  if (!has_hash) o.layout.absent |= BitOf(Statistic::kHash);
  if (!has_hash && !t.checksum.empty()) tally->Note("checksums of an unknown form were skipped");
  if (!has_values && !has_hash && *elements > 0) return skip("tensor without statistics");
  STATCOLLECT_RETURN_IF_ERROR(SetStatistics(t, &o));
  SetKey(t, ParseMsProbeEntry(t.entry), &o.def);
  SetPlace(t, tree, &o.def);
  o.def.class_name = ParseMsProbeEntry(t.entry).class_name;
  const Status name = ValidateTensorName("activation", o.def.key.name);
  if (!name.ok()) return Found("an invalid name (" + name.message() + ")", "a valid one");
  const Status path = o.def.key.output_path.empty()
                          ? Status::Ok()
                          : ValidateTensorName("path", o.def.key.output_path);
  if (!path.ok())
    return Found("an invalid position in a container (" + path.message() + ")", "a valid one");
  for (std::string* optional : {&o.def.parent, &o.def.class_name}) {
    if (!optional->empty() && !ValidateTensorName("name", *optional).ok()) optional->clear();
  }
  for (const Statistic statistic : {Statistic::kNan, Statistic::kInf, Statistic::kMin}) {
    if ((o.layout.untrusted & BitOf(statistic)) != 0)
      ++tally->untrusted[statistic == Statistic::kMin
                             ? "min, max, mean (complex)"
                             : std::string(Name(statistic)) + " (number not known)"];
  }
  return std::optional<Observation>(std::move(o));
}

}  // namespace statcollect::client::formats
