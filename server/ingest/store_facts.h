// What a status says about the store, which may take seconds to answer, or a part of it that is
// down. A thread asks; who wants to know waits a moment for what is true now, and then takes what
// is known.
#ifndef STATCOLLECT_SERVER_INGEST_STORE_FACTS_H_
#define STATCOLLECT_SERVER_INGEST_STORE_FACTS_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "common/clock.h"
#include "common/status.h"
#include "common/thread_annotations.h"
#include "server/ingest/committer.h"
#include "server/store/store.h"

namespace statcollect {

// Threads: any.
class StoreFacts {
 public:
  struct Facts {
    Status admission;  // OK: all parts accept records
    std::uint64_t runs = 0;
    std::uint64_t disk_bytes = 0;
    std::optional<std::uint64_t> disk_free_bytes;  // none: unknown
    std::map<std::string, std::uint64_t>
        dropped;                 // reported by agents, by cause, over all stored runs
    std::set<std::string> kept;  // runs
  };

  // `patience`: how long Get waits. The store and the committer must outlive it.
  StoreFacts(Store& store, const Clock& clock, Committer& committer,
             std::chrono::milliseconds patience = std::chrono::milliseconds(500));
  ~StoreFacts();  // waits for what the store has been asked
  StoreFacts(const StoreFacts&) = delete;
  StoreFacts& operator=(const StoreFacts&) = delete;

  // As of now (of all runs: at most a second old), if the store answers in time. Otherwise what it
  // last said, and the committer's word on which part accepts nothing.
  Facts Get();
  // What is said of all runs has changed.
  void ForgetCensus();

 private:
  void Run();
  void Ask();
  void TakeCensus();

  Store& store_;
  const Clock& clock_;
  Committer& committer_;
  const std::chrono::milliseconds patience_;
  Mutex mutex_;
  ConditionVariable changed_;
  std::uint64_t wanted_ STATCOLLECT_GUARDED_BY(mutex_) = 0;    // calls of Get
  std::uint64_t answered_ STATCOLLECT_GUARDED_BY(mutex_) = 0;  // of these: whose facts are there
  bool stopping_ STATCOLLECT_GUARDED_BY(mutex_) = false;
  Facts facts_ STATCOLLECT_GUARDED_BY(mutex_);
  std::optional<std::chrono::steady_clock::time_point> census_at_ STATCOLLECT_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_INGEST_STORE_FACTS_H_
