// What records take in memory, about: with their texts and the nodes of their containers.
#ifndef STATCOLLECT_COMMON_DECODED_BYTES_H_
#define STATCOLLECT_COMMON_DECODED_BYTES_H_

#include <cstddef>

#include "common/records.h"

namespace statcollect {

std::size_t DecodedBytes(const RecordBatch& batch);
std::size_t DecodedBytes(const TensorDef& def);  // with the place in the session's index
std::size_t DecodedBytes(const Layout& layout);
std::size_t DecodedBytes(const ScalarRecord& record);
std::size_t DecodedBytes(const EventRecord& record);
std::size_t DecodedBytes(const MemoryRecord& record);
std::size_t DecodedBytes(const DensityRecord& record);
std::size_t DecodedBytes(const SettingRecord& record);
std::size_t DecodedBytes(const StepRecord& record);
std::size_t DecodedBytes(const CaptureChunk& record);
std::size_t DecodedBytes(const ExponentRecord& record);
std::size_t DecodedBytes(const TokenRecord& record);

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_DECODED_BYTES_H_
