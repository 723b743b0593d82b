// A store of two parts, one of which does not answer: the other one's ranks, and who asks for the
// status, do not wait for it.
#include <atomic>
#include <future>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/ingest/harness.h"
#include "tests/support/forwarding_store.h"

namespace statcollect {
namespace {

using testing::FakeClock;
using testing::FakeStore;
using testing::Harness;
using ::testing::HasSubstr;
using testing::NthBatch;
using ::testing::StartsWith;

// While it hangs, its calls return only when it is released, and then fail.
class HangingPart final : public testing::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  Status Append(std::span<const AppendItem> items) override {
    const Status waited = Wait();
    return waited.ok() ? ForwardingStore::Append(items) : waited;
  }
  Status Recover() override { return Wait(); }
  Result<StoreUsage> Usage() override {
    const Status waited = Wait();
    return waited.ok() ? ForwardingStore::Usage() : Result<StoreUsage>(waited);
  }
  void Hang() { hanging = true; }
  void Release() {
    if (!std::exchange(released, true)) release_.set_value();
  }
  std::atomic<int> waiting{0};

 private:
  Status Wait() {
    if (!hanging) return Status::Ok();
    ++waiting;
    released_.wait();
    return {Code::kUnavailable, "store records: shard 2 of 2: does not answer"};
  }
  std::atomic<bool> hanging{false};
  bool released = false;
  std::promise<void> release_;
  const std::shared_future<void> released_ = release_.get_future();
};

class TwoParts final : public testing::ForwardingStore {
 public:
  explicit TwoParts(Store& store) : ForwardingStore(store), first_(store), second(store) {}
  std::size_t parts() const override { return 2; }
  std::size_t PartOf(std::uint32_t rank) const override { return rank % 2; }
  Store& part(std::size_t index) override {
    return index == 0 ? static_cast<Store&>(first_) : static_cast<Store&>(second);
  }
  Result<StoreUsage> Usage() override { return second.Usage(); }  // of both
  Status Recover() override { return second.Recover(); }

 private:
  ForwardingStore first_;

 public:
  HangingPart second;
};

class PartsTest : public ::testing::Test {
 protected:
  // What a call of a part that hangs would not let return. Releases it rather than hang itself.
  template <typename Call>
  auto InTime(const Call& call) {
    auto done = std::async(std::launch::async, call);
    EXPECT_EQ(done.wait_for(std::chrono::seconds(10)), std::future_status::ready)
        << "waits for the other part";
    if (HasFailure()) store_.second.Release();
    return done.get();
  }
  void Start(std::size_t decoded_bytes_max = std::size_t{64} << 20) {
    CollectorOptions options;
    options.decoded_bytes_max = decoded_bytes_max;
    harness_ = std::make_unique<Harness>(store_, options);
  }
  ~PartsTest() override {
    store_.second.Release();
    harness_.reset();
  }

  FakeStore kept_;
  TwoParts store_{kept_};
  std::unique_ptr<Harness> harness_;
};

TEST_F(PartsTest, BatchesForAPartThatHangsLeaveTheOthersTheirMemory) {
  Start(/*decoded_bytes_max=*/1000);  // a batch or two
  auto zero = harness_->Agent(Harness::Session(0, 1, 4)),
       one = harness_->Agent(Harness::Session(1, 1, 4));
  auto three = harness_->Agent(Harness::Session(3, 1, 4));
  for (auto* agent : {zero.get(), one.get(), three.get()}) agent->Open();
  store_.second.Hang();
  one->WriteBatch(NthBatch(0));
  ASSERT_TRUE(Harness::Eventually([&] { return store_.second.waiting > 0; }));
  three->WriteBatch(NthBatch(0));  // waits for memory
  const bool acknowledged = InTime([&] {
    zero->WriteBatch(NthBatch(0));
    return zero->AwaitAck(NthBatch(0).last_seq());
  });
  EXPECT_TRUE(acknowledged);
}

TEST_F(PartsTest, TheStatusSaysWhatIsKnownAndWhichPartIsDown) {
  Start();
  auto zero = harness_->Agent(Harness::Session(0, 1, 4)),
       one = harness_->Agent(Harness::Session(1, 1, 4));
  zero->Open();
  one->Open();
  const auto before = harness_->collector->GetStatus();
  EXPECT_EQ(before.state, "ready");
  EXPECT_EQ(before.runs, 1u);
  store_.second.Hang();
  const auto hanging = InTime([&] { return harness_->collector->GetStatus(); });
  EXPECT_EQ(hanging.runs, 1u);
  EXPECT_EQ(hanging.streams_open, 2u);
  EXPECT_GT(hanging.disk_free_bytes, 0u) << "as last known";
  store_.second.Release();  // it fails from now on
  EXPECT_TRUE(Harness::Eventually([&] {
    return harness_->collector->GetStatus().state.find("shard 2 of 2") != std::string::npos;
  }));
  const auto failed = harness_->collector->GetStatus();
  EXPECT_THAT(failed.state, StartsWith("read_only: "));
  EXPECT_THAT(failed.state, HasSubstr("does not answer"));
  EXPECT_EQ(failed.runs, 1u);
}

}  // namespace
}  // namespace statcollect
