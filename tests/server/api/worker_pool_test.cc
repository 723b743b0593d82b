#include "server/api/worker_pool.h"

#include <condition_variable>
#include <mutex>
#include <optional>

#include <gtest/gtest.h>

namespace statcollect::api {
namespace {

using std::chrono::milliseconds;

// Something that happens once, to wait for.
template <typename T>
class Happening {
 public:
  void Set(T value) {
    std::lock_guard lock(mutex_);
    value_ = std::move(value);
    changed_.notify_all();
  }
  T Await() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return value_.has_value(); });
    return *value_;
  }
  bool happened() {
    std::lock_guard lock(mutex_);
    return value_.has_value();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<T> value_;
};

struct Ending {
  bool ran = false;
  bool timed_out = false;
  Status status;  // of an abandoned item
};

// An item that works until it is asked to stop.
struct Patient {
  Happening<bool> began;
  Happening<Ending> ended;

  std::shared_ptr<WorkItem> Item() {
    return std::make_shared<WorkItem>(
        [this](const WorkItem& item) {
          began.Set(true);
          std::mutex mutex;
          std::unique_lock lock(mutex);
          std::condition_variable_any().wait(lock, item.stop(), [] { return false; });
          ended.Set({.ran = true, .timed_out = item.timed_out()});
        },
        [this](const Status& why) { ended.Set({.status = why}); });
  }
};

TEST(WorkerPool, RunsWhatIsSubmitted) {
  Happening<bool> ran;
  WorkerPool pool({.threads = 2});
  ASSERT_TRUE(pool.Submit(std::make_shared<WorkItem>([&](const WorkItem&) { ran.Set(true); },
                                                     [](const Status&) {}))
                  .ok());
  EXPECT_TRUE(ran.Await());
}

TEST(WorkerPool, RefusesMoreThanMayWaitAndSaysSo) {
  Patient running, waiting;
  WorkerPool pool({.what = "query", .threads = 1, .waiting_max = 1});
  ASSERT_TRUE(pool.Submit(running.Item()).ok());
  running.began.Await();
  ASSERT_TRUE(pool.Submit(waiting.Item()).ok());
  Patient third;
  const Status refused = pool.Submit(third.Item());
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_EQ(refused.message(),
            "query: 1 run and 1 wait; expected at most 1 waiting; try again in a moment");
  EXPECT_FALSE(third.ended.happened());
}

TEST(WorkerPool, CancellingAWaitingItemFreesItsPlaceAtOnce) {
  Patient running, waiting, next;
  WorkerPool pool({.threads = 1, .waiting_max = 1});
  ASSERT_TRUE(pool.Submit(running.Item()).ok());
  running.began.Await();
  const auto item = waiting.Item();
  ASSERT_TRUE(pool.Submit(item).ok());
  pool.Cancel(item);
  const Ending ending = waiting.ended.Await();
  EXPECT_FALSE(ending.ran);
  EXPECT_EQ(ending.status.code(), Code::kCancelled);
  EXPECT_TRUE(pool.Submit(next.Item()).ok());
}

TEST(WorkerPool, CancellingARunningItemAsksItToStop) {
  Patient running;
  WorkerPool pool({.threads = 1});
  const auto item = running.Item();
  ASSERT_TRUE(pool.Submit(item).ok());
  running.began.Await();
  pool.Cancel(item);
  const Ending ending = running.ended.Await();
  EXPECT_TRUE(ending.ran);
  EXPECT_FALSE(ending.timed_out);
}

// On a busy machine a limit may pass before its item begins, which is not what these two are about:
// they try again with twice as much.
TEST(WorkerPool, StopsWhatTakesTooLong) {
  Ending ending;
  for (milliseconds limit{20}; !ending.ran; limit *= 2) {
    Patient running;
    WorkerPool pool({.threads = 1, .time_limit = limit});
    ASSERT_TRUE(pool.Submit(running.Item()).ok());
    ending = running.ended.Await();
  }
  EXPECT_TRUE(ending.timed_out);
}

TEST(WorkerPool, AbandonsWhatWaitedTooLong) {
  bool first_ran = false;
  for (milliseconds limit{20}; !first_ran; limit *= 2) {
    Happening<bool> release, began;
    Patient waiting;
    WorkerPool pool({.what = "query", .threads = 1, .time_limit = limit});
    const auto deaf = std::make_shared<WorkItem>(
        [&](const WorkItem&) {
          began.Set(true);
          release.Await();
        },
        [&](const Status&) { began.Set(false); });
    ASSERT_TRUE(pool.Submit(deaf).ok());
    first_ran = began.Await();
    if (!first_ran) continue;
    ASSERT_TRUE(pool.Submit(waiting.Item()).ok());
    const Ending ending = waiting.ended.Await();
    EXPECT_FALSE(ending.ran);
    EXPECT_EQ(ending.status.code(), Code::kDeadlineExceeded);
    EXPECT_NE(ending.status.message().find("--steps"), std::string::npos)
        << ending.status.message();
    release.Set(true);
  }
}

TEST(WorkerPool, EndsEverythingWhenItIsDestroyed) {
  Patient running, waiting;
  {
    WorkerPool pool({.threads = 1});
    ASSERT_TRUE(pool.Submit(running.Item()).ok());
    running.began.Await();
    ASSERT_TRUE(pool.Submit(waiting.Item()).ok());
  }
  EXPECT_TRUE(running.ended.Await().ran);
  EXPECT_EQ(waiting.ended.Await().status.code(), Code::kUnavailable);
}

TEST(WorkerPool, ForgetsAnItemThatEnded) {
  std::weak_ptr<WorkItem> weak;
  {
    WorkerPool pool({.threads = 1});
    Happening<bool> ran;
    auto item =
        std::make_shared<WorkItem>([&](const WorkItem&) { ran.Set(true); }, [](const Status&) {});
    weak = item;
    ASSERT_TRUE(pool.Submit(std::move(item)).ok());
    ran.Await();
  }
  EXPECT_TRUE(weak.expired());
}

}  // namespace
}  // namespace statcollect::api
