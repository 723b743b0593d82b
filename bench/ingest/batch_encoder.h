// Batches of one network's records as the wire has them: one AgentMessage in one slice, written
// once. Columns that are the same in every step are encoded at the start.
#ifndef STATCOLLECT_BENCH_INGEST_BATCH_ENCODER_H_
#define STATCOLLECT_BENCH_INGEST_BATCH_ENCODER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <grpcpp/support/slice.h>

#include "bench/ingest/record_maker.h"

namespace statcollect::bench {

// Records of activations first .. first + n - 1 of one step; the step's end follows if they are its
// last.
struct Segment {
  std::uint64_t step = 0;
  std::uint32_t first = 0, n = 0;
};

// Bytes that a batch of these records has at most, without definitions.
std::size_t BatchBytesMax(std::size_t records, std::uint32_t sketch);

// Not for several threads at once: holds the columns of the batch being made.
class BatchEncoder {
 public:
  // `maker` outlives it.
  explicit BatchEncoder(const RecordMaker& maker);

  struct Encoded {
    grpc::Slice message;  // a serialized AgentMessage
    std::uint32_t records =
        0;  // numbered ones: statistics, and a scalar and a step's end for each finished step
    std::uint32_t stat_records = 0;
  };
  // Segments follow each other without gaps. `define`: with all definitions, for the first batch of
  // a session.
  Encoded Encode(std::uint32_t rank, std::uint64_t first_seq, const std::vector<Segment>& segments,
                 bool define);
  std::size_t definition_bytes() const { return definition_bytes_; }  // at most

 private:
  // Varints of a column that is the same in every step, with the place of each.
  struct ConstantColumn {
    std::string bytes;
    std::vector<std::size_t> begin;  // size + 1
    void Add(std::uint64_t value);
  };

  // Fills the columns that differ from step to step; returns their length.
  std::size_t MakeColumns(std::uint32_t rank, const std::vector<Segment>& segments);

  const RecordMaker& maker_;
  std::size_t definition_bytes_ = 0;
  ConstantColumn activation_, layout_;  // the execution order is that of the activations
  MadeColumns columns_;
  std::string zero_, neg_, pos_, step_, small_;
};

}  // namespace statcollect::bench

#endif  // STATCOLLECT_BENCH_INGEST_BATCH_ENCODER_H_
