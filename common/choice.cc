#include "common/choice.h"

#include <cstddef>

#include "common/edit_distance.h"
#include "common/names.h"

namespace statcollect {

std::string NotOneOf(std::string_view found, const std::vector<std::string>& expected) {
  std::string text = "found '" + Printable(found, 100) + "'";
  if (const std::string nearest = NearestName(found, expected); !nearest.empty())
    text += " (did you mean '" + nearest + "'?)";
  text += "; expected ";
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (i > 0) text += i + 1 < expected.size() ? ", " : " or ";
    text += expected[i];
  }
  return text;
}

std::string OptionAsPath(const std::string& path) {
  if (!path.starts_with("--")) return {};
  return "found the option '" + Printable(path, 100) + "'; expected a folder; write ./" +
         Printable(path, 100) + " for one of that name";
}

}  // namespace statcollect
