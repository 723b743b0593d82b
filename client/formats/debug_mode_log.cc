#include "client/formats/debug_mode_log.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/formats/convert.h"
#include "client/formats/json_reader.h"
#include "common/names.h"
#include "common/parse.h"

namespace statcollect::client::formats {
namespace {

constexpr std::string_view kLogFormat = "torch.utils._debug_mode.DebugMode.logs";
constexpr double kLogVersion = 1;
constexpr char kSavedLogs[] =
    "what DebugMode.save_logs writes: {\"format\": "
    "\"torch.utils._debug_mode.DebugMode.logs\", \"version\": 1, \"logs\": [...]}";
constexpr std::size_t kCallNodesMax = 1'000'000;

// --- JSON, one call at a time

struct CallNode {
  enum class Type { kNull, kNumber, kBool, kText, kList, kObject } type = Type::kNull;
  double number = 0;
  bool integer = false;
  std::string text;  // of a number as it is written
  std::string key;   // in an object
  std::vector<CallNode> members;

  const CallNode* Find(std::string_view wanted) const {
    const auto found = std::find_if(members.begin(), members.end(),
                                    [&](const CallNode& member) { return member.key == wanted; });
    return type == Type::kObject && found != members.end() ? &*found : nullptr;
  }
  std::string_view TextOf(std::string_view wanted) const {
    const CallNode* const found = Find(wanted);
    return found != nullptr && found->type == Type::kText ? std::string_view(found->text)
                                                          : std::string_view();
  }
};

// Hands on each element of "logs" when it is complete.
class LogVisitor final : public JsonVisitor {
 public:
  explicit LogVisitor(const std::function<Status(const CallNode&)>& take) : take_(take) {}
  bool complete() const { return format_ && version_ && logs_; }

  Status OnBegin(bool object) override {
    ++depth_;
    if (depth_ == 1 && !object) return Found("a list", kSavedLogs);
    if (depth_ == 2 && key_ == "logs") {
      if (object) return Found("\"logs\" that are no list", kSavedLogs);
      logs_ = in_logs_ = true;
    } else if (in_logs_) {
      const auto type = object ? CallNode::Type::kObject : CallNode::Type::kList;
      if (open_.empty()) {
        call_ = {.type = type};
        nodes_ = 0;
        open_ = {&call_};
      } else {
        open_.push_back(Add({.type = type}));
      }
    }
    return Status::Ok();
  }

  Status OnKey(std::string_view key) override {
    key_ = key;
    return Status::Ok();
  }

  Status OnValue(const JsonValue& value) override {
    if (depth_ == 0) return Found("a single value", kSavedLogs);
    if (depth_ == 1) return CheckHead(value);
    if (in_logs_ && open_.empty()) return Found("a call that is no object", kSavedLogs);
    if (!in_logs_) return Status::Ok();
    if (++nodes_ > kCallNodesMax)
      return Found("a call with more than " + std::to_string(kCallNodesMax) + " values", "fewer");
    using Type = JsonValue::Type;
    Add({.type = value.type == Type::kNull     ? CallNode::Type::kNull
                 : value.type == Type::kNumber ? CallNode::Type::kNumber
                 : value.type == Type::kBool   ? CallNode::Type::kBool
                                               : CallNode::Type::kText,
         .number = value.number,
         .integer = value.integer,
         .text = std::string(value.text)});
    return Status::Ok();
  }

  Status OnEnd() override {
    --depth_;
    if (depth_ == 1) in_logs_ = false;
    if (open_.empty()) return Status::Ok();
    open_.pop_back();
    return open_.empty() ? take_(call_) : Status::Ok();
  }

 private:
  CallNode* Add(CallNode node) {
    if (open_.back()->type == CallNode::Type::kObject) node.key = key_;
    open_.back()->members.push_back(std::move(node));
    return &open_.back()->members.back();
  }

  Status CheckHead(const JsonValue& value) {
    if (key_ == "format") {
      format_ = value.type == JsonValue::Type::kString && value.text == kLogFormat;
      if (!format_) return Found("another \"format\"", kSavedLogs);
    }
    if (key_ == "version") {
      version_ = value.type == JsonValue::Type::kNumber && value.number == kLogVersion;
      if (!version_) return Found("version " + std::string(value.text), "version 1");
    }
    return Status::Ok();
  }

  const std::function<Status(const CallNode&)>& take_;
  std::size_t depth_ = 0, nodes_ = 0;
  std::string key_;
  bool format_ = false, version_ = false, logs_ = false, in_logs_ = false;
  CallNode call_;
  std::vector<CallNode*> open_;  // from the call inwards
};

// --- what a call says of its tensors

struct PrintedTensor {
  DType dtype = DType::kUnspecified;
  std::vector<std::int64_t> shape;
};

constexpr std::pair<std::string_view, DType> kAbbreviations[] = {
    {"f64", DType::kF64},   {"f32", DType::kF32},         {"f16", DType::kF16},
    {"bf16", DType::kBf16}, {"f8e4m3fn", DType::kF8E4M3}, {"f8e5m2", DType::kF8E5M2},
    {"i64", DType::kI64},   {"i32", DType::kI32},         {"i16", DType::kI16},
    {"i8", DType::kI8},     {"u64", DType::kU64},         {"u32", DType::kU32},
    {"u16", DType::kU16},   {"u8", DType::kU8},           {"b8", DType::kBool},
    {"c64", DType::kC64},   {"c128", DType::kC128},
};

bool IsWordCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// Whether "t", "dt" or "ft", perhaps with an id ("t$3"), ends the text.
bool EndsInTensor(std::string_view text) {
  std::string_view id = text;
  while (!id.empty() && id.back() >= '0' && id.back() <= '9') id.remove_suffix(1);
  if (id.ends_with('$')) text = id.substr(0, id.size() - 1);
  for (const std::string_view word : {"dt", "ft", "t"}) {
    if (text.ends_with(word) &&
        (text.size() == word.size() || !IsWordCharacter(text[text.size() - word.size() - 1])))
      return true;
  }
  return false;
}

// Each "t: f32[8, 8]" in the text of arguments or results.
std::vector<PrintedTensor> TensorsIn(std::string_view text) {
  std::vector<PrintedTensor> tensors;
  for (std::size_t at = text.find(": "); at != std::string_view::npos;
       at = text.find(": ", at + 1)) {
    if (!EndsInTensor(text.substr(0, at))) continue;
    const std::string_view rest = text.substr(at + 2);
    const std::size_t open = rest.find('['), close = rest.find(']');
    if (open == std::string_view::npos || close == std::string_view::npos || open > close) continue;
    const auto shape = ParseShapeList(rest.substr(open + 1, close - open - 1), ',');
    if (!shape || !std::all_of(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(open),
                               IsWordCharacter))
      continue;
    const auto* const known =
        std::find_if(std::begin(kAbbreviations), std::end(kAbbreviations),
                     [&](const auto& row) { return row.first == rest.substr(0, open); });
    tensors.push_back(
        {known == std::end(kAbbreviations) ? DType::kUnspecified : known->second, *shape});
  }
  return tensors;
}

// Numbers of a serialised tree of hashes, in its order.
struct CallHash {
  std::optional<double> norm;
  std::optional<std::uint64_t> bits;
};
void HashesIn(const CallNode& tree, std::vector<CallHash>* hashes) {
  const CallNode* const items = tree.Find("items");
  if (items != nullptr) {
    const bool dictionary = tree.TextOf("type") == "dict";
    for (const CallNode& item : items->members) {
      if (!dictionary)
        HashesIn(item, hashes);
      else if (item.members.size() == 2)
        HashesIn(item.members[1], hashes);
    }
    return;
  }
  const CallNode* const value = tree.Find("value");
  if (value == nullptr || value->type == CallNode::Type::kNull) return;
  CallHash hash;
  if (tree.TextOf("type") == "nonfinite_float")
    hash.norm = ParseDouble(value->text);
  else if (value->type == CallNode::Type::kNumber && value->integer)
    hash.bits = ParseUnsigned(value->text);
  else if (value->type == CallNode::Type::kNumber)
    hash.norm = value->number;
  hashes->push_back(hash);
}

const CallNode* InDict(const CallNode* tree, std::string_view key) {
  const CallNode* const items = tree == nullptr ? nullptr : tree->Find("items");
  if (items == nullptr) return nullptr;
  for (const CallNode& item : items->members) {
    if (item.members.size() == 2 && item.members[0].text == key) return &item.members[1];
  }
  return nullptr;
}

// The norm is that of all elements in float64: NaN and infinities show in it, but are not counted.
void SetNorm(double norm, Observation* o) {
  TensorStats& s = o->stats;
  Layout& layout = o->layout;
  if (std::isnan(norm)) {
    s.nan = 1;
    layout.untrusted |= BitOf(Statistic::kNan);
    layout.absent |= BitOf(Statistic::kInf) | BitOf(Statistic::kInfSign);
  } else if (std::isinf(norm)) {
    s.pos_inf = 1;
    layout.untrusted |= BitOf(Statistic::kInf);
    layout.absent |= BitOf(Statistic::kInfSign);
    s.has_finite = !layout.Has(Statistic::kShape) || s.numel > 1;
  }
  SetFinite(norm, Statistic::kL1, &s.l1, &layout);
}

// Empty: nothing in the hashes that we know.
std::optional<Observation> HashedTensor(const PrintedTensor* tensor, const CallHash* begin,
                                        const CallHash* end) {
  const auto has_norm = [](const CallHash& h) { return h.norm && !(*h.norm < 0); };
  const auto has_bits = [](const CallHash& h) { return h.bits.has_value(); };
  const CallHash* const norm = std::find_if(begin, end, has_norm);
  const CallHash* const bits = std::find_if(begin, end, has_bits);
  const auto elements = tensor == nullptr ? std::nullopt : Elements(tensor->shape);
  if (norm == end && bits == end) return std::nullopt;
  Observation o;
  o.layout.absent = BitOf(Statistic::kMin) | BitOf(Statistic::kMax) | BitOf(Statistic::kMean) |
                    BitOf(Statistic::kStd) | BitOf(Statistic::kL2) | BitOf(Statistic::kZero) |
                    BitOf(Statistic::kNeg) | BitOf(Statistic::kPos);
  if (elements) {
    o.layout.dtype = tensor->dtype;
    o.layout.shape = tensor->shape;
    o.stats.numel = *elements;
  } else {
    o.layout.dtype = DType::kF32;
    o.layout.absent |= BitOf(Statistic::kShape);
  }
  o.stats.has_finite = !elements || *elements > 0;
  if (norm == end) {
    o.layout.absent |= BitOf(Statistic::kL1) | BitOf(Statistic::kNan) | BitOf(Statistic::kInf) |
                       BitOf(Statistic::kInfSign);
  } else if (o.stats.has_finite) {
    SetNorm(*norm->norm, &o);
  }
  if (bits == end) {
    o.layout.absent |= BitOf(Statistic::kHash);
  } else {
    o.layout.hash_kind = HashKind::kXor64;  // of the elements as float64 or int64
    o.stats.hash = *bits->bits;
  }
  return o;
}

// --- the calls, one after the other

class CallReader {
 public:
  CallReader(Tally* tally, const std::function<Status(Observation)>& take)
      : tally_(tally), take_(take) {}
  bool has_hashes() const { return has_hashes_; }

  Status Read(const CallNode& call) {
    const CallNode* const depth = call.Find("call_depth");
    if (depth == nullptr || !depth->integer) return Found("a call without a depth", kSavedLogs);
    while (!modules_.empty() && modules_.back().first >= depth->number) modules_.pop_back();
    const std::string_view type = call.TextOf("type");
    if (type == "annotate") {
      const std::string module(call.TextOf("tag"));
      if (call.TextOf("header").starts_with("nn.Mod") && ValidateTensorName("module", module).ok())
        modules_.emplace_back(depth->number, module);
      return Status::Ok();
    }
    if (type == "triton_kernel") {
      const std::string arguments(call.TextOf("kwargs_str"));
      return TakeCall(call.TextOf("kernel_name"), {call.Find("pre_hashes"), arguments},
                      {call.Find("post_hashes"), arguments});
    }
    if (type != "op")
      return Status::Ok();  // a redistribution, a placement: no tensors of their own
    const CallNode* const log = call.Find("log");
    return TakeCall(call.TextOf("op_name"),
                    {InDict(log, "input_hash"),
                     std::string(call.TextOf("args_str")) + std::string(call.TextOf("kwargs_str"))},
                    {InDict(log, "hash"), std::string(call.TextOf("output_str"))});
  }

 private:
  struct Side {
    const CallNode* hashes = nullptr;  // null: not hashed
    std::string text;
  };

  Status TakeCall(std::string_view called, const Side& inputs, const Side& results) {
    TensorDef def;
    if (!modules_.empty()) def.parent = modules_.back().second;
    def.class_name = called;
    def.key.name = (def.parent.empty() ? "" : def.parent + ".") + std::string(called);
    if (const Status valid = ValidateTensorName("operator", def.key.name); !valid.ok())
      return Found("an operator with an invalid name (" + valid.message() + ")", "a valid one");
    def.key.call = calls_[def.key.name]++;
    if (inputs.hashes == nullptr && results.hashes == nullptr) tally_->Skip("call without a hash");
    def.key.kind = Kind::kInput;
    STATCOLLECT_RETURN_IF_ERROR(TakeSide(inputs, def));
    def.key.kind = Kind::kOutput;
    return TakeSide(results, def);
  }

  Status TakeSide(const Side& side, TensorDef def) {
    if (side.hashes == nullptr) return Status::Ok();
    std::vector<CallHash> hashes;
    HashesIn(*side.hashes, &hashes);
    const auto tensors = TensorsIn(side.text);
    // As many hashes for each tensor; of other numbers nobody knows whose they are.
    const bool known = !tensors.empty() && hashes.size() % tensors.size() == 0;
    const std::size_t each = known ? std::max<std::size_t>(hashes.size() / tensors.size(), 1) : 1;
    for (std::size_t i = 0; (i + 1) * each <= hashes.size(); ++i) {
      const CallHash* const begin = &hashes[i * each];
      if (known && tensors[i].dtype == DType::kUnspecified) {
        tally_->Skip("dtype that has no statistics");
        continue;
      }
      auto o = HashedTensor(known ? &tensors[i] : nullptr, begin, begin + each);
      if (!o) {
        tally_->Skip("hash of an unknown form");
        continue;
      }
      has_hashes_ = true;
      o->def = def;
      if (hashes.size() > each) o->def.key.output_path = std::to_string(i);
      STATCOLLECT_RETURN_IF_ERROR(take_(*std::move(o)));
    }
    return Status::Ok();
  }

  Tally* const tally_;
  const std::function<Status(Observation)>& take_;
  std::vector<std::pair<double, std::string>> modules_;  // entered: depth and path
  std::map<std::string, std::uint32_t> calls_;
  bool has_hashes_ = false;
};

}  // namespace

Result<bool> IsDebugModeLog(ByteSource& file) {
  std::string begin(256, '\0');
  const auto read = file.ReadUpTo(begin.data(), begin.size());
  if (!read.ok()) return read.status();
  return begin.substr(0, *read).find(kLogFormat) != std::string::npos;
}

Status ReadDebugModeLog(ByteSource& file, Tally* tally,
                        const std::function<Status(Observation)>& take) {
  CallReader calls(tally, take);
  const std::function<Status(const CallNode&)> read = [&](const CallNode& call) {
    return calls.Read(call);
  };
  LogVisitor visitor(read);
  STATCOLLECT_RETURN_IF_ERROR(ReadJson(file, visitor, kSavedLogs));
  if (!visitor.complete()) return BadInput(file.path(), 1, "no such log", kSavedLogs);
  return calls.has_hashes()
             ? Status::Ok()
             : BadInput(file.path(), 0, "a log without hashes",
                        "one that was recorded within DebugMode.log_tensor_hashes()");
}

}  // namespace statcollect::client::formats
