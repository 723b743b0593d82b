// The stored noise of a run.
#ifndef STATCOLLECT_SERVER_QUERY_ANSWERS_NOISE_H_
#define STATCOLLECT_SERVER_QUERY_ANSWERS_NOISE_H_

#include <cstddef>

#include "server/query/answers/leaf.h"

namespace statcollect::query {

struct NoiseProfile;
struct SaveNoiseRequest;

inline constexpr std::size_t kNoiseRowsMax = 20;

// The noisiest first, at most kNoiseRowsMax.
void ToWire(const std::string& run, const NoiseProfile& profile, v1::NoiseProfile& out);

Result<SaveNoiseRequest> FromWire(const v1::SaveNoiseRequest& request);
// The run's name.
Result<std::string> FromWire(const v1::GetNoiseRequest& request);

// kNotFound: no such run, or no noise is stored.
Status GetNoise(const Context& context, const std::string& run, v1::NoiseProfile& out);
// The same.
Status DeleteNoise(const Context& context, const std::string& run, v1::DeleteNoiseResponse& out);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ANSWERS_NOISE_H_
