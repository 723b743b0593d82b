// Estimates how far an update moved a weight, ||W now - W before|| / ||W before||, from the sketches of two
// records.
#ifndef STATCOLLECT_CLIENT_COMMANDS_UPDATE_RATIO_H_
#define STATCOLLECT_CLIENT_COMMANDS_UPDATE_RATIO_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/exports/exporter.h"

namespace statcollect::client {

struct UpdateRatio {
  double value = 0;
  double low = 0, high = 0;  // likely range of the true value, see docs/divergence.md
};

// One record of a weight.
struct WeightRecord {
  TensorStats stats;
  std::vector<double> sketch;
};

// Empty if the sketches differ in width, the sizes differ, or elements are not finite. 0 if the bits are
// equal. The estimate has a relative standard deviation of about sqrt(1/2k) (k = 16: 18 %); below about 2e-7
// it is rounding of the sketches.
std::optional<UpdateRatio> EstimateUpdateRatio(const WeightRecord& before, const WeightRecord& after);

// Receives the records of a run (kind weight, with sketches, from one step before the first requested one)
// and computes the ratios of one weight: each step against the step before, or against the weight as loaded
// (mode init) in the same step, so the first step of a resumed run is compared with what it loaded. There is
// no ratio if the step before was not recorded.
class UpdateRatios final : public Exporter {
 public:
  explicit UpdateRatios(std::string weight) : weight_(std::move(weight)) {}
  Status Write(const Observation& observation) override;
  Status Finish() override { return Status::Ok(); }

  bool seen() const { return !last_.empty(); }  // whether there was any record of the weight
  // The ranks whose parts were combined, under rank 0; empty: each rank has its own ratios.
  const std::vector<std::uint32_t>& ranks() const { return ranks_; }
  // By rank, then step.
  const std::map<std::pair<std::uint32_t, std::uint64_t>, UpdateRatio>& ratios() const { return ratios_; }

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
