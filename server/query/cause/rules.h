// The rules, one file a group. A rule that does not apply returns nothing. docs/causes.md says when each
// applies and with which confidence.
#ifndef STATCOLLECT_SERVER_QUERY_CAUSE_RULES_H_
#define STATCOLLECT_SERVER_QUERY_CAUSE_RULES_H_

#include <optional>
#include <stop_token>

#include "common/status.h"
#include "server/query/cause/evidence.h"
#include "server/query/reports.h"

namespace statcollect::query::cause {

using Found = std::optional<Cause>;

// structure.cc
Found FindEvaluationMode(const Evidence& evidence);  // mode
Found FindModuleReplaced(const Evidence& evidence);  // module_replaced, requires_grad
Found FindModelStructure(const Evidence& evidence);  // model_structure
Found FindEvaluationOnly(const Evidence& evidence);  // evaluation_only
// module_setting.cc
Found FindModuleSetting(const Evidence& evidence);  // module_setting
// untrained.cc
Found FindUntrained(const Evidence& evidence);  // requires_grad, not_in_optimizer, no_gradient
// optimizer_setting.cc
Found FindOptimizerSetting(const Evidence& evidence);  // learning_rate, weight_decay, betas, ...
// optimizer_state.cc
Found FindNotUpdated(const Evidence& evidence);  // not_updated
Found FindResume(const Evidence& evidence);      // resume, optimizer_state
// gradients.cc
Found FindZeroGrad(const Evidence& evidence);       // zero_grad
Found FindGradientScale(const Evidence& evidence);  // loss_scale, clip_norm, gradient_scale
// The factor of all other gradients, if clipping to a norm gave them one that the root's gradient does not have.
std::optional<double> FactorOfOthers(const Evidence& evidence);
// reduction.cc
Result<Found> FindReduction(const Evidence& evidence, const std::stop_token& stop);  // reduction
// batches.cc
Result<Found> FindBatchOrder(const Evidence& evidence, const std::stop_token& stop);  // batch_order
// tensors.cc
Found FindOtherTensor(const Evidence& evidence);     // other_tensor
Found FindAllZero(const Evidence& evidence);         // all_zero
Found FindTensorRelation(const Evidence& evidence);  // tensor_scale, sign_flip, permuted, transposed, ...
Found FindTieBroken(const Evidence& evidence);       // tie_broken
// precision.cc
Found FindCast(const Evidence& evidence);  // cast
// random.cc
Found FindDropout(const Evidence& evidence);      // dropout
Found FindRandomState(const Evidence& evidence);  // random_state
// configuration.cc
Found FindConvolutionLibrary(const Evidence& evidence);  // convolution_library
Found FindConfiguration(const Evidence& evidence);       // configuration

}  // namespace statcollect::query::cause

#endif  // STATCOLLECT_SERVER_QUERY_CAUSE_RULES_H_
