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
constexpr std::size_t kBeginBytes = 4096;
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

// --- the printed form

// Builds of debug_string's lines what a saved log would have said.
CallNode TextNode(std::string_view key, std::string_view text) {
  return {.type = CallNode::Type::kText, .text = std::string(text), .key = std::string(key)};
}

CallNode Tagged(std::string_view type, CallNode member) {
  CallNode node{.type = CallNode::Type::kObject};
  node.members = {TextNode("type", type), std::move(member)};
  return node;
}

// Python's text of hashes: "{'hash': (1.5, None), 'input_hash': ((inf,), {})}". Anything else that
// stands where a value should is kept as text.
class LiteralParser {
 public:
  explicit LiteralParser(std::string_view text) : rest_(text) {}

  CallNode Value(int depth = 0) {
    Skip(" ");
    if (depth < kLiteralDepthMax && (TakeOne('(') || TakeOne('['))) return Items(depth, false);
    if (depth < kLiteralDepthMax && TakeOne('{')) return Items(depth, true);
    const std::string_view word = Word();
    if (word == "nan" || word == "inf" || word == "-inf")
      return Tagged("nonfinite_float", TextNode("value", word));
    CallNode value = TextNode("value", word);
    const auto number = ParseNumber<double>(word);
    if (word == "None") value.type = CallNode::Type::kNull;
    if (number) {
      value.type = CallNode::Type::kNumber;
      value.number = *number;
      value.integer = word.find_first_not_of("-0123456789") == std::string_view::npos;
    }
    return Tagged("scalar", std::move(value));
  }

 private:
  CallNode Items(int depth, bool dictionary) {
    CallNode items{.type = CallNode::Type::kList, .key = "items"};
    while (true) {
      Skip(" ,");
      if (rest_.empty() || TakeOne(')') || TakeOne(']') || TakeOne('}')) break;
      const std::size_t before = rest_.size();
      if (dictionary) {
        CallNode pair{.type = CallNode::Type::kList};
        pair.members.push_back(TextNode("", Word()));
        Skip(" :");
        pair.members.push_back(Value(depth + 1));
        items.members.push_back(std::move(pair));
      } else {
        items.members.push_back(Value(depth + 1));
      }
      if (rest_.size() == before) rest_.remove_prefix(1);
    }
    return Tagged(dictionary ? "dict" : "tuple", std::move(items));
  }

  // Without quotes.
  std::string_view Word() {
    std::string_view word = rest_.substr(0, rest_.find_first_of(",:()[]{} "));
    rest_.remove_prefix(word.size());
    if (word.size() > 1 && word.starts_with('\'') && word.ends_with('\''))
      word = word.substr(1, word.size() - 2);
    return word;
  }
  void Skip(std::string_view blanks) {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(blanks), rest_.size()));
  }
  bool TakeOne(char c) {
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }

  static constexpr int kLiteralDepthMax = 64;
  std::string_view rest_;
};

CallNode NodeOfHashes(std::string_view key, std::string_view literal) {
  CallNode hashes = LiteralParser(literal).Value();
  hashes.key = key;
  return hashes;
}

// "aten::mm(t: f32[8, 8], 1)  ->  t: f32[8, 8]  # {'hash': 1.5}", "[nn.Mod] Net.layers.0". Empty:
// neither, such as a comment.
std::optional<CallNode> ParseCallLine(std::string_view line) {
  const std::size_t blanks = std::min(line.find_first_not_of(' '), line.size());
  CallNode call{.type = CallNode::Type::kObject};
  call.members.push_back({.type = CallNode::Type::kNumber,
                          .number = static_cast<double>(blanks) / 2 - 1,
                          .integer = true,
                          .key = "call_depth"});
  std::string_view rest = line.substr(blanks);
  const std::size_t header = rest.find("] ");
  if (rest.starts_with('[') && header != std::string_view::npos) {
    const std::string_view name = rest.substr(1, header - 1);
    rest.remove_prefix(header + 2);
    if (name == "triton") {
      call.members.push_back(TextNode("type", "triton_kernel"));
      call.members.push_back(TextNode("kernel_name", rest.substr(0, rest.find('('))));
      call.members.push_back(TextNode("kwargs_str", rest));
    } else {
      call.members.push_back(TextNode("type", "annotate"));
      call.members.push_back(TextNode("header", name));
      call.members.push_back(TextNode("tag", rest));
    }
    return call;
  }
  const std::size_t log = std::min(rest.rfind("  # {"), rest.size());
  if (log < rest.size()) call.members.push_back(NodeOfHashes("log", rest.substr(log + 4)));
  rest = rest.substr(0, log);
  const std::size_t open = rest.find('(');
  if (rest.starts_with('#') || open == std::string_view::npos || open == 0 ||
      rest.starts_with("->") || rest.starts_with("redistribute_input"))
    return std::nullopt;
  call.members.push_back(TextNode("type", "op"));
  call.members.push_back(TextNode("op_name", rest.substr(0, open)));
  const std::size_t arrow = std::max(open, std::min(rest.rfind("  ->  "), rest.size()));
  call.members.push_back(TextNode("args_str", rest.substr(open, arrow - open)));
  call.members.push_back(TextNode("output_str", rest.substr(arrow)));
  return call;
}

Status ReadCallLines(ByteSource& file, Tally* tally,
                     const std::function<Status(const CallNode&)>& take) {
  LineReader lines;
  lines.Reset(file);
  std::string_view line;
  std::optional<CallNode> kernel;  // its hashes follow, each in a line
  while (true) {
    const auto more = lines.Next(&line);
    if (!more.ok()) return more.status();
    std::string_view text = *more ? line : std::string_view();
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    bool of_kernel = false;
    for (const auto& [begin, key] : {std::pair("# pre-kernel hashes: ", "pre_hashes"),
                                     {"# post-kernel hashes: ", "post_hashes"}}) {
      if (!kernel || !text.starts_with(begin)) continue;
      of_kernel = true;
      if (!text.ends_with('}')) {
        tally->Skip("line that was cut");
        continue;
      }
      kernel->members.push_back(NodeOfHashes(key, text.substr(std::string_view(begin).size())));
    }
    if (of_kernel || (kernel && *more && text.empty())) continue;
    if (kernel) STATCOLLECT_RETURN_IF_ERROR(take(*kernel));
    kernel.reset();
    if (!*more) return Status::Ok();
    if (line.rfind("  # {") != std::string_view::npos && !line.ends_with('}')) {
      tally->Skip("line that was cut");
      continue;
    }
    auto call = ParseCallLine(line);
    if (!call) continue;
    if (call->TextOf("type") == "triton_kernel") {
      kernel = std::move(call);
      continue;
    }
    if (const Status taken = take(*call); !taken.ok())
      return PlacedAt(file.path(), lines.line(), taken);
  }
}

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
  const auto counted = tensor == nullptr ? std::nullopt : Elements(tensor->shape);
  const std::uint64_t elements = counted.value_or(0);
  if (norm == end && bits == end) return std::nullopt;
  Observation o;
  o.layout.absent = BitOf(Statistic::kMin) | BitOf(Statistic::kMax) | BitOf(Statistic::kMean) |
                    BitOf(Statistic::kStd) | BitOf(Statistic::kL2) | BitOf(Statistic::kZero) |
                    BitOf(Statistic::kNeg) | BitOf(Statistic::kPos);
  if (counted) {
    o.layout.dtype = tensor->dtype;
    o.layout.shape = tensor->shape;
    o.stats.numel = elements;
  } else {
    o.layout.dtype = DType::kF32;
    o.layout.absent |= BitOf(Statistic::kShape);
  }
  o.stats.has_finite = !counted || elements > 0;
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
  std::string begin(kBeginBytes, '\0');
  const auto read = file.ReadUpTo(begin.data(), begin.size());
  if (!read.ok()) return read.status();
  begin.resize(*read);
  return begin.find(kLogFormat) != std::string::npos ||
         begin.find("  # {'hash': ") != std::string::npos ||
         begin.find("  # {'input_hash': ") != std::string::npos;
}

Status ReadDebugModeLog(ByteSource& file, Tally* tally,
                        const std::function<Status(Observation)>& take) {
  CallReader calls(tally, take);
  const std::function<Status(const CallNode&)> read = [&](const CallNode& call) {
    return calls.Read(call);
  };
  char first = 0;
  const auto got = file.Read(&first, 1);
  if (!got.ok()) return got.status();
  STATCOLLECT_RETURN_IF_ERROR(file.Seek(0));
  if (*got == 1 && first == ' ') {
    STATCOLLECT_RETURN_IF_ERROR(ReadCallLines(file, tally, read));
  } else {
    LogVisitor visitor(read);
    STATCOLLECT_RETURN_IF_ERROR(ReadJson(file, visitor, kSavedLogs));
    if (!visitor.complete()) return BadInput(file.path(), 1, "no such log", kSavedLogs);
  }
  return calls.has_hashes()
             ? Status::Ok()
             : BadInput(file.path(), 0, "a log without hashes",
                        "one that was recorded within DebugMode.log_tensor_hashes()");
}

}  // namespace statcollect::client::formats
