#include "server/store/clickhouse/shared_reads.h"

#include <atomic>
#include <deque>
#include <mutex>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace statcollect {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

// An engine that answers with the number of writes that it had when it was asked, once it is let.
class SharedReadsTest : public ::testing::Test {
 protected:
  // Says when it is put into a request: then it is copied, or compared with those that are there.
  struct Key {
    Key(int number, std::atomic<bool>* joined) : number(number), joined(joined) {}
    Key(const Key& other) : Key(other.number, other.joined) { Tell(); }
    Key& operator=(const Key&) = delete;
    bool operator<(const Key& other) const {
      Tell();
      other.Tell();
      return number < other.number;
    }
    void Tell() const {
      *joined = true;
      joined->notify_all();
    }

    int number;
    std::atomic<bool>* joined;
  };
  using Reads = SharedReads<std::string, Key, int>;

  // Returns once the reader asks.
  void StartFirst(const std::string& group, int key) {
    Start(group, key);
    asks_.acquire();
  }
  // Returns once the reader has joined the next request.
  void StartNext(const std::string& group, int key) { Start(group, key)->wait(false); }
  void Join() {
    for (std::thread& reader : readers_) reader.join();
    readers_.clear();
  }
  std::vector<std::set<int>> asked() {
    const std::lock_guard lock(mutex_);
    return asked_;
  }

  std::atomic<int> writes_{0};
  std::counting_semaphore<> asks_{0};
  std::counting_semaphore<> may_answer_{0};
  Status failure_;
  std::mutex mutex_;
  std::vector<std::set<int>> asked_;
  std::vector<int> found_;
  std::vector<std::thread> readers_;
  std::deque<std::atomic<bool>> joined_;
  Reads reads_{[this](const std::string&, const std::set<Key>& keys) -> Result<int> {
    const int seen = writes_;
    {
      const std::lock_guard lock(mutex_);
      asked_.emplace_back();
      for (const Key& key : keys) asked_.back().insert(key.number);
    }
    asks_.release();
    may_answer_.acquire();
    if (!failure_.ok()) return failure_;
    return seen;
  }};

 private:
  std::atomic<bool>* Start(const std::string& group, int number) {
    std::atomic<bool>* const joined = &joined_.emplace_back(false);
    readers_.emplace_back([this, group, number, joined] {
      const auto answer = reads_.Read(group, Key(number, joined));
      const std::lock_guard lock(mutex_);
      found_.push_back(answer.ok() ? **answer : -1);
    });
    return joined;
  }
};

TEST_F(SharedReadsTest, WhoComesWhileARequestIsUnderWayIsPartOfTheNext) {
  StartFirst("a", 1);
  ++writes_;  // of whom the next ones must hear: their answer must not be that of the request under
              // way
  for (const int key : {2, 3, 2}) StartNext("a", key);
  EXPECT_THAT(asked(), ElementsAre(ElementsAre(1)));
  may_answer_.release(2);
  Join();
  EXPECT_THAT(asked(), ElementsAre(ElementsAre(1), ElementsAre(2, 3)));
  EXPECT_THAT(found_, UnorderedElementsAre(0, 1, 1, 1));
}

TEST_F(SharedReadsTest, GroupsDoNotWaitForEachOther) {
  StartFirst("a", 1);
  StartFirst("b", 1);
  EXPECT_EQ(asked().size(), 2u);
  may_answer_.release(2);
  Join();
}

TEST_F(SharedReadsTest, AFailureIsThatOfEveryoneWhoAskedAndOfNobodyElse) {
  failure_ = Status(Code::kUnavailable, "no answer");
  StartFirst("a", 1);
  StartNext("a", 2);
  may_answer_.release(2);
  Join();
  EXPECT_THAT(found_, ElementsAre(-1, -1));
  failure_ = Status::Ok();
  StartFirst("a", 3);
  may_answer_.release();
  Join();
  EXPECT_EQ(found_.back(), 0);
}

}  // namespace
}  // namespace statcollect
