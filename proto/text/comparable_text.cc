#include "proto/text/comparable_text.h"

#include <fmt/format.h>

#include "common/names.h"

namespace statcollect {
namespace {

constexpr std::size_t kDetailMax = 1000;
constexpr char kTheSame[] = "the same";

}  // namespace

std::vector<std::string> ComparableLines(
    const google::protobuf::RepeatedPtrField<v1::PremiseCheck>& checks) {
  std::string holds, same;
  std::vector<std::string> lines;
  for (const v1::PremiseCheck& check : checks) {
    const std::string name = Printable(check.check());
    const std::string detail = Printable(check.detail(), kDetailMax);
    if (!check.ok()) {
      lines.push_back(fmt::format("! {}: {}", name, detail));
    } else if (detail == kTheSame) {
      same += (same.empty() ? "" : ", ") + name;
    } else {
      holds += fmt::format("{}{} {}", holds.empty() ? "" : "; ", name, detail);
    }
  }
  if (!same.empty()) holds += fmt::format("{}{} {}", holds.empty() ? "" : "; ", same, kTheSame);
  if (!holds.empty()) lines.insert(lines.begin(), "comparable in: " + holds);
  return lines;
}

}  // namespace statcollect
