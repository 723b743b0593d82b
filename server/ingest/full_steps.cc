#include "server/ingest/full_steps.h"

#include "common/parse.h"

namespace statcollect {
namespace {

constexpr char kEvent[] = "overhead";

std::optional<FullSteps> Proposed(const EventRecord& event) {
  const auto number = [&](const char* name, std::uint64_t otherwise) {
    const auto found = event.fields.find(name);
    return found == event.fields.end() ? std::optional(otherwise)
                                       : ParseNumber<std::uint64_t>(found->second);
  };
  const auto first = number("first", 0), last = number("last", FullSteps::kNoEnd),
             every = number("every", 0);
  if (!first || !last || !every || *every == 0 || *last < *first) return std::nullopt;
  return FullSteps{.first = *first, .last = *last, .every = *every};
}

}  // namespace

std::vector<FullSteps> ProposedFullSteps(const std::vector<EventRecord>& events) {
  std::vector<FullSteps> proposed;
  for (const EventRecord& event : events) {
    if (event.kind != kEvent || !event.fields.contains("announce")) continue;
    if (const auto steps = Proposed(event)) proposed.push_back(*steps);
  }
  return proposed;
}

}  // namespace statcollect
