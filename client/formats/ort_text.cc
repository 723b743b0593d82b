#include "client/formats/ort_text.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "client/formats/convert.h"
#include "client/formats/ort_label.h"
#include "common/names.h"

namespace statcollect::client::formats {
namespace {

constexpr std::size_t kSampleLinesMax = 100'000;
constexpr std::int32_t kDepthMax = 1000;
constexpr char kRecordForm[] =
    "'>>Linear_1_0th_output forward run shape: torch.Size([4, 16]) dtype: torch.float32 size: "
    "torch.Size([64])'";

bool EatPrefix(std::string_view* text, std::string_view prefix) {
  if (!text->starts_with(prefix)) return false;
  text->remove_prefix(prefix.size());
  return true;
}

bool EatSuffix(std::string_view* text, std::string_view suffix) {
  if (!text->ends_with(suffix)) return false;
  text->remove_suffix(suffix.size());
  return true;
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// The word up to the next blank, without a comma at its end.
std::string_view EatWord(std::string_view* text) {
  *text = Trim(*text);
  const std::size_t stop = std::min(text->find(' '), text->size());
  std::string_view word = text->substr(0, stop);
  text->remove_prefix(stop);
  if (word.ends_with(',')) word.remove_suffix(1);
  return word;
}

// The rest of the line after "key:"; empty if the line does not contain it.
std::optional<std::string_view> After(std::string_view line, std::string_view key) {
  const std::size_t at = line.find(key);
  if (at == std::string_view::npos) return std::nullopt;
  return line.substr(at + key.size());
}

std::optional<double> ParseValue(std::string_view word) {
  if (word == "True") return 1.0;
  if (word == "False") return 0.0;
  return ParseDouble(word);
}

// "torch.Size([4, 16])", "(4, 16)" and "64" at the start of the text.
std::optional<std::vector<std::int64_t>> ParseSize(std::string_view text) {
  text = Trim(text);
  EatPrefix(&text, "torch.Size(");
  const char open = text.empty() ? ' ' : text.front();
  std::vector<std::int64_t> sizes;
  if (open != '[' && open != '(') {
    const auto number = ParseUnsigned(EatWord(&text));
    if (!number || *number > std::numeric_limits<std::int64_t>::max()) return std::nullopt;
    sizes.push_back(static_cast<std::int64_t>(*number));
    return sizes;
  }
  const std::size_t stop = text.find(open == '[' ? ']' : ')');
  if (stop == std::string_view::npos) return std::nullopt;
  return ParseShapeList(text.substr(1, stop - 1), ',');
}

Status ParseName(std::string_view head, const LineReader& reader, OrtRecord* record) {
  std::size_t depth = 0;
  while (EatPrefix(&head, ">")) ++depth;
  head = Trim(head);
  if (EatSuffix(&head, " forward run") || EatSuffix(&head, "_forward")) {
    record->backward = false;
  } else if (EatSuffix(&head, " backward run") || EatSuffix(&head, "_backward")) {
    record->backward = true;
  } else {
    return reader.Bad("'" + std::string(head) + "'",
                      "a name followed by ' forward run' or ' backward run'");
  }
  if (depth > static_cast<std::size_t>(kDepthMax))
    return reader.Bad(std::to_string(depth) + " times '>'", "at most " + std::to_string(kDepthMax));
  record->depth = depth == 0 ? -1 : static_cast<std::int32_t>(depth);
  record->name = head;
  const Status name = ValidateTensorName("activation", record->name);
  return name.ok() ? name : reader.Bad("an invalid name (" + name.message() + ")", "a valid one");
}

// Where the name ends: at the first of the keys that follow it.
std::size_t EndOfName(std::string_view line) {
  std::size_t end = std::string_view::npos;
  for (const std::string_view key : {" shape:", " unpad:", " dtype:", " size:"})
    end = std::min(end, line.find(key));
  return end;
}

Status ParseHeader(std::string_view line, const LineReader& reader, OrtRecord* record) {
  const std::size_t end = EndOfName(line);
  if (end == std::string_view::npos) return reader.Bad("'" + std::string(line) + "'", kRecordForm);
  STATCOLLECT_RETURN_IF_ERROR(ParseName(line.substr(0, end), reader, record));
  const std::string_view rest = line.substr(end);
  const auto shape = After(rest, " shape:"), dtype = After(rest, " dtype:"),
             size = After(rest, " size:");
  if (!shape || !dtype || !size) return reader.Bad("'" + std::string(line) + "'", kRecordForm);
  std::string_view dtype_rest = *dtype;
  record->dtype_text = EatWord(&dtype_rest);
  record->dtype = ParseTorchDType(record->dtype_text);
  const auto sizes = ParseSize(*shape), flat = ParseSize(*size);
  if (!sizes || !flat || flat->size() != 1)
    return reader.Bad("'" + std::string(Trim(rest)) + "'", "sizes such as torch.Size([4, 16])");
  const auto elements = Elements(*sizes);
  if (!elements || *elements != static_cast<std::uint64_t>(flat->front())) {
    return reader.Bad(
        "shape '" + std::string(Trim(*shape)) + "'",
        "at most 64 dimensions that multiply to the size of " + std::to_string(flat->front()));
  }
  record->shape = *sizes;
  record->numel = *elements;
  return Status::Ok();
}

// "key: VALUE" pairs in the order given.
template <typename Parse, typename T>
Status ParsePairs(std::string_view line, const LineReader& reader, const std::string& expected,
                  Parse parse, std::initializer_list<std::pair<std::string_view, T*>> pairs) {
  std::string_view rest = line;
  for (const auto& [key, value] : pairs) {
    rest = Trim(rest);
    if (!EatPrefix(&rest, key)) return reader.Bad("'" + std::string(line) + "'", expected);
    const std::string_view word = EatWord(&rest);
    const auto parsed = parse(word);
    if (!parsed)
      return reader.Bad("'" + std::string(word) + "'", "a number after '" + std::string(key) + "'");
    *value = *parsed;
  }
  if (!Trim(rest).empty())
    return reader.Bad("'" + std::string(Trim(rest)) + "'", "the end of the line");
  return Status::Ok();
}

Status ParseNumbers(std::string_view line, const LineReader& reader, const std::string& expected,
                    std::initializer_list<std::pair<std::string_view, double*>> pairs) {
  return ParsePairs(line, reader, expected, &ParseValue, pairs);
}

Status ParseCounts(std::string_view line, const LineReader& reader, const std::string& expected,
                   std::initializer_list<std::pair<std::string_view, std::uint64_t*>> pairs) {
  return ParsePairs(line, reader, expected, &ParseUnsigned, pairs);
}

// The numbers of "tensor([0.5, nan, ..." as far as they go. None if elements were left out.
class SampleText {
 public:
  void Add(std::string_view line) {
    for (char& c : scratch_ = line) {
      if (c == '[' || c == ']' || c == '(' || c == ')' || c == ',') c = ' ';
    }
    std::string_view rest = scratch_;
    while (!(rest = Trim(rest)).empty() && !ended_) {
      const std::string_view word = EatWord(&rest);
      if (word == "tensor") continue;
      const auto value = ParseValue(word);
      if (!value || samples_.size() >= kSamplesMax) {
        ended_ = true;  // "dtype=torch.float16", "device='cuda:0'", "..."
        elided_ = word == "...";
      } else {
        samples_.push_back(*value);
      }
    }
  }
  std::vector<double> Take(std::uint64_t numel) {
    if (elided_ || samples_.size() > numel) return {};
    return std::move(samples_);
  }

 private:
  std::string scratch_;
  std::vector<double> samples_;
  bool ended_ = false, elided_ = false;
};

// The lines from "samples(...): tensor(" up to the one that begins with "neg:", which is left in
// `line`.
Status SkipSamples(LineReader& reader, bool keep, std::string_view* line, OrtRecord* record) {
  const bool first_elements = line->starts_with("samples(top ");
  if (!line->starts_with("samples("))
    return reader.Bad("'" + std::string(*line) + "'", "'samples(top 128): tensor([...])'");
  SampleText samples;
  if (const auto text = After(*line, "):"); text && keep && first_elements) samples.Add(*text);
  for (std::size_t lines = 0; lines < kSampleLinesMax; ++lines) {
    const auto more = reader.Next(line);
    if (!more.ok()) return more.status();
    if (!*more) return reader.Bad("the end of the file", "'neg: 30, pos: 34, zero: 0,'");
    if (line->starts_with("neg:")) {
      if (keep && first_elements) record->samples = samples.Take(record->numel);
      return Status::Ok();
    }
    if (keep && first_elements) samples.Add(*line);
  }
  return reader.Bad("more than " + std::to_string(kSampleLinesMax) + " lines of samples",
                    "'neg: 30, pos: 34, zero: 0,'");
}

// Up to the line of "=": nothing that we know, or the histogram and norms of the oldest version.
Status SkipToEnd(LineReader& reader) {
  std::string_view line;
  for (std::size_t lines = 0; lines < kSampleLinesMax; ++lines) {
    const auto more = reader.Next(&line);
    if (!more.ok()) return more.status();
    if (!*more) return reader.Bad("the end of the file", "a line of '='");
    line = Trim(line);
    if (!line.empty() && line.find_first_not_of('=') == std::string_view::npos) return Status::Ok();
    const bool known =
        line.starts_with("norm:") || line.starts_with("histogram:") || line.starts_with("array(") ||
        line.empty() ||
        line.find_first_not_of("0123456789 .,-+e[])(ainfdtypo=rch:") == std::string_view::npos;
    if (!known) return reader.Bad("'" + std::string(line) + "'", "a line of '='");
  }
  return reader.Bad("more than " + std::to_string(kSampleLinesMax) + " lines", "a line of '='");
}

Status NextLine(LineReader& reader, std::string_view* line, const std::string& expected) {
  const auto more = reader.Next(line);
  if (!more.ok()) return more.status();
  return *more ? Status::Ok() : reader.Bad("the end of the file", expected);
}

// The next line that is not empty; false at the end.
Result<bool> NextText(LineReader& reader, std::string_view* line) {
  while (true) {
    const auto more = reader.Next(line);
    if (!more.ok() || !*more) return more;
    if (!Trim(*line).empty()) return true;
  }
}

Status CheckValues(const LineReader& reader, const OrtRecord& r) {
  if (std::isfinite(r.min) && std::isfinite(r.max) && r.min > r.max && r.numel > 0)
    return reader.Bad("min " + std::to_string(r.min) + " above max " + std::to_string(r.max),
                      "min <= max");
  if (r.std < 0) return reader.Bad("std " + std::to_string(r.std), "0 or more");
  return Status::Ok();
}

Status CheckNonfinite(const LineReader& reader, const OrtRecord& r) {
  if (r.nan <= r.numel && r.inf <= r.numel - r.nan) return Status::Ok();
  return reader.Bad("nan " + std::to_string(r.nan) + " and inf " + std::to_string(r.inf),
                    "counts within the size of " + std::to_string(r.numel));
}

// Printed neg and pos hold the infinities, which are counted together; min and max tell their
// signs, unless a NaN hides them.
void SplitInfinities(const OrtRecord& r, Observation* o) {
  o->stats.neg = r.neg;
  o->stats.pos = r.pos;
  if (r.inf == 0) return;
  const bool negative = std::isinf(r.min) && r.min < 0, positive = std::isinf(r.max) && r.max > 0;
  const bool known = r.nan == 0 && negative != positive;
  std::uint64_t& side = negative ? o->stats.neg : o->stats.pos;
  if (known && side >= r.inf) {
    side -= r.inf;
    (negative ? o->stats.neg_inf : o->stats.pos_inf) = r.inf;
    return;
  }
  o->stats.pos_inf = r.inf;
  o->stats.neg = o->stats.pos = 0;
  o->layout.absent |= BitOf(Statistic::kInfSign) | BitOf(Statistic::kNeg) | BitOf(Statistic::kPos);
}

void SetCounts(const OrtRecord& r, Observation* o, Tally* tally) {
  o->stats.nan = r.nan;
  o->stats.zero = r.zero;
  const std::uint64_t left = r.numel - r.nan;
  const bool add_up = r.zero <= left && r.neg <= left - r.zero && r.pos == left - r.zero - r.neg;
  if (add_up) return SplitInfinities(r, o);
  o->stats.zero = 0;
  o->stats.pos_inf = r.inf;
  o->layout.absent |= BitOf(Statistic::kZero) | BitOf(Statistic::kNeg) | BitOf(Statistic::kPos) |
                      (r.inf > 0 ? BitOf(Statistic::kInfSign) : 0);
  tally->Note(
      "neg, pos and zero do not add up to the size in some records; they are left out there");
}

// Printed: the sample's (n - 1). Later versions combine it wrongly; nothing in the text tells which
// version wrote it.
void SetStd(const OrtRecord& r, bool trust_std, Observation* o, Tally* tally) {
  const auto n = static_cast<double>(r.numel);
  if (r.numel == 1) return;  // 0, whatever it says
  if (!std::isfinite(r.std)) {
    o->layout.absent |= BitOf(Statistic::kStd);
    return;
  }
  const double largest = (r.max - r.min) / 2 * std::sqrt(n / (n - 1)) * (1 + 1e-6);
  const bool possible = !std::isfinite(r.max - r.min) || r.std <= largest;
  if (trust_std && possible) {
    o->stats.std = r.std * std::sqrt((n - 1) / n);
    return;
  }
  o->stats.std = r.std;
  o->layout.untrusted |= BitOf(Statistic::kStd);
  ++tally->untrusted["std"];
  if (trust_std)
    tally->Note("std is larger than min and max allow in some records; it is not trusted there");
}

}  // namespace

std::optional<OrtModule> ParseOrtName(std::string_view name) {
  if (!EatSuffix(&name, "th_output")) return std::nullopt;
  const std::size_t k = name.rfind('_');
  if (k == std::string_view::npos || !ParseUnsigned(name.substr(k + 1))) return std::nullopt;
  name = name.substr(0, k);
  const std::size_t index = name.rfind('_');
  if (index == std::string_view::npos || index == 0) return std::nullopt;
  const auto number = ParseUnsigned(name.substr(index + 1));
  if (!number) return std::nullopt;
  return OrtModule{.class_name = std::string(name.substr(0, index)), .index = *number};
}

Result<bool> ReadOrtHeader(LineReader& reader, OrtRecord* record) {
  std::string_view line;
  const auto more = NextText(reader, &line);
  if (!more.ok() || !*more) return more;
  const std::size_t end = EndOfName(line);
  if (end == std::string_view::npos) return reader.Bad("'" + std::string(line) + "'", kRecordForm);
  STATCOLLECT_RETURN_IF_ERROR(ParseName(line.substr(0, end), reader, record));
  return true;
}

Result<bool> ReadOrtRecord(LineReader& reader, bool with_samples, OrtRecord* record) {
  std::string_view line;
  const auto more = NextText(reader, &line);
  if (!more.ok() || !*more) return more;
  OrtRecord& r = *record = {};
  STATCOLLECT_RETURN_IF_ERROR(ParseHeader(line, reader, record));
  const std::string numbers = "'min: -1.5 max: 2, mean: 0.1, std: 0.9'",
                    counts = "'nan: 0, inf: 0'";
  const std::string signs = "'neg: 30, pos: 34, zero: 0,'";
  STATCOLLECT_RETURN_IF_ERROR(NextLine(reader, &line, numbers));
  STATCOLLECT_RETURN_IF_ERROR(
      (ParseNumbers(line, reader, numbers,
                    {{"min:", &r.min}, {"max:", &r.max}, {"mean:", &r.mean}, {"std:", &r.std}})));
  STATCOLLECT_RETURN_IF_ERROR(CheckValues(reader, r));
  STATCOLLECT_RETURN_IF_ERROR(NextLine(reader, &line, counts));
  STATCOLLECT_RETURN_IF_ERROR(
      (ParseCounts(line, reader, counts, {{"nan:", &r.nan}, {"inf:", &r.inf}})));
  STATCOLLECT_RETURN_IF_ERROR(CheckNonfinite(reader, r));
  STATCOLLECT_RETURN_IF_ERROR(NextLine(reader, &line, "'samples(top 128): tensor([...])'"));
  STATCOLLECT_RETURN_IF_ERROR(SkipSamples(reader, with_samples, &line, record));
  STATCOLLECT_RETURN_IF_ERROR(
      (ParseCounts(line, reader, signs, {{"neg:", &r.neg}, {"pos:", &r.pos}, {"zero:", &r.zero}})));
  STATCOLLECT_RETURN_IF_ERROR(SkipToEnd(reader));
  return true;
}

// A user's own name of an inspected tensor may have brackets and percent signs, too.
bool IsLabelOfOurs(const std::string& name, const TensorKey& parsed) {
  return name.find('@') != std::string::npos ||
         (parsed.output_path.empty() && OrtLabel(parsed) == name);
}

Observation ToObservation(const OrtRecord& r, bool trust_std, Tally* tally) {
  Observation o;
  const auto module = ParseOrtName(r.name);
  const bool inspected = r.depth < 0;
  o.def.key.name = r.name;
  o.def.key.kind = inspected ? (r.backward ? Kind::kInspectGrad : Kind::kInspect)
                             : (r.backward ? Kind::kGradOutput : Kind::kOutput);
  // Names written by `statctl move export ort` also contain the rest of the identity.
  TensorKey labelled{.kind = o.def.key.kind};
  if (ParseOrtLabel(r.name, labelled) && (!inspected || IsLabelOfOurs(r.name, labelled)))
    o.def.key = std::move(labelled);
  o.def.depth = r.depth;
  if (module && !inspected) o.def.class_name = module->class_name;
  o.layout.dtype = r.dtype;
  o.layout.shape = r.shape;
  o.layout.absent = BitOf(Statistic::kL1) | BitOf(Statistic::kL2) | BitOf(Statistic::kHash);
  o.stats.numel = r.numel;
  SetCounts(r, &o, tally);
  o.stats.has_finite = r.nan + r.inf < r.numel;
  if (!o.stats.has_finite) return o;
  SetFinite(r.min, Statistic::kMin, &o.stats.min, &o.layout);
  SetFinite(r.max, Statistic::kMax, &o.stats.max, &o.layout);
  SetFinite(r.mean, Statistic::kMean, &o.stats.mean, &o.layout);
  SetStd(r, trust_std, &o, tally);
  o.samples = r.samples;
  return o;
}

}  // namespace statcollect::client::formats
