// Stores a batch as the first one of a stream is stored: without references to earlier ones.
#ifndef STATCOLLECT_TESTS_SUPPORT_APPEND_BATCH_H_
#define STATCOLLECT_TESTS_SUPPORT_APPEND_BATCH_H_

#include <cstdint>

#include "server/store/record_writer.h"

namespace statcollect {

inline Status AppendBatch(RecordWriter& store, AttemptId attempt, std::uint32_t rank,
                          const RecordBatch& batch, const RankMeta& meta) {
  const auto prepared = store.NewWriter(attempt, rank)->Prepare(batch);
  const AppendItem item{
      .attempt = attempt, .rank = rank, .meta = &meta, .prepared = prepared.get()};
  return store.Append({&item, 1});
}

}  // namespace statcollect

#endif  // STATCOLLECT_TESTS_SUPPORT_APPEND_BATCH_H_
