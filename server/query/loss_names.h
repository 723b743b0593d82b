#ifndef STATCOLLECT_SERVER_QUERY_LOSS_NAMES_H_
#define STATCOLLECT_SERVER_QUERY_LOSS_NAMES_H_

#include <string_view>

namespace statcollect::query {

// Scalars that are compared in stage loss, and shown as a run's loss: names that end in "loss" ("loss",
// "train/loss", "eval_loss"), in any case.
bool IsLoss(std::string_view name);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_LOSS_NAMES_H_
