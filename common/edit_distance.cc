#include "common/edit_distance.h"

#include <algorithm>
#include <numeric>

namespace statcollect {

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

std::string NearestName(std::string_view wanted, const std::vector<std::string>& names) {
  constexpr std::size_t kLongest = 200;  // bounds the work for pasted text
  if (wanted.empty() || wanted.size() > kLongest) return {};
  const std::string* nearest = nullptr;
  std::size_t least = std::max<std::size_t>(2, wanted.size() / 3) + 1;
  for (const std::string& name : names) {
    const std::size_t distance = name.starts_with(wanted) ? 0 : EditDistance(wanted, name);
    if (distance >= least || distance >= name.size()) continue;
    least = distance;
    nearest = &name;
  }
  return nearest == nullptr ? std::string() : *nearest;
}

}  // namespace statcollect
