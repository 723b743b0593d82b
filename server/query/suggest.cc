#include "server/query/suggest.h"

#include <algorithm>
#include <numeric>

#include "common/names.h"

namespace statcollect::query {

std::size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t change = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({change, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

std::string Suggest(std::string_view wanted, std::vector<std::string> names, std::size_t count) {
  if (names.empty()) return "none";
  constexpr std::size_t kComparedMax = 5000;  // bounds the work for a model of very many modules
  std::vector<std::pair<std::size_t, std::string>> ranked;
  for (std::string& name : names) {
    std::size_t distance =
        name.find(wanted) != std::string::npos && !wanted.empty() ? 1 : wanted.size() + name.size();
    if (distance > 1 && ranked.size() < kComparedMax) distance = EditDistance(wanted, name);
    ranked.emplace_back(distance, std::move(name));
  }
  std::sort(ranked.begin(), ranked.end());
  std::string text;
  for (std::size_t i = 0; i < ranked.size() && i < count; ++i)
    text += (i > 0 ? ", " : "") + Printable(ranked[i].second);
  if (ranked.size() > count) text += ", and " + std::to_string(ranked.size() - count) + " more";
  return text;
}

}  // namespace statcollect::query
