// The noise of a run as it is stored: the largest distance between it and its repeats, by
// activation.
#ifndef STATCOLLECT_SERVER_QUERY_NOISE_NOISE_PROFILE_H_
#define STATCOLLECT_SERVER_QUERY_NOISE_NOISE_PROFILE_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "common/records.h"
#include "common/status.h"
#include "common/thread_annotations.h"
#include "server/query/compare/noise.h"
#include "server/query/run_view.h"

namespace statcollect::query {

// Name of the run's document with its profile (Store::Document).
inline constexpr char kNoiseDocument[] = "noise";

// Noise grows with the steps, roughly by their order of magnitude, so it is kept for step 0,
// 1, 2..3, 4..7,
// ..., each the maximum over its steps and all ranks. Steps beyond the profile use its last entry.
struct NoiseProfile {
  static constexpr std::size_t kAges = 65;
  static std::size_t AgeOf(std::uint64_t step);

  std::vector<std::string> runs;  // the repeats from which it was made
  std::int64_t saved_unix_nanos = 0;
  std::uint64_t steps = 0;  // the number of steps from which it was made
  std::uint64_t last_step = 0;
  std::map<TensorKey, std::array<float, kAges>> activations;
  std::map<std::pair<std::string, std::uint32_t>, std::array<float, kAges>>
      losses;  // by name and micro-batch

  void Note(const TensorKey& key, std::uint64_t step, double distance);
  void NoteLoss(const std::string& name, std::uint32_t micro_batch, std::uint64_t step,
                double distance);
  // Makes each age at least as noisy as the earlier ones, and fills those after the last.
  void Finish();

  // The first micro-batch and call of each tensor and loss get the largest noise of all: together
  // they are one batch.
  void FoldMicroBatches();

  // Bytes without a version; the store seals them. The text of each name, then its ages up to the
  // last as float32.
  std::string Encode() const;
  // kDataLoss: the bytes do not parse.
  static Result<NoiseProfile> Decode(std::string_view bytes);
};

// Thread-safe. Borrows the view.
class ProfileNoise final : public NoiseFloor {
 public:
  ProfileNoise(RunView& a, NoiseProfile profile) : a_(a), profile_(std::move(profile)) {}
  Result<std::vector<double>> At(std::size_t attempt_a, std::uint32_t rank,
                                 std::uint64_t step) override;
  Result<double> OfLoss(std::uint32_t rank, std::uint64_t step, std::uint32_t micro_batch,
                        const std::string& name) override;
  const NoiseProfile& profile() const { return profile_; }

 private:
  RunView& a_;
  const NoiseProfile profile_;
  Mutex mutex_;
  // By the address of the definitions: their entries of the profile, by id.
  std::map<const RankCatalogue*, std::vector<const std::array<float, NoiseProfile::kAges>*>>
      entries_ STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_NOISE_NOISE_PROFILE_H_
