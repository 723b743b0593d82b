// Which differences of two runs the noise of perturbed twins does not explain. docs/verdict.md has
// the rule and its figures.
//
// A twin is the baseline A trained again with noise of a few units in the last place everywhere. To
// first order, the ratio of B's distance from A to a twin's distance from A is, at each record, a
// weighted mean of the ratios of what the record was computed from, whatever lies between. So it is
// at most the largest ratio before it, and a difference that B computes by itself makes it jump. No
// rule knows an architecture, an optimizer or a loss.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_MEASURED_RULE_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_MEASURED_RULE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/query/pairs/tensor_pair.h"
#include "server/query/verdict/explain.h"
#include "server/query/verdict/jumps.h"
#include "server/query/verdict/kernels.h"
#include "server/query/verdict/noise_meter.h"
#include "server/query/verdict/running_means.h"
#include "server/query/verdict/sum_lengths.h"

namespace statcollect::query {

// What has been seen before a record. Merged, it is that of several ranks.
struct SeenBefore {
  std::vector<double> ratios;  // the largest, by scale of the twins
  bool lost = false;           // something that is noise alone differs
  bool same_bits = true;       // in the step so far, and in all earlier ones
  double largest = 1;          // elements of the step's largest tensor

  void Merge(const SeenBefore& other);
};

// What one rank has seen in a step. Reduced gradients, and whatever else ranks exchange, are
// computed from the records of all of them.
struct RankTrail {
  std::size_t tensors = 0;  // a hash of their keys: ranks with equal ones run the same program
  SeenBefore start;
  std::vector<SeenBefore> groups;  // before each group of records that are computed at once
  SeenBefore passes;               // before the gradients of weights
};

// Judges one rank. Steps must ascend; remembers weights, and the smallest noise of each tensor. Not
// thread-safe. Cost: about a microsecond for each pair and twin. Memory: 32 sums for each weight,
// run and twin.
class MeasuredRule {
 public:
  // `ulps`: the noise of each twin. Precondition: not empty, ascending, > 0. `convolutions`: the
  // passes in which the runs' settings may choose different algorithms.
  explicit MeasuredRule(std::vector<double> ulps,
                        OtherConvolutions convolutions = OtherConvolutions::kNone);

  // Names of tensors must outlive this; those of losses, which are read with each step, need not.
  // `others`: the trails of other ranks in the step.
  JudgedStep Judge(const MeasuredStep& step, std::span<const RankTrail* const> others = {});
  // Takes a step without judging it.
  RankTrail Follow(const MeasuredStep& step);
  // The jump that is the root: the first one; of those computed at once, the largest. `jumps`:
  // those of a step, not empty.
  std::size_t ChooseJump(std::span<const Jump> jumps) const;

  // Whether any twin has ever differed from A.
  bool noise_arrived() const { return meter_.noise_arrived(); }

 private:
  std::vector<MeasuredRecord> Measure(const MeasuredStep& step);
  void NoteOwnInputs(const TensorPair& pair, MeasuredRecord& record);
  static double JudgedNorm(const TensorPair& pair, const MeasuredRecord& record);
  double LeastNoise(const TensorPair& pair, const MeasuredRecord& record);
  bool HasRareEvents(const MeasuredRecord& record) const;
  double Expected(const TensorPair& pair, const MeasuredRecord& record, const SeenBefore& before,
                  double least) const;
  static double RoundingOfLoss(const MeasuredRecord& record, double terms);
  double Excess(const TensorPair& pair, const MeasuredRecord& record, double expected,
                const SeenBefore& before) const;
  // The excess of each record over its threshold.
  struct Judged {
    std::vector<double> excess, expected;
    std::vector<char> first;      // nothing before it differs
    std::vector<char> same_bits;  // everything before it has equal bits
  };
  // `outputs_count`: whether outputs that exceed their threshold explain what follows.
  Judged JudgeRecords(std::span<const MeasuredRecord> records, const MeasuredStep& step,
                      std::span<const RankTrail* const> others, bool outputs_count);
  SeenBefore SeenAtStart() const;
  static void Add(const MeasuredRecord& record, const TensorPair& pair, bool ratio_counts,
                  SeenBefore& seen);
  std::vector<std::size_t> WithoutEffect(std::span<const MeasuredRecord> records,
                                         const MeasuredStep& step,
                                         std::span<const RankTrail* const> others,
                                         const Judged& judged);
  void FindFirst(std::span<const MeasuredRecord> records, const MeasuredStep& step,
                 Judged& judged) const;
  void Remember(std::span<const MeasuredRecord> records, const MeasuredStep& step);
  static Explained Describe(const TensorPair& pair, const MeasuredRecord& record, double expected);
  static Confidence ConfidenceOf(const Jump& jump, const MeasuredRecord& record, double excess,
                                 std::uint64_t numel, bool first);
  static Jump JumpAt(std::size_t index, const MeasuredRecord& record, const Explained& one,
                     double excess);

  NoiseMeter meter_;
  const OtherConvolutions convolutions_;
  SumLengths lengths_;
  RunningMeans means_;
  std::uint64_t steps_ = 0;      // judged
  struct Left {                  // by the step before, in this place
    bool agrees = true;          // equal bits in B
    std::vector<double> ratios;  // by scale
  };
  std::map<TensorIdentity, Left> left_;
  std::unordered_map<std::string_view, bool> gradients_agree_;  // of the step at hand
  struct Least {
    double noise =
        0;  // the smallest relative one of a unit in the last place; infinite: none was measured
    std::uint64_t since = 0;  // the first step that has the tensor
  };
  std::set<std::string> losses_;  // names, which `least_` points to
  std::map<TensorIdentity, Least> least_;
  bool any_difference_ = false;
  std::vector<std::uint32_t> groups_;  // of the step at hand, by pair
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_MEASURED_RULE_H_
