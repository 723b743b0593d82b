// Which scalars are losses, by their names. The page has the same rule (web/src/views/losses.ts).
#ifndef STATCOLLECT_COMMON_LOSS_NAMES_H_
#define STATCOLLECT_COMMON_LOSS_NAMES_H_

#include <set>
#include <string>
#include <string_view>

namespace statcollect {

// One of the words of the name ends in "loss" or is "losses", in any case ("loss", "train/loss",
// "train_loss_step", "Loss/gen"), and none says that it is something else ("loss_scale",
// "loss_time_ms", "loss_weight").
bool IsLoss(std::string_view name);

// The last two words are "loss" and "scale": "loss_scale", "amp/loss-scale".
bool IsLossScale(std::string_view name);

// The one that stands for all of them: "loss", else the first that ends in "loss", else the first.
// Empty if there is none.
std::string MainLoss(const std::set<std::string>& losses);

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_LOSS_NAMES_H_
