// Which steps of which ranks are worth judging tensor by tensor: the first ones that differ, and those in
// which some tensor's distance rose far more than it had before. Found while a diff scans, at about a
// nanosecond a pair.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_STEPS_TO_JUDGE_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_STEPS_TO_JUDGE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

namespace statcollect::query {

// Distances of one rank's tensors in one step, by A's ids; 0: equal, or not compared.
using Distances = std::vector<float>;

// Largest factor by which a distance rose; 1 or less if none did.
float LargestRise(const Distances& before, const Distances& now);

// Follows one rank over consecutive steps.
class DistanceFollower {
 public:
  // `ids`: at least as many as any id that is noted in the step. Nothing noted before is lost.
  void BeginStep(std::size_t ids);
  void Note(std::uint32_t id, float distance) {
    now_[id] = distance;
    differs_ |= distance > 0;
  }
  bool differs() const { return differs_; }  // anything in this step
  // Since the step before; 1 in the first.
  float Rise() const;
  const Distances& now() const { return now_; }

 private:
  Distances before_, now_;
  bool differs_ = false, differed_ = false, first_ = true, begun_ = false;
};

// What a step of a rank contributes.
struct StepRise {
  bool differs = false;
  std::uint64_t records = 0;  // compared
  float rise = 1;             // within its unit of the scan
  // Where a unit of the scan begins and ends, if the step differs: to be joined with its neighbours.
  std::shared_ptr<const Distances> first, last;
  bool ends = false;  // its unit
};

class StepsToJudge {
 public:
  // In ascending order of steps. `place`: of the rank in the plan.
  void Take(std::uint64_t step, std::size_t place, const StepRise& rise);

  bool empty() const { return first_.empty(); }
  // Records of the rank that were compared before the first of its steps that differs.
  std::uint64_t AgreeingBefore(std::size_t place) const;
  // Steps, by rank's place in the plan: at most kPlacesMax places.
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
  std::map<std::size_t, std::uint64_t> agreeing_;            // records before the first of these, by place
  std::map<std::size_t, std::vector<std::uint64_t>> first_;  // steps that differ, by place
  std::map<std::size_t, std::shared_ptr<const Distances>> last_;  // of the unit before, by place
  std::multiset<Rise> rises_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_STEPS_TO_JUDGE_H_
