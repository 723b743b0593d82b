// Writes of a few rows each, as those of a hello: what threads write at the same time becomes one
// insert. An insert costs the engine a part, whatever its size, and with a quorum the table takes
// one at a time.
#ifndef STATCOLLECT_SERVER_STORE_CLICKHOUSE_SMALL_WRITES_H_
#define STATCOLLECT_SERVER_STORE_CLICKHOUSE_SMALL_WRITES_H_

#include <deque>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/thread_annotations.h"
#include "server/store/attempt.h"
#include "server/store/clickhouse/engine.h"

namespace statcollect {

// Threads: any.
class SmallWrites {
 public:
  explicit SmallWrites(Engine& engine) : engine_(engine) {}

  // Rows of the records of one attempt, which become visible together. As Engine::Insert, and an
  // error may be that of another write of the same insert.
  Status Write(AttemptId attempt, const std::string& attempted, const std::string& rows,
               const std::string& token);

 private:
  struct Waiting {
    AttemptId attempt;
    const std::string& attempted;
    const std::string& rows;
    const std::string& token;
    bool done = false;
    Status status;
  };

  // The first that waits, and those of its attempt that fit into one insert with it.
  std::vector<Waiting*> TakeLocked() STATCOLLECT_REQUIRES(mutex_);
  Status Insert(const std::vector<Waiting*>& group);

  Engine& engine_;
  Mutex mutex_;  // not held while the engine is asked
  ConditionVariable changed_;
  std::deque<Waiting*> waiting_ STATCOLLECT_GUARDED_BY(mutex_);  // owned by the threads that wait
  bool inserting_ STATCOLLECT_GUARDED_BY(mutex_) =
      false;  // one of the threads, for all of its group
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CLICKHOUSE_SMALL_WRITES_H_
