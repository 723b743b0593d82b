// Digests of everything that is stored of one rank, to compare a copy with its original. They
// depend on the records and their order only, not on how a store lays them out.
#ifndef STATCOLLECT_SERVER_TRANSFER_RANK_DIGEST_H_
#define STATCOLLECT_SERVER_TRANSFER_RANK_DIGEST_H_

#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>

#include "common/status.h"
#include "server/store/record_reader.h"

namespace statcollect::transfer {

struct StepDigest {
  std::string what;        // "stats", "scalars", ...: StepDigest of transfer.proto
  std::uint64_t step = 0;  // 0 for definitions
  std::uint64_t records = 0;
  std::uint64_t low = 0, high = 0;
};

// Calls `take` for the definitions, then for each step of each sort of record that has any. Memory:
// one block.
Status DigestRank(RecordReader& store, AttemptId attempt, std::uint32_t rank,
                  const std::function<Status(const StepDigest&)>& take,
                  const std::stop_token& stop);

}  // namespace statcollect::transfer

#endif  // STATCOLLECT_SERVER_TRANSFER_RANK_DIGEST_H_
