// Batches on their way into a store, in the form that every engine writes: prepared by the streams'
// threads, written by Append.
#ifndef STATCOLLECT_SERVER_STORE_CODEC_BATCH_ENCODER_H_
#define STATCOLLECT_SERVER_STORE_CODEC_BATCH_ENCODER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/store/codec/record_kinds.h"
#include "server/store/codec/stat_encoder.h"
#include "server/store/record_writer.h"

namespace statcollect {

inline constexpr std::uint8_t kCaptureDataVersion = 1;  // of a chunk's sealed data

struct EncodedRow {
  RowFamily family;
  std::uint64_t step = 0;
  // id of a definition, activation, activation << 32 | offset of a chunk, or sequence number, which
  // tells equal records apart and keeps the order in which they were recorded
  std::uint64_t item = 0;
  std::string value;
  std::string name;  // of a setting
};

// Everything of a batch except the rank's state.
class EncodedBatch final : public PreparedBatch {
 public:
  std::vector<EncodedRow> rows;
  std::vector<EncodedStatBlock> blocks;
};

// What a BatchEncoder prepared.
inline const EncodedBatch& EncodedOf(const PreparedBatch& prepared) {
  return static_cast<const EncodedBatch&>(prepared);
}

class BatchEncoder final : public StreamWriter {
 public:
  BatchEncoder(AttemptId attempt, std::uint32_t rank, StatEncoder::Options options)
      : encoder_(attempt, rank, std::move(options)) {}

  std::unique_ptr<PreparedBatch> Prepare(const RecordBatch& records) override;

 private:
  StatEncoder encoder_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CODEC_BATCH_ENCODER_H_
