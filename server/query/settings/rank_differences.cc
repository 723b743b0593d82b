#include "server/query/settings/rank_differences.h"

#include <cstdint>
#include <map>

#include "common/names.h"
#include "common/text.h"
#include "server/query/settings/config_diff.h"
#include "server/query/settings/dotted.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kDifferencesMax = 20;
constexpr std::size_t kValueBytesMax = 60;

std::string Shown(const std::string& value) { return Printable(value, kValueBytesMax); }

// Differs from rank to rank by its nature.
bool IsOfTheRank(const std::string& key) {
  if (key.starts_with("random.")) return true;
  const auto words = WordsOf(key);
  static constexpr std::string_view kOwn[] = {"rank",   "pid",  "host",     "hostname", "visible",
                                              "device", "port", "platform", "node"};
  return HasAny(words, kOwn);
}

}  // namespace

std::vector<std::string> DifferencesBetweenRanks(const RunView& view) {
  const auto& ranks = view.ranks(view.attempts().size() - 1);
  std::map<std::string, std::map<std::string, std::vector<std::uint32_t>>> holders;  // key, value
  for (const auto& [rank, meta] : ranks) {
    for (const auto& [key, value] : meta.info.config) {
      if (!IsVolatileSetting(key) && !IsOfTheRank(key)) holders[key][value].push_back(rank);
    }
  }
  std::vector<std::string> sentences;
  std::size_t more = 0;
  for (auto& [key, values] : holders) {
    std::vector<std::uint32_t> without;
    for (const auto& [rank, meta] : ranks) {
      if (!meta.info.config.contains(key)) without.push_back(rank);
    }
    if (values.size() + (without.empty() ? 0 : 1) < 2) continue;
    if (sentences.size() == kDifferencesMax) {
      ++more;
      continue;
    }
    std::string sentence = Shown(key) + " is ";
    std::size_t said = 0;
    for (const auto& [value, who] : values) {
      if (said++ > 0) sentence += ", ";
      sentence += "'" + Shown(value) + "' on " + RanksNamed("rank", who);
      if (said == 3 && values.size() > 3) {
        sentence += ", and " + std::to_string(values.size() - 3) + " more elsewhere";
        break;
      }
    }
    if (!without.empty()) sentence += ", not set on " + RanksText(without);
    sentences.push_back(sentence);
  }
  if (more > 0) sentences.push_back("ranks differ in " + std::to_string(more) + " more settings");
  return sentences;
}

}  // namespace statcollect::query
