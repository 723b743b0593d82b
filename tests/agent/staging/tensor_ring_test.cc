#include "agent/staging/tensor_ring.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/ring_format.h"

namespace statcollect {
namespace {

using ::testing::HasSubstr;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

RingSpec Spec(const std::string& text) { return *RingSpec::Parse(text); }

class TensorRingTest : public ::testing::Test {
 protected:
  void Make(const std::string& text, const std::string& path = "") {
    auto memory = RingMemory::Make(path, "hello", Spec(text));
    ASSERT_TRUE(memory.ok()) << memory.status().message();
    ring_ = std::make_unique<TensorRing>(Spec(text), *std::move(memory));
  }
  // Keeps a tensor of this many bytes, which all are `step`.
  bool Keep(std::uint64_t step, std::uint64_t bytes, std::uint32_t activation = 0) {
    CapturedTensor* const tensor = Reserve(step, bytes, activation);
    if (tensor == nullptr) return false;
    std::memset(tensor->data(), static_cast<int>(step), tensor->bytes());
    tensor->keeper()->Commit(tensor);
    return true;
  }
  CapturedTensor* Reserve(std::uint64_t step, std::uint64_t bytes, std::uint32_t activation = 0) {
    const std::int64_t shape[] = {static_cast<std::int64_t>(bytes)};
    return ring_->Reserve({.activation = activation, .step = step, .ring = true}, DType::kU8,
                          shape);
  }
  // The steps of what is written; checks the values.
  std::vector<std::uint64_t> Write(std::uint64_t step) {
    written_ = ring_->Write(step, &queue_);
    std::vector<std::uint64_t> steps;
    while (queue_.HasReady()) {
      const bool last = queue_.Peek().last;
      const CaptureChunk chunk = queue_.Pop();
      EXPECT_EQ(chunk.data, std::string(chunk.data.size(), static_cast<char>(chunk.step)));
      if (last) steps.push_back(chunk.step);
    }
    return steps;
  }

  Ledger ledger_;
  CaptureQueue queue_{&ledger_};
  std::unique_ptr<TensorRing> ring_;
  TensorRing::Written written_;
};

using Steps = std::vector<std::uint64_t>;

TEST_F(TensorRingTest, KeepsTheStepsBeforeTheJudgedOneAndWritesThemOnce) {
  Make("3,1MiB");
  for (std::uint64_t step = 0; step < 10; ++step) {
    ASSERT_TRUE(Keep(step, 1000));
    if (step < 9) ring_->Judged(step);
  }
  EXPECT_EQ(Write(9), (Steps{6, 7, 8, 9})) << "of step 6 only once step 9 is judged";
  EXPECT_EQ(written_.tensors, 4u);
  EXPECT_EQ(written_.bytes, 4000u);
  EXPECT_EQ(written_.first_step, 6u);
  EXPECT_EQ(written_.last_step, 9u);
  ring_->Judged(9);
  EXPECT_EQ(Write(9), Steps{});
  ASSERT_TRUE(Keep(10, 1000));
  ASSERT_TRUE(Keep(11, 1000));
  EXPECT_EQ(Write(10), Steps{10}) << "step 11 is not over";
  EXPECT_EQ(Write(11), Steps{11});
  EXPECT_EQ(ledger_.Snapshot().produced, 6u) << "records only once they are written";
}

TEST_F(TensorRingTest, KeepsAsManyStepsThoughOnlySomeAreRecorded) {
  Make("3,1MiB");
  for (std::uint64_t step = 0; step < 100; ++step) {
    if (step % 10 == 0) {
      ASSERT_TRUE(Keep(step, 1000));
    }
    ring_->Judged(step);
  }
  ASSERT_TRUE(Keep(100, 1000));
  EXPECT_EQ(Write(100), (Steps{70, 80, 90, 100}));
}

TEST_F(TensorRingTest, MemoryIsBoundedAndTheOldestStepMakesRoom) {
  Make("3,1MiB");
  for (std::uint64_t step = 0; step < 40; ++step) {
    for (std::uint32_t n = 0; n < 3; ++n) ASSERT_TRUE(Keep(step, 57'000 + 10 * n, n));
  }
  EXPECT_EQ(Write(39),
            (Steps{34, 34, 34, 35, 35, 35, 36, 36, 36, 37, 37, 37, 38, 38, 38, 39, 39, 39}))
      << "whole steps, as many as fit";
  EXPECT_EQ(written_.missing, 0u);
  EXPECT_EQ(ring_->kept()->whole, 3u);
}

TEST_F(TensorRingTest, AStepLargerThanTheMemoryLeavesRoomForThoseBeforeIt) {
  Make("3,1MiB");
  for (std::uint64_t step = 0; step < 40; ++step) {
    if (step > 0) ring_->Judged(step - 1);
    (void)Keep(step, 5 * kMiB, 2);
    for (std::uint32_t n : {3, 1, 0}) (void)Keep(step, 100'000 * (n + 1), n);
    (void)Keep(step, 10, 4);
  }
  EXPECT_TRUE(ring_->crowded());
  const Steps steps = Write(39);
  EXPECT_EQ(steps.front(), 36u);
  EXPECT_EQ(steps.size(), 4 * 5u) << "each step has its first bytes of every tensor";
  EXPECT_EQ(written_.missing, 0u);
  const auto kept = ring_->kept();
  EXPECT_EQ(kept->tensors, 5u);
  EXPECT_EQ(kept->whole, 1u);
  EXPECT_EQ(kept->in_part, 4u);
}

TEST_F(TensorRingTest, WhatIsStillBeingCopiedKeepsItsPlace) {
  Make("3,1MiB");
  CapturedTensor* const late = Reserve(1, 170'000);
  ASSERT_NE(late, nullptr);
  for (std::uint64_t step = 2; step < 7; ++step) ASSERT_TRUE(Keep(step, 170'000));
  EXPECT_FALSE(Keep(7, 170'000)) << "the device still writes where it would go";
  ring_->Judged(10);
  EXPECT_EQ(Write(10), (Steps{2, 3, 4, 5, 6}));
  EXPECT_EQ(written_.missing, 1u);
  std::memset(late->data(), 1, late->bytes());
  late->keeper()->Commit(late);
  EXPECT_EQ(Write(10), Steps{1});
  CapturedTensor* const lost = Reserve(11, 170'000);
  lost->keeper()->GiveUp(lost, "device_error");
  for (std::uint64_t step = 12; step < 18; ++step) EXPECT_TRUE(Keep(step, 170'000));
}

TEST_F(TensorRingTest, WhatTheQueueHasNoRoomForIsCounted) {
  Make("3,128MiB");
  for (std::uint64_t step = 0; step < 2; ++step) ASSERT_TRUE(Keep(step, 20 * kMiB));
  ASSERT_NE(queue_.Reserve({}, 1, 100 * kMiB), nullptr);
  EXPECT_EQ(Write(1), Steps{0});
  EXPECT_EQ(written_.refused, 1u);
}

class RingFileTest : public TensorRingTest {
 protected:
  RingFileTest() {
    std::filesystem::create_directories(folder_);
    path_ = folder_ / "rank0.ring";
    std::filesystem::remove(path_);
  }
  ~RingFileTest() override {
    ring_.reset();
    std::filesystem::remove_all(folder_);
  }
  std::string Content() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("ring_test." + std::to_string(getpid()));
  std::filesystem::path path_;
};

TEST_F(RingFileTest, AKilledProcessLeavesItsWholeTensors) {
  const pid_t child = fork();
  if (child == 0) {
    Make("3,1MiB", path_.string());
    for (std::uint64_t step = 0; step < 4; ++step) {
      Keep(step, 1000, static_cast<std::uint32_t>(step));
      ring_->Judged(step);
    }
    (void)Reserve(4, 8, 9);  // not whole
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));

  const std::string content = Content();
  ring::Head head;
  ASSERT_GE(content.size(), sizeof head);
  std::memcpy(&head, content.data(), sizeof head);
  ASSERT_TRUE(ring::Check(head, content.size()).ok());
  EXPECT_EQ(content.substr(sizeof head, head.hello_bytes), "hello");
  Steps steps;
  for (std::uint32_t i = 0; i < head.slots; ++i) {
    ring::Slot slot;
    std::memcpy(&slot, content.data() + head.slots_at + i * sizeof slot, sizeof slot);
    if (slot.state != ring::kReady) continue;
    ASSERT_TRUE(ring::Fits(head, slot));
    EXPECT_EQ(slot.activation, slot.step);
    EXPECT_EQ(content.substr(head.values_at + slot.offset, slot.bytes),
              std::string(1000, static_cast<char>(slot.step)));
    steps.push_back(slot.step);
  }
  EXPECT_THAT(steps, ::testing::UnorderedElementsAre(1u, 2u, 3u));
}

TEST_F(RingFileTest, IsForItsUserOnlyAndGoesWithItsAgent) {
  Make("3,1MiB", path_.string());
  EXPECT_EQ(std::filesystem::status(path_).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  const auto again = RingMemory::Make(path_.string(), "hello", Spec("3,1MiB"));
  EXPECT_THAT(again.status().message(), HasSubstr("File exists"));
  ring_.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
  const auto nowhere = RingMemory::Make("/nowhere/a.ring", "hello", Spec("3,1MiB"));
  EXPECT_THAT(nowhere.status().message(), HasSubstr("ring: file /nowhere/a.ring: No such file"));
}

TEST(RingFormat, DamagedHeadsAreRefused) {
  const ring::Head good = ring::MakeHead("hello", kMiB, 3);
  const std::uint64_t bytes = ring::FileBytes(good);
  EXPECT_EQ(std::string(good.magic, 8), "scring\r\n");
  EXPECT_EQ(good.slots_at, 4096u);
  EXPECT_EQ(good.values_at, 4096u + 48 * 65'536);
  EXPECT_EQ(bytes, good.values_at + kMiB);
  EXPECT_TRUE(ring::Check(good, bytes).ok());
  EXPECT_FALSE(ring::Check(good, bytes - 1).ok());
  ring::Head head = good;
  head.version = 2;
  EXPECT_EQ(ring::Check(head, bytes).code(), Code::kFailedPrecondition);
  for (const auto damage :
       {+[](ring::Head& h) { h.magic[0] = 'x'; }, +[](ring::Head& h) { h.hello_bytes = ~0u; },
        +[](ring::Head& h) { h.slots = ~0u; },
        +[](ring::Head& h) { h.slots_at = ~std::uint64_t{0}; },
        +[](ring::Head& h) { h.slots_at = 0; },
        +[](ring::Head& h) { h.values_at = ~std::uint64_t{0}; },
        +[](ring::Head& h) { h.values_at = 0; },
        +[](ring::Head& h) { h.values_bytes = ~std::uint64_t{0}; }}) {
    head = good;
    damage(head);
    EXPECT_EQ(ring::Check(head, bytes).code(), Code::kDataLoss);
  }
  EXPECT_TRUE(ring::Fits(good, {.offset = kMiB - 4, .bytes = 4}));
  EXPECT_FALSE(ring::Fits(good, {.offset = kMiB - 4, .bytes = 5}));
  EXPECT_FALSE(ring::Fits(good, {.offset = ~std::uint64_t{0}, .bytes = 5}));
}

TEST(RingSpec, SaysHowManyStepsBytesAndWhichTensors) {
  EXPECT_FALSE(Spec("").on());
  const RingSpec plain = Spec(" 3, 64MiB ");
  EXPECT_EQ(plain.steps, 3u);
  EXPECT_EQ(plain.bytes, 64 * kMiB);
  EXPECT_TRUE(plain.Matches({.name = "fc1", .kind = Kind::kOutput}, 0));
  EXPECT_TRUE(plain.Matches({.name = "fc1.weight", .kind = Kind::kWeightGrad}, 0));
  EXPECT_FALSE(plain.Matches({.name = "fc1.weight", .kind = Kind::kWeight}, 0));
  EXPECT_FALSE(plain.Matches({.name = "fc1", .kind = Kind::kOutput, .mode = Mode::kEval}, 0));
  const RingSpec chosen = Spec("3,64MiB; *.ln2:kind=output; fc*@5-:kind=weight");
  EXPECT_TRUE(chosen.Matches({.name = "blocks.0.ln2", .kind = Kind::kOutput}, 0));
  EXPECT_FALSE(chosen.Matches({.name = "blocks.0.ln1", .kind = Kind::kOutput}, 0));
  EXPECT_FALSE(chosen.Matches({.name = "fc1", .kind = Kind::kWeight}, 4));
  EXPECT_TRUE(chosen.Matches({.name = "fc1", .kind = Kind::kWeight}, 5));
}

TEST(RingSpec, SaysWhatIsWrong) {
  const auto message = [](const char* text) {
    const auto spec = RingSpec::Parse(text);
    EXPECT_EQ(spec.status().code(), Code::kInvalidArgument) << text;
    return spec.status().message();
  };
  EXPECT_THAT(message("3"), HasSubstr("ring: the size is '3'; expected STEPS,BYTES, such as"));
  EXPECT_THAT(message("64MiB,3"), HasSubstr("the number of steps is '64MiB'; expected 1..1000"));
  EXPECT_THAT(message("0,64MiB"), HasSubstr("1..1000"));
  EXPECT_THAT(message("1001,64MiB"), HasSubstr("1..1000"));
  EXPECT_THAT(message("3,64"), HasSubstr("the memory is '64'; expected 1 MiB to 128 MiB"));
  EXPECT_THAT(message("3,129MiB"), HasSubstr("1 MiB to 128 MiB"));
  EXPECT_THAT(message("3,1TiB"), HasSubstr("1 MiB to 128 MiB"));
  EXPECT_THAT(message("3,64MiB;*:kind=outputs"), HasSubstr("ring: kind: found 'outputs' (did you"));
  EXPECT_THAT(message("3,64MiB;*@0-:kidn=output"), HasSubstr("ring: an option is 'kidn=output'"));
}

}  // namespace
}  // namespace statcollect
