#include "server/query/settings/source.h"

#include "common/names.h"

namespace statcollect::query {
namespace {

// As statctl names the launches of a golden that it loads.
constexpr std::string_view kGoldenLaunch = "golden-", kGoldenHost = "golden";

const SessionInfo* NewestOf(const RunView& view) {
  const auto& ranks = view.ranks(view.attempts().size() - 1);
  return ranks.empty() ? nullptr : &ranks.begin()->second.info;
}

}  // namespace

std::string ToolOf(const RunView& view) {
  const SessionInfo* const info = NewestOf(view);
  if (info == nullptr) return {};
  const auto format = info->config.find("import.format");
  return format == info->config.end() ? std::string() : Printable(format->second);
}

std::string_view SourceOf(const RunView& view) {
  if (!ToolOf(view).empty()) return "import";
  const SessionInfo* const info = NewestOf(view);
  const bool golden =
      info != nullptr && info->host == kGoldenHost && info->launch.starts_with(kGoldenLaunch);
  return golden ? "golden" : "agent";
}

}  // namespace statcollect::query
