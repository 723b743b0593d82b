// Noise: differences without meaning, measured between a run and its repeats.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_NOISE_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_NOISE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"

namespace statcollect::query {

// Only a difference of more than this many times the noise (and beyond the dtype's rounding)
// counts.
inline constexpr double kNoiseFactor = 10;

// Noise of run A's records: the largest distance (distance.h) between A and its repeats.
// Thread-safe.
class NoiseFloor {
 public:
  virtual ~NoiseFloor() = default;
  // For every activation that the rank recorded in the step, by A's id; 0 if unknown.
  virtual Result<std::vector<double>> At(std::size_t attempt_a, std::uint32_t rank,
                                         std::uint64_t step) = 0;
  // For a loss: relative difference; 0 if unknown.
  virtual Result<double> OfLoss(std::uint32_t rank, std::uint64_t step, std::uint32_t micro_batch,
                                const std::string& name) = 0;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_NOISE_H_
