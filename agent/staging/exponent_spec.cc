#include "agent/staging/exponent_spec.h"

#include <algorithm>
#include <utility>

#include "common/names.h"
#include "common/pattern.h"
#include "common/text.h"

namespace statcollect {
namespace {

constexpr std::string_view kKindOption = "kind=";

Status Invalid(std::string_view option, const std::string& what, std::string_view found,
               const std::string& expected) {
  return {Code::kInvalidArgument, std::string(option) + ": " + what + " is '" + Printable(found) +
                                      "'; expected " + expected};
}

// "kind=a,kind=b".
Status ReadKinds(std::string_view option, std::string_view text, std::vector<Kind>* kinds) {
  while (true) {
    const std::string_view part = text.substr(0, text.find(','));
    const std::string_view name = part.substr(std::min(part.size(), kKindOption.size()));
    if (!part.starts_with(kKindOption))
      return Invalid(option, "an option", part,
                     "kind= with a kind of tensor, such as output or weight_grad");
    const auto kind = ParseKind(name);
    if (!kind || *kind == Kind::kUnspecified)
      return {Code::kInvalidArgument, std::string(option) + ": kind: " + NotAKind(name)};
    kinds->push_back(*kind);
    if (part.size() == text.size()) return Status::Ok();
    text.remove_prefix(part.size() + 1);
  }
}

}  // namespace

bool ExponentSpec::Matches(const TensorKey& key) const {
  return (kinds.empty() || std::find(kinds.begin(), kinds.end(), key.kind) != kinds.end()) &&
         MatchesPattern(pattern, key.name);
}

Result<ExponentSpec> ExponentSpec::Parse(std::string_view text, std::string_view option) {
  const std::string_view whole = Trimmed(text);
  const std::size_t at = whole.rfind('@');
  // Without steps a name may have a colon of its own.
  const std::size_t colon = at == std::string_view::npos
                                ? whole.find(":" + std::string(kKindOption))
                                : whole.find(':', at);
  const std::size_t name_end = std::min({at, colon, whole.size()});
  ExponentSpec spec;
  spec.pattern = whole.substr(0, name_end);
  if (!ValidateTensorName("pattern", spec.pattern).ok())
    return Invalid(option, "the pattern", whole,
                   "NAME@STEPS, such as *@0-,every=100 or *.fc1@0-99:kind=weight_grad");
  if (colon != std::string_view::npos)
    STATCOLLECT_RETURN_IF_ERROR(ReadKinds(option, whole.substr(colon + 1), &spec.kinds));
  if (at == std::string_view::npos) return spec;
  const std::string_view steps_text =
      Trimmed(whole.substr(at + 1, std::min(colon, whole.size()) - at - 1));
  if (steps_text.empty())
    return Invalid(option, "the steps", whole, "such as *@0-99 or *@0-,every=100");
  auto steps = StepSet::Parse(steps_text);
  if (!steps.ok())
    return Status(steps.status().code(), std::string(option) + ": " + steps.status().message());
  spec.steps = *std::move(steps);
  return spec;
}

Result<std::vector<ExponentSpec>> ParseExponentSpecs(std::string_view text,
                                                     std::string_view option) {
  std::vector<ExponentSpec> specs;
  for (const std::string_view part : PartsOf(text, ';')) {
    auto spec = ExponentSpec::Parse(part, option);
    if (!spec.ok()) return spec.status();
    if (specs.size() == kExponentSpecsMax)
      return Invalid(option, "the number of patterns", "more",
                     "at most " + std::to_string(kExponentSpecsMax));
    specs.push_back(*std::move(spec));
  }
  return specs;
}

}  // namespace statcollect
