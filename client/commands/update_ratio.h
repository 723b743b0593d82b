// How far each update of a run moved a weight.
#ifndef STATCOLLECT_CLIENT_COMMANDS_UPDATE_RATIO_H_
#define STATCOLLECT_CLIENT_COMMANDS_UPDATE_RATIO_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/exports/exporter.h"
#include "common/update_ratio.h"

namespace statcollect::client {

// Receives the records of a run (kind weight, with sketches, from one step before the first
// requested one) and computes the ratios of one weight: each step against the step before, or
// against the weight as loaded (mode init) in the same step, so the first step of a resumed run is
// compared with what it loaded. There is no ratio if the step before was not recorded.
class UpdateRatios final : public Exporter {
 public:
  explicit UpdateRatios(std::string weight) : weight_(std::move(weight)) {}
  Status Write(const Observation& observation) override;
  Status Finish() override { return Status::Ok(); }

  bool seen() const { return !last_.empty(); }  // whether there was any record of the weight
  // The ranks whose parts were combined, under rank 0; empty: each rank has its own ratios.
  const std::vector<std::uint32_t>& ranks() const { return ranks_; }
  // By rank, then step.
  const std::map<std::pair<std::uint32_t, std::uint64_t>, UpdateRatio>& ratios() const {
    return ratios_;
  }

 private:
  struct Last {
    std::uint64_t step = 0;
    WeightRecord record;
  };

  const std::string weight_;
  std::vector<std::uint32_t> ranks_;
  std::map<std::uint32_t, Last> last_;  // by rank
  std::map<std::pair<std::uint32_t, std::uint64_t>, UpdateRatio> ratios_;
};

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_UPDATE_RATIO_H_
