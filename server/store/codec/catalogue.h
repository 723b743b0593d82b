// Stored form of everything except blocks of statistics: attempts, ranks, definitions, scalars,
// events, memory, densities, settings, step ends, exponents, tokens. Each Decode fails like Unseal
// (kDataLoss, kFailedPrecondition), naming `what`.
#ifndef STATCOLLECT_SERVER_STORE_CODEC_CATALOGUE_H_
#define STATCOLLECT_SERVER_STORE_CODEC_CATALOGUE_H_

#include <string>
#include <string_view>

#include "common/records.h"
#include "common/status.h"

namespace statcollect {

// Stored with each chunk of a capture; shows whether all chunks are there.
struct CaptureHead {
  std::uint32_t layout = 0;
  std::uint64_t elements = 0;  // of all chunks
  std::uint32_t bytes = 0;     // of this chunk
};
// T: AttemptMeta, SessionInfo, RankMeta (without `info`, which is a separate value), TensorDef,
// Layout, CaptureHead, or a record of a step.
template <typename T>
std::string Encode(const T& value);
template <typename T>
Result<T> Decode(std::string_view what, std::string_view bytes);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CODEC_CATALOGUE_H_
