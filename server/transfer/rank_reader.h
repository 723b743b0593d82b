// Reads everything that was recorded of one rank, in an order that is the same every time, for a
// copy.
#ifndef STATCOLLECT_SERVER_TRANSFER_RANK_READER_H_
#define STATCOLLECT_SERVER_TRANSFER_RANK_READER_H_

#include <cstdint>
#include <functional>
#include <span>
#include <stop_token>

#include "common/records.h"
#include "common/status.h"
#include "server/store/record_reader.h"

namespace statcollect::transfer {

// What a reader has already. Definitions are those with lower ids.
struct ReadFrom {
  std::uint64_t records = 0;
  std::uint32_t activations = 0, layouts = 0;
};

// `layouts`: all of the rank's, by id; valid during the call. May block.
using TakeBatch = std::function<Status(const RecordBatch& batch, std::span<const Layout> layouts)>;

// Batches of about 1 MiB, numbered from the record after `from` on: statistics by step, then
// scalars, agents' events, memory, densities, ends of steps, captures, exponents and tokens, each
// by step. Settings are not among them: they are in the rank's configuration. Of a capture with a
// gap, what is before it. Memory: a batch and the definitions. Blocks that the reader has are not
// decoded. kFailedPrecondition: the reader has more than there is.
Status ReadRank(RecordReader& store, AttemptId attempt, std::uint32_t rank, const ReadFrom& from,
                const TakeBatch& take, const std::stop_token& stop);

}  // namespace statcollect::transfer

#endif  // STATCOLLECT_SERVER_TRANSFER_RANK_READER_H_
