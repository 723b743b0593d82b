#include "common/capture_spec.h"

#include <algorithm>
#include <utility>

#include "common/choice.h"
#include "common/names.h"
#include "common/parse.h"
#include "common/pattern.h"
#include "common/shape.h"
#include "common/text.h"

namespace statcollect {
namespace {

Status Invalid(const std::string& what, std::string_view found, const std::string& expected) {
  return {Code::kInvalidArgument,
          "capture: " + what + " is '" + Printable(found) + "'; expected " + expected};
}

template <typename T>
Status ReadNumber(const std::string& name, std::string_view text, T* number) {
  const auto parsed = ParseNumber<T>(text);
  if (!parsed) return Invalid(name, text, "a whole number from 0");
  *number = *parsed;
  return Status::Ok();
}

// "key=value,key=value" as arguments; each key once, and known.
Status ReadOptions(std::string_view text, std::map<std::string, std::string>* arguments) {
  constexpr std::string_view kKeys[] = {"kind", "path", "micro_batch", "call", "mode", "bytes_max"};
  while (true) {
    const std::string_view part = text.substr(0, text.find(','));
    const std::size_t equals = part.find('=');
    const std::string_view key = part.substr(0, equals);
    if (std::find(std::begin(kKeys), std::end(kKeys), key) == std::end(kKeys))
      return {Code::kInvalidArgument,
              "capture: option: " + NotOneOf(key, {std::begin(kKeys), std::end(kKeys)})};
    if (equals == std::string_view::npos)
      return Invalid("an option", part, std::string(key) + "= with a value");
    if (!arguments->emplace(key, part.substr(equals + 1)).second)
      return Invalid("an option", part, "each at most once");
    if (part.size() == text.size()) return Status::Ok();
    text.remove_prefix(part.size() + 1);
  }
}

}  // namespace

bool CaptureSpec::Matches(const TensorKey& key) const {
  const bool kind_fits = kind ? key.kind == *kind
                              : key.kind == Kind::kOutput || key.kind == Kind::kInspect ||
                                    key.kind == Kind::kWeight || key.kind == Kind::kBatch;
  return kind_fits && key.micro_batch == micro_batch && key.call == call && key.mode == mode &&
         (pattern ? MatchesPattern(activation, key.name) : key.name == activation) &&
         (!output_path || key.output_path == *output_path);
}

std::string CaptureSpec::Describe() const {
  std::string details;
  const auto add = [&](const std::string& detail) {
    details += (details.empty() ? "" : ", ") + detail;
  };
  if (kind) add(std::string(Name(*kind)));
  if (output_path) add("path '" + Printable(*output_path) + "'");
  if (micro_batch != 0) add("micro-batch " + std::to_string(micro_batch));
  if (call != 0) add("call " + std::to_string(call));
  if (mode != Mode::kTrain) add(std::string(Name(mode)));
  return Printable(activation) + (details.empty() ? "" : " (" + details + ")");
}

std::map<std::string, std::string> CaptureSpec::ToArguments() const {
  std::map<std::string, std::string> arguments = {{"activation", activation},
                                                  {"steps", steps_text},
                                                  {"micro_batch", std::to_string(micro_batch)},
                                                  {"call", std::to_string(call)},
                                                  {"mode", std::string(Name(mode))},
                                                  {"bytes_max", std::to_string(bytes_max)}};
  if (pattern) arguments["pattern"] = "1";
  if (kind) arguments["kind"] = Name(*kind);
  if (output_path) arguments["path"] = *output_path;
  return arguments;
}

Result<CaptureSpec> CaptureSpec::FromArguments(
    const std::map<std::string, std::string>& arguments) {
  const auto find = [&](const char* name) -> const std::string* {
    const auto found = arguments.find(name);
    return found == arguments.end() ? nullptr : &found->second;
  };
  CaptureSpec spec;
  if (const auto* name = find("activation")) spec.activation = *name;
  if (Status valid = ValidateTensorName("activation", spec.activation); !valid.ok())
    return Status(valid.code(), "capture: " + valid.message());
  if (const auto* pattern = find("pattern")) spec.pattern = *pattern == "1";
  if (const auto* kind = find("kind")) {
    spec.kind = ParseKind(*kind);
    if (!spec.kind || *spec.kind == Kind::kUnspecified)
      return Status(Code::kInvalidArgument, "capture: kind: " + NotAKind(*kind));
  }
  if (const auto* path = find("path")) {
    if (!path->empty()) STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("output path", *path));
    spec.output_path = *path;
  }
  if (const auto* text = find("micro_batch"))
    STATCOLLECT_RETURN_IF_ERROR(ReadNumber("micro_batch", *text, &spec.micro_batch));
  if (const auto* text = find("call"))
    STATCOLLECT_RETURN_IF_ERROR(ReadNumber("call", *text, &spec.call));
  if (const auto* text = find("mode")) {
    const auto mode = ParseMode(*text);
    if (!mode)
      return Status(Code::kInvalidArgument,
                    "capture: mode: " + NotOneOf(*text, {"train", "eval", "init"}));
    spec.mode = *mode;
  }
  if (const auto* text = find("bytes_max"))
    STATCOLLECT_RETURN_IF_ERROR(ReadNumber("bytes_max", *text, &spec.bytes_max));
  if (spec.bytes_max < 1 || spec.bytes_max > kCaptureBytesMax) {
    return Invalid("bytes_max", std::to_string(spec.bytes_max),
                   "1.." + std::to_string(kCaptureBytesMax) + " bytes");
  }
  if (const auto* text = find("steps")) spec.steps_text = *text;
  if (Trimmed(spec.steps_text).empty())
    return Invalid("the step", "", "one, such as 3, or several, such as 3-5,9");
  auto steps = StepSet::Parse(spec.steps_text);
  if (!steps.ok()) return Status(steps.status().code(), "capture: " + steps.status().message());
  spec.steps = *std::move(steps);
  return spec;
}

Result<CaptureSpec> CaptureSpec::Parse(std::string_view text) {
  const std::string_view whole = Trimmed(text);
  const std::size_t at = whole.rfind('@');
  if (at == std::string_view::npos || at == 0) {
    return Invalid("the place", whole, "NAME@STEP, such as blocks.1.ln2@3 or *@0:kind=weight_grad");
  }
  std::map<std::string, std::string> arguments;
  const std::string_view behind = whole.substr(at + 1);
  const std::size_t colon = behind.find(':');
  if (colon != std::string_view::npos)
    STATCOLLECT_RETURN_IF_ERROR(ReadOptions(behind.substr(colon + 1), &arguments));
  arguments["activation"] = whole.substr(0, at);
  if (IsPattern(arguments["activation"])) arguments["pattern"] = "1";
  arguments["steps"] = behind.substr(0, colon);
  return FromArguments(arguments);
}

std::string CaptureSpec::ToText() const {
  std::string options;
  const auto add = [&](const std::string& option) {
    options += (options.empty() ? ":" : ",") + option;
  };
  if (kind) add("kind=" + std::string(Name(*kind)));
  if (output_path) add("path=" + *output_path);
  if (micro_batch != 0) add("micro_batch=" + std::to_string(micro_batch));
  if (call != 0) add("call=" + std::to_string(call));
  if (mode != Mode::kTrain) add("mode=" + std::string(Name(mode)));
  if (bytes_max != kCaptureBytesDefault) add("bytes_max=" + std::to_string(bytes_max));
  return activation + "@" + steps_text + options;
}

Result<std::vector<CaptureSpec>> ParseCaptureSpecs(std::string_view text) {
  std::vector<CaptureSpec> specs;
  for (const std::string_view part : PartsOf(text, ';')) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto spec, CaptureSpec::Parse(part));
    if (specs.size() == kCaptureSpecsMax)
      return Invalid("the number of places", "more", "at most " + std::to_string(kCaptureSpecsMax));
    specs.push_back(std::move(spec));
  }
  return specs;
}

std::uint64_t CapturedElements(DType dtype, const std::vector<std::int64_t>& shape,
                               std::uint64_t bytes_max) {
  const std::uint64_t elements = NumelOf(shape);
  const std::uint64_t fit = bytes_max / std::max<std::uint64_t>(DTypeBytes(dtype), 1);
  if (elements <= fit || shape.empty()) return std::min(elements, fit);
  const std::uint64_t row = elements / static_cast<std::uint64_t>(shape.front());
  return row <= fit ? fit / row * row : fit;
}

std::optional<Mode> ParseMode(std::string_view name) {
  for (int i = 1; i < kModeCount; ++i) {
    if (Name(static_cast<Mode>(i)) == name) return static_cast<Mode>(i);
  }
  return std::nullopt;
}

}  // namespace statcollect
