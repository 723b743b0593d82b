#include "server/query/loss_names.h"

#include <algorithm>
#include <cctype>

namespace statcollect::query {

bool IsLoss(std::string_view name) {
  constexpr std::string_view kLoss = "loss";
  if (name.size() < kLoss.size()) return false;
  const std::string_view end = name.substr(name.size() - kLoss.size());
  return std::equal(end.begin(), end.end(), kLoss.begin(),
                    [](unsigned char c, char l) { return std::tolower(c) == l; });
}

}  // namespace statcollect::query
