// store_appender DIR ATTEMPT FIRST_STEP COUNT: appends COUNT steps of rank 0, writes each step's
// number to standard output as 8 bytes once its append has returned, and kills itself. ATTEMPT 0:
// creates the attempt. A program of its own, because a process with RocksDB's threads must not
// fork.
#include <unistd.h>
#include <csignal>

#include <cstdlib>
#include <iostream>

#include "server/store/rocksdb/rocksdb_store.h"
#include "tests/server/store/step_batch.h"
#include "tests/support/append_batch.h"

int main(int argc, char** argv) {
  using namespace statcollect;
  if (argc != 5) return 2;
  auto store = OpenRocksDbStore(argv[1]);
  if (!store.ok()) {
    std::cerr << store.status().message() << '\n';
    return 1;
  }
  AttemptId attempt = static_cast<AttemptId>(std::atoi(argv[2]));
  if (attempt == 0) attempt = (*store)->CreateAttempt({.run = "base", .world_size = 1})->id;
  const std::uint64_t first = std::strtoull(argv[3], nullptr, 10);
  const std::uint64_t count = std::strtoull(argv[4], nullptr, 10);
  for (std::uint64_t step = first; step < first + count; ++step) {
    const RecordBatch batch = MakeBatch(1 + step * kAppendedRecords, step, 0, kAppendedActivations);
    const RankMeta meta = MetaOf(0, batch.last_seq());
    if (!AppendBatch(**store, attempt, 0, batch, meta).ok()) return 1;
    if (write(STDOUT_FILENO, &step, sizeof(step)) != sizeof(step)) return 1;
  }
  raise(SIGKILL);
}
