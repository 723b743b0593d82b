#include "server/query/diff/lone_tensors.h"

#include <algorithm>

#include "server/query/compare/step_order.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kInCommon =
    3;  // one of so many tensors of the smaller model makes them comparable

std::set<std::string> LabelsOfPairs(const Aligner& aligner) {
  std::set<std::string> labels;
  for (const Aligner::Entry& entry : aligner.all()) {
    for (const TensorDef& def : entry.alignment->a().activations) {
      if (def.key.kind != Kind::kBatch && entry.alignment->HasA(def.id, Alignment::kCompared))
        labels.insert(Label(def.key));
    }
  }
  return labels;
}

}  // namespace

void LoneTensors::Add(const MissingRecord& missing) {
  if (missing.placed.row.kind != Kind::kBatch) (missing.in_a ? of_b_ : of_a_).insert(missing.label);
}

std::string LoneTensors::WhyOtherModels(const Aligner& aligner, const std::string& run_a,
                                        const std::string& run_b) const {
  const std::size_t alone = std::min(of_a_.size(), of_b_.size());
  if (alone == 0) return {};
  const std::size_t paired = LabelsOfPairs(aligner).size();
  if (paired * kInCommon >= paired + alone) return {};
  const std::string how_many = paired == 0 ? "none has a counterpart"
                               : paired == 1
                                   ? "only one has a counterpart"
                                   : "only " + std::to_string(paired) + " have a counterpart";
  return "they are different models: of " + std::to_string(of_a_.size() + paired) + " tensors of " +
         run_a + " and " + std::to_string(of_b_.size() + paired) + " of " + run_b + ", " +
         how_many +
         " in the other run; if it is one model under other names, compare with --map (statctl map "
         "propose " +
         run_a + " " + run_b + " finds one)";
}

}  // namespace statcollect::query
