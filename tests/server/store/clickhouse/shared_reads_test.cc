#include "server/store/clickhouse/shared_reads.h"

#include <atomic>
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
  using Reads = SharedReads<std::string, int, int>;

  // Returns once the reader has joined a request, or asks.
  void Start(const std::string& group, int key) {
    readers_.emplace_back([this, group, key] {
      const auto answer = reads_.Read(group, key);
      const std::lock_guard lock(mutex_);
      found_.push_back(answer.ok() ? **answer : -1);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  void Join() {
    for (std::thread& reader : readers_) reader.join();
    readers_.clear();
  }
  std::vector<std::set<int>> asked() {
    const std::lock_guard lock(mutex_);
    return asked_;
  }

  std::atomic<int> writes_{0};
  std::counting_semaphore<> may_answer_{0};
  Status failure_;
  std::mutex mutex_;
  std::vector<std::set<int>> asked_;
  std::vector<int> found_;
  std::vector<std::thread> readers_;
  Reads reads_{[this](const std::string&, const std::set<int>& keys) -> Result<int> {
    const int seen = writes_;
    {
      const std::lock_guard lock(mutex_);
      asked_.push_back(keys);
    }
    may_answer_.acquire();
    if (!failure_.ok()) return failure_;
    return seen;
  }};
};

TEST_F(SharedReadsTest, WhoComesWhileARequestIsUnderWayIsPartOfTheNext) {
  Start("a", 1);
  ++writes_;  // of whom the next ones must hear: their answer must not be that of the request under
              // way
  for (const int key : {2, 3, 2}) Start("a", key);
  EXPECT_THAT(asked(), ElementsAre(ElementsAre(1)));
  may_answer_.release(2);
  Join();
  EXPECT_THAT(asked(), ElementsAre(ElementsAre(1), ElementsAre(2, 3)));
  EXPECT_THAT(found_, UnorderedElementsAre(0, 1, 1, 1));
}

TEST_F(SharedReadsTest, GroupsDoNotWaitForEachOther) {
  Start("a", 1);
  Start("b", 1);
  EXPECT_EQ(asked().size(), 2u);
  may_answer_.release(2);
  Join();
}

TEST_F(SharedReadsTest, AFailureIsThatOfEveryoneWhoAskedAndOfNobodyElse) {
  failure_ = Status(Code::kUnavailable, "no answer");
  Start("a", 1);
  Start("a", 2);
  may_answer_.release(2);
  Join();
  EXPECT_THAT(found_, ElementsAre(-1, -1));
  failure_ = Status::Ok();
  Start("a", 3);
  may_answer_.release();
  Join();
  EXPECT_EQ(found_.back(), 0);
}

}  // namespace
}  // namespace statcollect
