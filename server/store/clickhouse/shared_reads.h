// Reads that many threads make at the same time, as the hellos of a launch do: what they ask for
// while a request is under way becomes the next request.
#ifndef STATCOLLECT_SERVER_STORE_CLICKHOUSE_SHARED_READS_H_
#define STATCOLLECT_SERVER_STORE_CLICKHOUSE_SHARED_READS_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "common/status.h"
#include "common/thread_annotations.h"

namespace statcollect {

// One request at a time for each group, for any number of keys.
//
// Threads: any. Group and Key: ordered, and copied.
template <typename Group, typename Key, typename Answer>
class SharedReads {
 public:
  using Ask = std::function<Result<Answer>(const Group& group, const std::set<Key>& keys)>;
  explicit SharedReads(Ask ask) : ask_(std::move(ask)) {}

  // The answer of a request for this key and those of others. The request begins after this call,
  // so that the caller finds whatever was written before. An error may be due to another key.
  Result<std::shared_ptr<const Answer>> Read(const Group& group, const Key& key) {
    MutexLock lock(mutex_);
    const std::shared_ptr<Request> mine = JoinLocked(group, key);
    changed_.wait(mutex_, [&]() STATCOLLECT_REQUIRES(mutex_) {
      return mine->answer || !groups_.at(group).asking;
    });
    if (mine->answer) return *mine->answer;
    // This thread asks for all that have joined. Who comes from here on is part of the next
    // request.
    groups_.at(group) = {.next = nullptr, .asking = true};
    lock.unlock();
    auto answer = ask_(group, mine->keys);
    lock.lock();
    if (answer.ok())
      mine->answer = std::make_shared<const Answer>(*std::move(answer));
    else
      mine->answer = answer.status();
    const auto at = groups_.find(group);
    at->second.asking = false;
    if (at->second.next == nullptr) groups_.erase(at);
    changed_.notify_all();
    return *mine->answer;
  }

 private:
  struct Request {
    std::set<Key> keys;  // does not change once it is asked
    std::optional<Result<std::shared_ptr<const Answer>>> answer;
  };
  // Exists while a request of it is waiting or under way.
  struct Requests {
    std::shared_ptr<Request> next;  // nullptr: nobody waits for one
    bool asking = false;
  };

  std::shared_ptr<Request> JoinLocked(const Group& group, const Key& key)
      STATCOLLECT_REQUIRES(mutex_) {
    Requests& requests = groups_[group];
    if (requests.next == nullptr) requests.next = std::make_shared<Request>();
    requests.next->keys.insert(key);
    return requests.next;
  }

  const Ask ask_;
  Mutex mutex_;  // not held while the engine is asked
  ConditionVariable changed_;
  std::map<Group, Requests> groups_ STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CLICKHOUSE_SHARED_READS_H_
