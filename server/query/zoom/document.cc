#include "server/query/zoom/document.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "common/parse.h"
#include "common/text.h"

namespace statcollect::query {
namespace {

constexpr std::string_view kZoomEvent = "zoom";
constexpr std::size_t kOperatorFields = 8;  // before the arguments

std::string Field(const EventRecord& event, const std::string& name) {
  const auto found = event.fields.find(name);
  return found == event.fields.end() ? std::string() : found->second;
}

std::uint64_t NumberField(const EventRecord& event, const std::string& name) {
  return ParseNumber<std::uint64_t>(Field(event, name)).value_or(0);
}

// "&3.1" and "&in2" at the beginning of the text, and how long that is.
std::optional<std::pair<ZoomRef, std::size_t>> RefAt(std::string_view text) {
  ZoomRef ref;
  std::size_t at = 1;
  if (text.substr(at).starts_with("in")) {
    ref.of_input = true;
    at += 2;
  }
  const auto number = [&](std::uint32_t& to) {
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), to);
    if (error != std::errc()) return false;
    at = static_cast<std::size_t>(end - text.data());
    return true;
  };
  if (!number(ref.number)) return std::nullopt;
  if (!ref.of_input) {
    if (at >= text.size() || text[at] != '.') return std::nullopt;
    ++at;
    if (!number(ref.result)) return std::nullopt;
  }
  if (at < text.size() && text[at] == ':') ++at;
  return std::pair(ref, at);
}

ZoomArgument ArgumentOf(std::string_view text) {
  const std::size_t equals = text.find('^');
  ZoomArgument argument;
  argument.name = text.substr(0, equals);
  if (equals == std::string_view::npos) return argument;
  text.remove_prefix(equals + 1);
  while (!text.empty()) {
    const auto ref = text[0] == '&' ? RefAt(text) : std::nullopt;
    if (ref) {
      argument.refs.push_back(ref->first);
      text.remove_prefix(ref->second);
    } else {
      argument.value += text[0];
      text.remove_prefix(1);
    }
  }
  return argument;
}

// False: it is not such a line.
bool AddLine(std::string_view line, ZoomDocument& document) {
  const auto fields = AllPartsOf(line, "|");
  if (fields[0] == "out" && fields.size() == 3) {
    const auto ref = fields[2].starts_with('&') ? RefAt(fields[2]) : std::nullopt;
    if (ref) document.outputs.push_back({.label = std::string(fields[1]), .ref = ref->first});
    return ref.has_value();
  }
  const auto number = fields.size() > 1 ? ParseNumber<std::uint32_t>(fields[1]) : std::nullopt;
  if (!number) return false;
  if (fields[0] == "in" && fields.size() == 4) {
    document.inputs.push_back(
        {.number = *number, .label = std::string(fields[2]), .tensor = std::string(fields[3])});
    return true;
  }
  if (fields[0] != "op" || fields.size() < kOperatorFields) return false;
  ZoomOperator made{.number = *number,
                    .name = std::string(fields[2]),
                    .in_place = fields[3].find('i') != std::string_view::npos,
                    .view = fields[3].find('v') != std::string_view::npos,
                    .place = std::string(fields[4]),
                    .function = std::string(fields[5]),
                    .random = std::string(fields[6]),
                    .results = {},
                    .arguments = {}};
  for (const std::string_view result : AllPartsOf(fields[7], ";"))
    made.results.emplace_back(result);
  for (std::size_t i = kOperatorFields; i < fields.size(); ++i)
    made.arguments.push_back(ArgumentOf(fields[i]));
  document.operators.push_back(std::move(made));
  return true;
}

bool IsPiece(const std::string& name) {
  return name.size() == 2 && name.find_first_not_of("0123456789") == std::string::npos;
}

ZoomDocument DocumentOf(std::vector<const EventRecord*> events) {
  std::sort(events.begin(), events.end(), [](const auto* a, const auto* b) {
    return NumberField(*a, "part") < NumberField(*b, "part");
  });
  const EventRecord& first = *events.front();
  ZoomDocument document{
      .module = Field(first, "module"),
      .class_name = Field(first, "class"),
      .pass = Field(first, "phase"),
      .step = first.step,
      .micro_batch = static_cast<std::uint32_t>(NumberField(first, "micro_batch")),
      .call = static_cast<std::uint32_t>(NumberField(first, "call")),
      .left_out = NumberField(first, "left_out"),
      .unreadable = 0,
      .inputs = {},
      .operators = {},
      .outputs = {}};
  const std::uint64_t parts = std::max<std::uint64_t>(1, NumberField(first, "parts"));
  document.unreadable = parts > events.size() ? parts - events.size() : 0;
  for (const EventRecord* event : events) {
    for (const auto& [name, piece] : event->fields) {  // sorted by name
      if (!IsPiece(name)) continue;
      for (const std::string_view line : AllPartsOf(piece, "~"))
        document.unreadable += AddLine(line, document) ? 0 : 1;
    }
  }
  std::stable_sort(document.operators.begin(), document.operators.end(),
                   [](const auto& a, const auto& b) { return a.number < b.number; });
  return document;
}

}  // namespace

std::vector<ZoomDocument> ReadZoomDocuments(std::span<const EventRecord> events) {
  using Key = std::tuple<std::uint64_t, std::string, std::string, std::uint64_t, std::uint64_t>;
  std::map<Key, std::vector<const EventRecord*>> calls;
  for (const EventRecord& event : events) {
    if (event.kind != kZoomEvent || event.from_collector) continue;
    calls[Key(event.step, Field(event, "module"), Field(event, "phase"),
              NumberField(event, "micro_batch"), NumberField(event, "call"))]
        .push_back(&event);
  }
  std::vector<ZoomDocument> documents;
  documents.reserve(calls.size());
  for (auto& [key, parts] : calls) documents.push_back(DocumentOf(std::move(parts)));
  return documents;
}

std::pair<std::string, std::string> RecordedAs(const ZoomDocument& document, const ZoomRef& ref) {
  const std::string number = std::to_string(ref.number);
  const std::string call =
      document.module + "/" + (document.pass == "forward" ? "" : document.pass + " ");
  if (ref.of_input) return {call + "in" + number, "0"};
  const auto found = std::lower_bound(
      document.operators.begin(), document.operators.end(), ref.number,
      [](const ZoomOperator& one, std::uint32_t wanted) { return one.number < wanted; });
  const std::string name = found != document.operators.end() && found->number == ref.number
                               ? found->name
                               : std::string();
  return {call + "#" + number + " " + name, std::to_string(ref.result)};
}

}  // namespace statcollect::query
