#include "client/formats/json_reader.h"

#include <utility>

#include <rapidjson/error/en.h>
#include <rapidjson/reader.h>

#include "common/names.h"
#include "common/parse.h"

namespace statcollect::client::formats {
namespace {

constexpr std::size_t kStreamBytes = std::size_t{256} << 10;
// Numbers come as their text: RapidJSON 1.1 has undefined behaviour in one of many zeros.
constexpr unsigned kParseFlags = rapidjson::kParseIterativeFlag | rapidjson::kParseNanAndInfFlag |
                                 rapidjson::kParseValidateEncodingFlag |
                                 rapidjson::kParseNumbersAsStringsFlag;

// Of the text of a JSON number, or of NaN or an infinity, whose exponent RapidJSON has found small
// enough for a double.
double NumberOf(std::string_view text) {
  if (const auto number = ParseNumber<double>(text)) return *number;
  // Too near to zero, or too large by its digits, which a wider type tells apart; what that cannot
  // hold either is near zero.
  return static_cast<double>(ParseNumber<long double>(text).value_or(0));
}

// RapidJSON's stream over a source; counts lines. A value (or the space between two) of more than
// kJsonValueBytesMax ends the stream, because RapidJSON would hold a whole string in memory before
// it reports it.
class JsonStream {
 public:
  using Ch = char;
  explicit JsonStream(ByteSource& source) : source_(source), buffer_(kStreamBytes, '\0') {
    if (Peek() == '\xef') Skip("\xef\xbb\xbf");
  }

  char Peek() const { return at_ < end_ || Fill() ? buffer_[at_] : '\0'; }
  char Take() {
    const char c = Peek();
    if (at_ == end_) return '\0';
    ++at_;
    line_ += c == '\n' ? 1 : 0;
    if (++value_bytes_ > kJsonValueBytesMax) End(Status(Code::kInvalidArgument, "long"));
    return c;
  }
  std::size_t Tell() const { return static_cast<std::size_t>(before_ + at_); }
  char* PutBegin() { return nullptr; }
  void Put(char) {}
  void Flush() {}
  std::size_t PutEnd(char*) { return 0; }

  void BeginValue() { value_bytes_ = 0; }
  std::uint64_t line() const { return line_; }
  bool too_long() const { return value_bytes_ > kJsonValueBytesMax; }
  bool at_end() const { return !(at_ < end_ || Fill()); }
  // OK, or why reading failed.
  const Status& status() const { return status_; }

 private:
  bool Fill() const {
    if (ended_) return false;
    const auto got = source_.Read(buffer_.data(), buffer_.size());
    if (!got.ok()) status_ = got.status();
    before_ += end_;
    at_ = 0;
    end_ = got.ok() ? *got : 0;
    ended_ = end_ == 0;
    return !ended_;
  }
  void Skip(std::string_view prefix) {
    for (std::size_t i = 0; i < prefix.size() && Peek() == prefix[i]; ++i) Take();
  }
  void End(const Status&) {
    ended_ = true;
    at_ = end_;
  }

  ByteSource& source_;
  mutable std::string buffer_;
  mutable std::size_t at_ = 0, end_ = 0;
  mutable std::uint64_t before_ = 0;
  mutable bool ended_ = false;
  mutable Status status_;
  std::uint64_t line_ = 1;
  std::size_t value_bytes_ = 0;
};

// RapidJSON's events, with a limited depth.
class JsonEvents {
 public:
  using Ch = char;
  using Size = rapidjson::SizeType;
  JsonEvents(JsonStream& stream, JsonVisitor& visitor) : stream_(stream), visitor_(visitor) {}

  bool Null() { return Value({}); }
  bool Bool(bool b) { return Value({.type = JsonValue::Type::kBool, .number = b ? 1.0 : 0.0}); }
  bool RawNumber(const char* text, Size size, bool) {
    const std::string_view number(text, size);
    return Value({.type = JsonValue::Type::kNumber,
                  .number = NumberOf(number),
                  .integer = number.find_first_not_of("-0123456789") == number.npos,
                  .text = number});
  }
  bool Int(int) { return false; }
  bool Uint(unsigned) { return false; }
  bool Int64(std::int64_t) { return false; }
  bool Uint64(std::uint64_t) { return false; }
  bool Double(double) { return false; }
  bool String(const char* text, Size size, bool) {
    return Value({.type = JsonValue::Type::kString, .text = std::string_view(text, size)});
  }
  bool StartObject() { return Begin(true); }
  bool Key(const char* text, Size size, bool) {
    return Keep(visitor_.OnKey(std::string_view(text, size)));
  }
  bool EndObject(Size) { return End(); }
  bool StartArray() { return Begin(false); }
  bool EndArray(Size) { return End(); }

  const Status& status() const { return status_; }
  bool too_deep() const { return depth_ > kJsonDepthMax; }

 private:
  bool Value(const JsonValue& value) { return Keep(visitor_.OnValue(value)); }
  bool Begin(bool object) { return ++depth_ <= kJsonDepthMax && Keep(visitor_.OnBegin(object)); }
  bool End() {
    --depth_;
    return Keep(visitor_.OnEnd());
  }
  bool Keep(Status status) {
    stream_.BeginValue();
    status_ = std::move(status);
    return status_.ok();
  }

  JsonStream& stream_;
  JsonVisitor& visitor_;
  Status status_;
  std::size_t depth_ = 0;
};

}  // namespace

Status ReadJson(ByteSource& file, JsonVisitor& visitor, const std::string& expected) {
  JsonStream stream(file);
  JsonEvents events(stream, visitor);
  const auto bad = [&](const std::string& found, const std::string& wanted) {
    return BadInput(file.path(), stream.line(), found, wanted);
  };
  if (stream.at_end()) return stream.status().ok() ? bad("nothing", expected) : stream.status();
  rapidjson::Reader reader;
  const auto result = reader.Parse<kParseFlags>(stream, events);
  if (!stream.status().ok()) return stream.status();
  if (stream.too_long())
    return bad("a value of more than " + std::to_string(kJsonValueBytesMax) + " bytes",
               "shorter ones");
  if (events.too_deep())
    return bad("more than " + std::to_string(kJsonDepthMax) + " levels", "fewer");
  if (!result.IsError()) return Status::Ok();
  if (!events.status().ok()) return PlacedAt(file.path(), stream.line(), events.status());
  std::string why = rapidjson::GetParseError_En(result.Code());
  return bad(stream.at_end() ? "the end of the file (" + why + ")" : "invalid JSON (" + why + ")",
             expected);
}

Status PlacedAt(const std::string& path, std::uint64_t line, const Status& status) {
  return status.code() == Code::kInvalidArgument && status.message().starts_with("found ")
             ? Status(status.code(),
                      Printable(path, 4000) + ":" + std::to_string(line) + ": " + status.message())
             : status;
}

Status Found(std::string_view found, const std::string& expected) {
  return {Code::kInvalidArgument, "found " + Printable(found, 120) + "; expected " + expected};
}

}  // namespace statcollect::client::formats
