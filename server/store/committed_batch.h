// A batch that was made durable, for consumers after the commit.
#ifndef STATCOLLECT_SERVER_STORE_COMMITTED_BATCH_H_
#define STATCOLLECT_SERVER_STORE_COMMITTED_BATCH_H_

#include <cstdint>

#include "common/records.h"
#include "server/store/attempt.h"

namespace statcollect {

struct CommittedBatch {
  AttemptMeta attempt;
  std::uint32_t rank = 0;
  RecordBatch batch;     // without samples, captures, exponents and tokens
  bool goodbye = false;  // it is the rank's last one
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_COMMITTED_BATCH_H_
