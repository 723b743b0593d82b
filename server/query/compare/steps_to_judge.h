// Selects the steps of each rank that are judged tensor by tensor: the first that differ, and those
// in which some tensor's distance rose far more than before. Computed while a diff scans, at about
// a nanosecond per pair.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_STEPS_TO_JUDGE_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_STEPS_TO_JUDGE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

namespace statcollect::query {

// Distances of one rank's tensors in one step, by A's ids; 0: equal or not compared.
using Distances = std::vector<float>;

// Largest factor by which a distance rose; at most 1 if none did.
float LargestRise(const Distances& before, const Distances& now);

// Follows one rank over consecutive steps.
class DistanceFollower {
 public:
  // `ids`: more than any id noted in the step. Keeps everything noted before.
  void BeginStep(std::size_t ids);
  // More ids, in the same step.
  void MakeRoom(std::size_t ids) {
    if (now_.size() < ids) now_.resize(ids, 0.0F);
  }
  void Note(std::uint32_t id, float distance) {
    now_[id] = distance;
    differs_ |= distance > 0;
  }
  bool differs() const { return differs_; }  // whether anything differs in this step
  // Since the previous step; 1 in the first.
  float Rise() const;
  const Distances& now() const { return now_; }

 private:
  Distances before_, now_;
  bool differs_ = false, differed_ = false, first_ = true, begun_ = false;
};

// A step's contribution.
struct StepRise {
  bool differs = false;
  std::uint64_t records = 0;  // compared
  float rise = 1;             // within its unit of the scan
  // The distances at the beginning and end of a unit of the scan, if the step differs; used to join
  // units.
  std::shared_ptr<const Distances> first, last;
  bool ends = false;  // last step of its unit
};

class StepsToJudge {
 public:
  // In ascending order of steps. `place`: the rank's position in the plan.
  void Take(std::uint64_t step, std::size_t place, const StepRise& rise);

  bool empty() const { return first_.empty(); }
  // Records of the rank that were compared before its first step that differs.
  std::uint64_t AgreeingBefore(std::size_t place) const;
  // Chosen steps by the rank's position in the plan, for at most kPlacesMax ranks.
  std::map<std::size_t, std::set<std::uint64_t>> Chosen() const;

  static constexpr std::size_t kPlacesMax = 8;
  static constexpr std::size_t kFirstSteps = 4, kRisesMax = 12;

 private:
  struct Rise {
    float factor = 1;
    std::uint64_t step = 0;
    std::size_t place = 0;
    bool operator<(const Rise& other) const { return factor < other.factor; }
  };
  std::map<std::size_t, std::uint64_t>
      agreeing_;  // records before the first differing step, by place
  std::map<std::size_t, std::vector<std::uint64_t>> first_;       // steps that differ, by place
  std::map<std::size_t, std::shared_ptr<const Distances>> last_;  // of the previous unit, by place
  std::multiset<Rise> rises_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_STEPS_TO_JUDGE_H_
