// Stored form of everything except blocks of statistics: attempts, ranks, definitions, scalars,
// events, memory, densities, settings, step ends, exponents, tokens. Each Decode fails like Unseal
// (kDataLoss, kFailedPrecondition), naming `what`.
#ifndef STATCOLLECT_SERVER_STORE_CODEC_CATALOGUE_H_
#define STATCOLLECT_SERVER_STORE_CODEC_CATALOGUE_H_

#include <string>
#include <string_view>

#include "common/records.h"
#include "common/status.h"
#include "server/store/store.h"

namespace statcollect {

std::string Encode(const AttemptMeta& attempt);
std::string Encode(const SessionInfo& info);
std::string Encode(const RankMeta& rank);  // without `info`, which is a separate value
std::string Encode(const TensorDef& def);
std::string Encode(const Layout& layout);
std::string Encode(const ScalarRecord& scalar);
std::string Encode(const EventRecord& event);
std::string Encode(const MemoryRecord& memory);
std::string Encode(const DensityRecord& density);
std::string Encode(const SettingRecord& setting);
std::string Encode(const StepRecord& step);
std::string Encode(const ExponentRecord& exponents);
std::string Encode(const TokenRecord& tokens);

// Stored with each chunk of a capture; shows whether all chunks are there.
struct CaptureHead {
  std::uint32_t layout = 0;
  std::uint64_t elements = 0;  // of all chunks
  std::uint32_t bytes = 0;     // of this chunk
};
std::string Encode(const CaptureHead& head);

// T: one of the above.
template <typename T>
Result<T> Decode(std::string_view what, std::string_view bytes);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CODEC_CATALOGUE_H_
