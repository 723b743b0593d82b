#include "server/query/suggest.h"

#include <algorithm>

#include "common/edit_distance.h"
#include "common/names.h"

namespace statcollect::query {

std::string Suggest(std::string_view wanted, std::vector<std::string> names, std::size_t count) {
  if (names.empty()) return "none";
  std::size_t left =
      100'000'000;  // of comparisons of two bytes: bounds the work for very many or very long names
  std::vector<std::pair<std::size_t, std::string>> ranked;
  for (std::string& name : names) {
    std::size_t distance =
        name.find(wanted) != std::string::npos && !wanted.empty() ? 1 : wanted.size() + name.size();
    const std::size_t cost = wanted.size() * name.size();
    if (distance > 1 && cost <= left) {
      left -= cost;
      distance = EditDistance(wanted, name);
    }
    ranked.emplace_back(distance, std::move(name));
  }
  std::sort(ranked.begin(), ranked.end());
  std::string text;
  for (std::size_t i = 0; i < ranked.size() && i < count; ++i)
    text += (i > 0 ? ", " : "") + Printable(ranked[i].second);
  if (ranked.size() > count) text += ", and " + std::to_string(ranked.size() - count) + " more";
  return text;
}

std::string SomeOf(const std::vector<std::string>& names) {
  constexpr std::size_t kNamed = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kNamed); ++i)
    text += (i == 0 ? "" : ", ") + Printable(names[i]);
  return text + (names.size() > kNamed ? ", ..." : "");
}

std::string OnlyIn(const std::string& run, const std::vector<std::string>& names) {
  if (names.empty()) return {};
  return ", " + std::to_string(names.size()) + " only in " + run + " (" + SomeOf(names) + ")";
}

}  // namespace statcollect::query
