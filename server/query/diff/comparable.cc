#include "server/query/diff/report_parts.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "server/query/settings/setting_area.h"
#include "server/query/suggest.h"

namespace statcollect::query {
namespace {

constexpr char kTheSame[] = "the same";

PremiseCheck CheckKeys(Premise premise, const std::vector<std::string>& keys, const char* one,
                       const char* several) {
  if (keys.empty()) return {premise, true, kTheSame};
  return {premise, false,
          std::to_string(keys.size()) + (keys.size() == 1 ? one : several) + ": " + SomeOf(keys)};
}

}  // namespace

PremiseCheck CheckTensors(const DiffReport& report, std::size_t both, std::size_t losses) {
  const auto& [only_a, only_b] = report.unmatched;
  std::string detail =
      std::to_string(both) + (losses == 0   ? std::string()
                              : losses == 1 ? " and 1 loss"
                                            : " and " + std::to_string(losses) + " losses");
  detail += " in both" + OnlyIn(report.run_a, only_a) + OnlyIn(report.run_b, only_b);
  return {Premise::kTensors, only_a.empty() && only_b.empty(), std::move(detail)};
}

PremiseCheck CheckGiven(Premise premise, const GivenPairs& pairs, std::uint64_t step) {
  const std::string at = " in step " + std::to_string(step);
  if (pairs.seen == 0) return {premise, false, "none compared" + at + ", so they may differ there"};
  const std::string all = std::to_string(pairs.seen);
  if (pairs.differ > 0)
    return {premise, false, std::to_string(pairs.differ) + " of " + all + " differ" + at};
  if (pairs.unproven == 0) return {premise, true, "equal" + at + " (" + all + ")"};
  return {premise, false,
          std::to_string(pairs.unproven) + " of " + all + " agree within their tolerance" + at +
              "; without content hashes of both runs it is not known whether they are equal"};
}

PremiseCheck CheckDTypes(const Tally& tally, std::size_t other, std::size_t both) {
  if (other == 0 || !tally.other_dtypes) return {Premise::kDTypes, true, kTheSame};
  const auto& [a, b] = *tally.other_dtypes;
  return {Premise::kDTypes, false,
          "others at " + std::to_string(other) + " of " + std::to_string(both) + " tensors (" +
              std::string(Name(a)) + " and " + std::string(Name(b)) + ")"};
}

void CheckSettings(const RecordedConfigs& configs, DiffReport& report) {
  auto& checks = report.comparable;
  for (const std::string& left_out : configs.notes)
    checks.push_back({Premise::kSettings, false, left_out});
  std::vector<std::string> recording, others;
  for (const ConfigDifference& difference : report.inputs.config) {
    const bool of_recording = difference.key.starts_with("recording.");
    if (of_recording) recording.push_back(difference.key);
    if (!of_recording && MayChangeNumbers(difference.key)) others.push_back(difference.key);
  }
  const auto says = [&](Premise premise) {
    return std::any_of(checks.begin(), checks.end(),
                       [&](const PremiseCheck& check) { return check.premise == premise; });
  };
  if (!says(Premise::kRecording))
    checks.push_back(CheckKeys(Premise::kRecording, recording, " setting of it differs",
                               " settings of it differ"));
  if (!others.empty() || !says(Premise::kSettings))
    checks.push_back(CheckKeys(Premise::kSettings, others, " that may change numbers differs",
                               " that may change numbers differ"));
  std::stable_sort(checks.begin(), checks.end(), [](const PremiseCheck& x, const PremiseCheck& y) {
    return x.premise < y.premise;
  });
}

}  // namespace statcollect::query
