// The rules, one file a group. A rule that does not apply returns nothing. docs/causes.md says when
// each applies and with which confidence.
#ifndef STATCOLLECT_SERVER_QUERY_CAUSE_RULES_H_
#define STATCOLLECT_SERVER_QUERY_CAUSE_RULES_H_

#include <optional>
#include <stop_token>
#include <vector>

#include "common/status.h"
#include "server/query/cause/evidence.h"
#include "server/query/reports.h"

namespace statcollect::query::cause {

using Found = std::optional<Cause>;
using Causes = std::vector<Cause>;

// structure.cc
Found FindEvaluationMode(const Evidence& evidence);  // mode
Found FindModuleReplaced(const Evidence& evidence);  // module_replaced
Found FindModelStructure(const Evidence& evidence);  // model_structure
// module_setting.cc
Causes FindModuleSettings(const Evidence& evidence);  // module_setting
// untrained.cc
Found FindUntrained(const Evidence& evidence);  // requires_grad, not_in_optimizer
// optimizer_setting.cc
Causes FindOptimizerSettings(const Evidence& evidence);  // learning_rate, betas, group_tensors, ...
// optimizer_state.cc
Found FindNotUpdated(const Evidence& evidence);     // not_updated
Found FindChangedBeside(const Evidence& evidence);  // changed_beside
Found FindResume(const Evidence& evidence);         // resume, optimizer_state
// gradients.cc
Found FindZeroGrad(const Evidence& evidence);       // zero_grad
Found FindGradientScale(const Evidence& evidence);  // loss_scale, clip_norm, gradient_scale
// The factor of all other gradients, if clipping to a norm gave them one that the root's gradient
// does not have.
std::optional<double> FactorOfOthers(const Evidence& evidence);
// loss_term.cc
Found FindLossTerm(const Evidence& evidence);  // loss_term
// reduction.cc
Result<Found> FindReduction(const Evidence& evidence,
                            const std::stop_token& stop);  // reduction, gradient_scale
// batches.cc
Result<Found> FindBatchOrder(const Evidence& evidence, const std::stop_token& stop);  // batch_order
Found FindSameSamples(const Evidence& evidence);  // same_samples
Found FindUnobserved(const Evidence& evidence);   // not_observed
// Another part of the root's batch that has the same bits in both runs, and others in another step:
// the samples are the same. Null if there is none.
Result<const Pair*> FindAgreeingPart(const Evidence& evidence);
// tensors.cc
Found FindOtherTensor(const Evidence& evidence);  // other_tensor
Found FindAllZero(const Evidence& evidence);      // all_zero
Found FindTensorRelation(
    const Evidence& evidence);  // tensor_scale, sign_flip, permuted, transposed, ...
// precision.cc
Found FindCast(const Evidence& evidence);  // cast
// random.cc
Found FindDropout(const Evidence& evidence);      // dropout
Found FindRandomState(const Evidence& evidence);  // random_state

}  // namespace statcollect::query::cause

#endif  // STATCOLLECT_SERVER_QUERY_CAUSE_RULES_H_
