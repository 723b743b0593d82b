#include "client/formats/mindspore_csv.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "client/formats/convert.h"
#include "common/names.h"
#include "common/parse.h"
#include "common/text.h"

namespace statcollect::client::formats {
namespace {

constexpr char kHeaderForm[] =
    "a header such as 'Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data "
    "Type,Shape,Max "
    "Value,...'";

enum Field : std::size_t {
  kOpType,
  kOpName,
  kIo,
  kSlot,
  kDataType,
  kShapeText,
  kMaxValue,
  kMinValue,
  kAvgValue,
  kCount,
  kNegCount,
  kPosCount,
  kNanCount,
  kNegInfCount,
  kPosInfCount,
  kZeroCount,
  kL2Norm,
  kMd5,
  kSha1,
  kFieldCount,
  kIgnored = kFieldCount
};

constexpr std::pair<std::string_view, Field> kTitles[] = {
    {"Op Type", kOpType},
    {"Op Name", kOpName},
    {"IO", kIo},
    {"Input/Output", kIo},
    {"Slot", kSlot},
    {"Index", kSlot},
    {"Data Type", kDataType},
    {"Shape", kShapeText},
    {"Max Value", kMaxValue},
    {"Min Value", kMinValue},
    {"Avg Value", kAvgValue},
    {"Count", kCount},
    {"Negative Zero Count", kNegCount},  // elements below zero, for all its name
    {"Positive Zero Count", kPosCount},
    {"NaN Count", kNanCount},
    {"Nan Count", kNanCount},
    {"Negative Inf Count", kNegInfCount},
    {"Positive Inf Count", kPosInfCount},
    {"Zero Count", kZeroCount},
    {"L2Norm Value", kL2Norm},
    {"MD5", kMd5},
    {"MD5 Value", kMd5},
    {"SHA1", kSha1},
    {"SHA1 Value", kSha1},
    {"Task ID", kIgnored},
    {"Stream ID", kIgnored},
    {"Timestamp", kIgnored},
    {"Data Size", kIgnored},
    {"Format", kIgnored},
};

constexpr std::string_view kBlanks = " \t";

// Which column holds what.
struct Header {
  std::vector<Field> fields;  // by column
  std::array<bool, kFieldCount> has = {};
};

Result<Header> ParseHeader(std::string_view line, bool raw, const LineReader& lines) {
  std::vector<std::string> cells;
  if (!SplitCsv(line, &cells)) return lines.Bad("'" + std::string(line) + "'", kHeaderForm);
  if (!cells.empty() && cells.back().empty()) cells.pop_back();
  Header header;
  for (const std::string& cell : cells) {
    const auto* known =
        std::find_if(std::begin(kTitles), std::end(kTitles),
                     [&](const auto& title) { return title.first == Trimmed(cell, kBlanks); });
    if (known == std::end(kTitles)) return lines.Bad("a column '" + cell + "'", kHeaderForm);
    if (known->second != kIgnored && std::exchange(header.has[known->second], true))
      return lines.Bad("two columns '" + cell + "'", "one");
    header.fields.push_back(known->second);
  }
  const bool complete = header.has[kIo] && header.has[kSlot] && header.has[kDataType] &&
                        header.has[kShapeText] &&
                        (raw || (header.has[kOpType] && header.has[kOpName]));
  if (complete) return header;
  return lines.Bad("'" + std::string(line) + "'", kHeaderForm);
}

using Row = std::array<std::string, kFieldCount>;

// "(2,3)", "(2, 3)", "()", "2x3"; empty if it is not a shape.
std::optional<std::vector<std::int64_t>> ParseShape(std::string_view text) {
  text = Trimmed(text, kBlanks);
  if (text.starts_with('(') || text.starts_with('[')) {
    if (!text.ends_with(text.front() == '(' ? ')' : ']')) return std::nullopt;
    return ParseShapeList(text.substr(1, text.size() - 2), ',');
  }
  return ParseShapeList(text, text.find('x') == std::string_view::npos ? ',' : 'x');
}

bool IsNull(std::string_view text) {
  return text.empty() || text == "null" || text == "None" || text == "N/A";
}

std::optional<double> ParseCell(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (lower == "true") return 1.0;
  if (lower == "false") return 0.0;
  return ParseDouble(lower);
}

std::optional<std::uint64_t> ParseHash(std::string_view text, std::size_t digits) {
  if (text.size() != digits) return std::nullopt;
  return ParseNumber<std::uint64_t>(text.substr(0, 16), 16);
}

// One row's numbers.
class RowReader {
 public:
  RowReader(const Row& row, const LineReader& lines, Tally* tally, Observation* o)
      : row_(row), lines_(lines), tally_(tally), o_(*o) {}

  Status Read() {
    STATCOLLECT_RETURN_IF_ERROR(Counts());
    const std::uint64_t components = o_.stats.numel * (IsComplex(o_.layout.dtype) ? 2 : 1);
    const std::uint64_t nonfinite = o_.stats.nan + o_.stats.pos_inf + o_.stats.neg_inf;
    o_.stats.has_finite = components > nonfinite;
    o_.layout.absent |= BitOf(Statistic::kStd) | BitOf(Statistic::kL1);
    if (components > 0 && !o_.stats.has_finite) return Hash();
    if (components > 0) {
      STATCOLLECT_RETURN_IF_ERROR(Value(kMaxValue, Statistic::kMax, &o_.stats.max));
      STATCOLLECT_RETURN_IF_ERROR(Value(kMinValue, Statistic::kMin, &o_.stats.min));
      STATCOLLECT_RETURN_IF_ERROR(Value(kAvgValue, Statistic::kMean, &o_.stats.mean));
      STATCOLLECT_RETURN_IF_ERROR(Value(kL2Norm, Statistic::kL2, &o_.stats.l2));
      if (o_.stats.l2 < 0) return lines_.Bad("L2Norm Value '" + row_[kL2Norm] + "'", "0 or more");
      const bool both = o_.layout.Has(Statistic::kMin) && o_.layout.Has(Statistic::kMax);
      if (both && o_.stats.min > o_.stats.max)
        return lines_.Bad("Min Value " + row_[kMinValue] + " above Max Value " + row_[kMaxValue],
                          "min <= max");
      NoteNonfinite();
      STATCOLLECT_RETURN_IF_ERROR(FitCounts());
    }
    return Hash();
  }

 private:
  Status Value(Field field, Statistic statistic, double* to) {
    if (IsNull(row_[field])) {
      o_.layout.absent |= BitOf(statistic);
      return Status::Ok();
    }
    const auto value = ParseCell(row_[field]);
    if (!value) return lines_.Bad("'" + row_[field] + "'", "a number, or null");
    SetFinite(*value, statistic, to, &o_.layout);
    return Status::Ok();
  }

  // If NaN and infinities are not counted, the extremes show whether there are some: then 1 is
  // stored, as an untrusted count. If the extremes are finite, there are no infinities and no NaN
  // that the tool has seen.
  void NoteNonfinite() {
    Layout& layout = o_.layout;
    const bool both = ParseCell(row_[kMaxValue]) && ParseCell(row_[kMinValue]);
    if (!both || (layout.Has(Statistic::kNan) && layout.Has(Statistic::kInf))) return;
    const double max = *ParseCell(row_[kMaxValue]), min = *ParseCell(row_[kMinValue]);
    const bool nan = std::isnan(max) || std::isnan(min);
    const std::uint64_t components = o_.stats.numel * (IsComplex(layout.dtype) ? 2 : 1);
    std::uint64_t left = components - o_.stats.nan - o_.stats.pos_inf - o_.stats.neg_inf;
    const auto note = [&](bool some, std::uint64_t* count) {
      if (!some || left <= (components > 1 ? 1 : 0)) return;
      *count = 1;
      --left;
    };
    if (!layout.Has(Statistic::kNan)) {
      layout.absent &= ~BitOf(Statistic::kNan);
      layout.untrusted |= BitOf(Statistic::kNan);
      note(nan, &o_.stats.nan);
    }
    if (!layout.Has(Statistic::kInf) && !nan) {
      layout.absent &= ~(BitOf(Statistic::kInf) | BitOf(Statistic::kInfSign));
      layout.untrusted |= BitOf(Statistic::kInf);
      note(std::isinf(max) && max > 0, &o_.stats.pos_inf);
      note(std::isinf(min) && min < 0, &o_.stats.neg_inf);
    }
    if (left > 0) return;  // a single element
    o_.stats.has_finite = false;
    o_.stats.min = o_.stats.max = o_.stats.mean = o_.stats.l2 = 0;
  }

  Status Count(Field field, Statistic statistic, std::uint64_t* to) {
    if (IsNull(row_[field])) {
      o_.layout.absent |= BitOf(statistic);
      return Status::Ok();
    }
    const auto count = ParseUnsigned(row_[field]);
    if (!count) return lines_.Bad("'" + row_[field] + "'", "a count, or null");
    *to = *count;
    return Status::Ok();
  }

  Status Counts() {
    TensorStats& s = o_.stats;
    STATCOLLECT_RETURN_IF_ERROR(Count(kNanCount, Statistic::kNan, &s.nan));
    STATCOLLECT_RETURN_IF_ERROR(Count(kPosInfCount, Statistic::kInf, &s.pos_inf));
    STATCOLLECT_RETURN_IF_ERROR(Count(kNegInfCount, Statistic::kInf, &s.neg_inf));
    STATCOLLECT_RETURN_IF_ERROR(Count(kZeroCount, Statistic::kZero, &s.zero));
    STATCOLLECT_RETURN_IF_ERROR(Count(kNegCount, Statistic::kNeg, &s.neg));
    STATCOLLECT_RETURN_IF_ERROR(Count(kPosCount, Statistic::kPos, &s.pos));
    if (!o_.layout.Has(Statistic::kInf)) {
      s.pos_inf = s.neg_inf = 0;
      o_.layout.absent |= BitOf(Statistic::kInfSign);
    }
    if (!IsNull(row_[kCount]) && !ParseUnsigned(row_[kCount]))
      return lines_.Bad("'" + row_[kCount] + "'", "a count, or null");
    return FitCounts();
  }

  // NaN and infinities within the tensor; signs and zeros that make it up, or are left out.
  Status FitCounts() {
    TensorStats& s = o_.stats;
    const std::uint64_t components = s.numel * (IsComplex(o_.layout.dtype) ? 2 : 1);
    std::uint64_t left = components;
    for (const std::uint64_t count : {s.nan, s.pos_inf, s.neg_inf}) {
      if (count > left)
        return lines_.Bad(
            "counts of NaN and infinities beyond the shape '" + row_[kShapeText] + "'",
            "at most " + std::to_string(components));
      left -= count;
    }
    constexpr std::uint32_t kAll = BitOf(Statistic::kNan) | BitOf(Statistic::kInf) |
                                   BitOf(Statistic::kZero) | BitOf(Statistic::kNeg) |
                                   BitOf(Statistic::kPos);
    const bool fits = s.zero <= left && s.neg <= left - s.zero && s.pos <= left - s.zero - s.neg;
    const bool make_up = fits && s.zero + s.neg + s.pos == left;
    if (fits && ((o_.layout.absent & kAll) != 0 || make_up)) return Status::Ok();
    s.zero = s.neg = s.pos = 0;
    o_.layout.absent |= BitOf(Statistic::kZero) | BitOf(Statistic::kNeg) | BitOf(Statistic::kPos);
    tally_->Note(
        "counts of zeros and signs do not add up to the shape in some records; they are left out "
        "there");
    return Status::Ok();
  }

  Status Hash() {
    const auto md5 = ParseHash(row_[kMd5], 32), sha1 = ParseHash(row_[kSha1], 40);
    if (md5 || sha1) {
      o_.stats.hash = md5 ? *md5 : *sha1;
      o_.layout.hash_kind = md5 ? HashKind::kMd5 : HashKind::kSha1;
      return Status::Ok();
    }
    o_.layout.absent |= BitOf(Statistic::kHash);
    if (IsNull(row_[kMd5]) && IsNull(row_[kSha1])) return Status::Ok();
    return lines_.Bad("'" + row_[kMd5] + row_[kSha1] + "'",
                      "32 hexadecimal digits (MD5), or 40 (SHA1)");
  }

  const Row& row_;
  const LineReader& lines_;
  Tally* const tally_;
  Observation& o_;
};

Status SetIdentity(const Row& row, const LineReader& lines, Observation* o) {
  TensorKey& key = o->def.key;
  if (row[kIo] == "input" || row[kIo] == "Input") {
    key.kind = Kind::kInput;
  } else if (row[kIo] == "output" || row[kIo] == "Output") {
    key.kind = Kind::kOutput;
  } else {
    return lines.Bad("'" + row[kIo] + "'", "input or output");
  }
  const auto slot = ParseUnsigned(row[kSlot]);
  if (!slot || *slot > 1'000'000) return lines.Bad("slot '" + row[kSlot] + "'", "a number");
  key.output_path = std::to_string(*slot);
  key.name = row[kOpName];
  o->def.class_name = row[kOpType];
  const Status name = ValidateTensorName("operator", key.name);
  if (!name.ok()) return lines.Bad("an invalid name (" + name.message() + ")", "a valid one");
  if (!o->def.class_name.empty() && !ValidateTensorName("operator type", o->def.class_name).ok())
    o->def.class_name.clear();
  return Status::Ok();
}

Status ReadRow(const Header& header, std::string_view line, const RawCannFile* raw,
               const LineReader& lines, Tally* tally, const TakeRow& take) {
  std::vector<std::string> cells;
  if (!SplitCsv(line, &cells))
    return lines.Bad("'" + std::string(line) + "'", "cells between commas, quotes closed");
  if (cells.size() == header.fields.size() + 1 && cells.back().empty()) cells.pop_back();
  if (cells.size() != header.fields.size()) {
    return lines.Bad(std::to_string(cells.size()) + " cells",
                     std::to_string(header.fields.size()) + " as in the header");
  }
  Row row;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (header.fields[i] != kIgnored) row[header.fields[i]] = Trimmed(cells[i], kBlanks);
  }
  if (raw != nullptr) {
    row[kOpType] = raw->op_type;
    row[kOpName] = raw->op_name;
  }
  Observation o;
  STATCOLLECT_RETURN_IF_ERROR(SetIdentity(row, lines, &o));
  o.layout.dtype = ParseMindSporeDType(row[kDataType]);
  if (o.layout.dtype == DType::kUnspecified) {
    tally->Skip("dtype " + Printable(row[kDataType], 40));
    return Status::Ok();
  }
  const auto shape = ParseShape(row[kShapeText]);
  const auto elements = shape ? Elements(*shape) : std::nullopt;
  if (!elements)
    return lines.Bad("shape '" + row[kShapeText] + "'",
                     "sizes such as (2,3) or 2x3, of fewer than 2^62 elements");
  o.layout.shape = *shape;
  o.stats.numel = *elements;
  STATCOLLECT_RETURN_IF_ERROR(RowReader(row, lines, tally, &o).Read());
  return take(std::move(o));
}

}  // namespace

std::optional<RawCannFile> ParseRawCannName(std::string_view file) {
  if (!file.ends_with(".csv")) return std::nullopt;
  file.remove_suffix(4);
  std::array<std::uint64_t, 3> numbers{};  // from the back: timestamp, stream, task
  for (std::uint64_t& number : numbers) {
    const std::size_t dot = file.rfind('.');
    const auto parsed =
        dot == std::string_view::npos ? std::nullopt : ParseUnsigned(file.substr(dot + 1));
    if (!parsed) return std::nullopt;
    number = *parsed;
    file = file.substr(0, dot);
  }
  const std::size_t dot = file.find('.');
  if (dot == std::string_view::npos || dot == 0 || dot + 1 == file.size()) return std::nullopt;
  return RawCannFile{.op_type = std::string(file.substr(0, dot)),
                     .op_name = std::string(file.substr(dot + 1)),
                     .task = numbers[2],
                     .stream = numbers[1],
                     .timestamp = numbers[0]};
}

bool SplitCsv(std::string_view line, std::vector<std::string>* cells) {
  cells->assign(1, "");
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"') {
      cells->back() += line[++i];
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      if (cells->size() == kCellsMax) return false;
      cells->emplace_back();
    } else {
      cells->back() += c;
    }
  }
  return !quoted;
}

Status ReadMindSporeCsv(LineReader& lines, const RawCannFile* raw, Tally* tally,
                        const TakeRow& take) {
  std::string_view line;
  auto more = lines.Next(&line);
  if (!more.ok()) return more.status();
  if (!*more) return BadInput(lines.path(), 1, "nothing", kHeaderForm);
  if (line.starts_with("\xef\xbb\xbf")) line.remove_prefix(3);
  const auto header = ParseHeader(line, raw != nullptr, lines);
  if (!header.ok()) return header.status();
  while (true) {
    more = lines.Next(&line);
    if (!more.ok() || !*more) return more.status();
    if (!Trimmed(line, kBlanks).empty())
      STATCOLLECT_RETURN_IF_ERROR(ReadRow(*header, line, raw, lines, tally, take));
  }
}

}  // namespace statcollect::client::formats
