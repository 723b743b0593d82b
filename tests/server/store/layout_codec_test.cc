// Layouts in the store, with their places in logical tensors.
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/store/codec/catalogue.h"
#include "server/store/codec/sealed.h"
#include "server/store/rocksdb/rocksdb_store.h"
#include "tests/server/store/step_batch.h"
#include "tests/support/append_batch.h"
#include "tests/support/random_placement.h"

namespace statcollect {
namespace {

using ::testing::HasSubstr;

std::string HexText(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    text += kDigits[static_cast<unsigned char>(c) >> 4];
    text += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return text;
}

TEST(LayoutCodec, PlacementsComeBackAsTheyWere) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 2000; ++i) {
    Layout layout = testing::RandomShard(random, static_cast<std::uint32_t>(i));
    if (i % 2 == 0) layout.hash_kind = HashKind::kContent2;
    const auto back = Decode<Layout>("layout", Encode(layout));
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(*back, layout);
    layout.placement.reset();
    EXPECT_EQ(*Decode<Layout>("layout", Encode(layout)), layout);
  }
}

// Bytes that change make stores unreadable.
TEST(LayoutCodec, GoldenBytesOfAPlacement) {
  Layout layout{.id = 2, .dtype = DType::kBf16, .shape = {3, 4}};
  layout.placement = Placement{.global_shape = {3, 64},
                               .boxes = {0, 2, 3, 1, 0, 61, 3, 3},
                               .partial = true,
                               .piece = 1,
                               .pieces = 300};
  EXPECT_EQ(HexText(Encode(layout)),
            "02"
            "02"
            "04"
            "020608"
            "000005"
            "02068001"
            "0800040602007a0606"
            "00"
            "01"
            "01"
            "ac02"
            "7aedb450");
  layout.placement = Placement{.global_shape = {64}, .ranges = {7, 10, 40, 49}};
  EXPECT_EQ(HexText(Encode(layout)),
            "0202040206080000050180010004"
            "0e145062"
            "000001"
            "664a4e08");
}

TEST(LayoutCodec, GoldenBytesOfAnUnorderedDimensionAreOfAVersionOfTheirOwn) {
  Layout layout{.id = 2, .dtype = DType::kF32, .shape = {37, 4}, .hash_kind = HashKind::kRows3};
  layout.placement = Placement{
      .global_shape = {1, 8}, .boxes = {0, 4, 1, 4}, .piece = 1, .pieces = 2, .unordered = 1};
  EXPECT_EQ(HexText(Encode(layout)), "030202024a080000060202100400080208000001020146484692");
  EXPECT_EQ(*Decode<Layout>("layout", Encode(layout)), layout);
  const Status refused = Unseal("layout", Encode(layout), 2).status();
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("upgrade statcollectord"));
}

TEST(LayoutCodec, ABuildBeforePlacementsIsToldToUpgrade) {
  Layout layout{.id = 2, .dtype = DType::kF32, .shape = {4}};
  EXPECT_TRUE(Unseal("layout", Encode(layout), 1).ok());
  layout.placement = Placement{.global_shape = {4}};
  const Status refused = Unseal("layout", Encode(layout), 1).status();
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("upgrade statcollectord"));
}

TEST(LayoutCodec, APlacementThatCannotBeIsNotRead) {
  Layout layout{.id = 2, .dtype = DType::kF32, .shape = {3, 4}};
  layout.placement = Placement{.global_shape = {3, 8}, .boxes = {0, 4, 3, 4}};
  ASSERT_TRUE(Decode<Layout>("layout", Encode(layout)).ok());
  const Placement wrong[] = {{.global_shape = {3, 8}, .boxes = {0, 5, 3, 4}},
                             {.global_shape = {3, 8}, .boxes = {0, 4, 3, 3}},
                             {.global_shape = {3, -8}, .boxes = {0, 4, 3, 4}},
                             {.global_shape = {3, 4}, .pieces = 0}};
  for (const Placement& placement : wrong) {
    layout.placement = placement;
    EXPECT_EQ(Decode<Layout>("layout", Encode(layout)).status().code(), Code::kDataLoss);
  }
}

TEST(LayoutCodec, DamagedPlacementsUnderACorrectChecksumNeverCrash) {
  std::mt19937_64 random(13);
  for (int i = 0; i < 20000; ++i) {
    const std::string sealed = Encode(testing::RandomShard(random));
    std::string bad = sealed.substr(1, sealed.size() - 5);
    for (std::size_t flips = 1 + random() % 3; flips > 0; --flips)
      bad[random() % bad.size()] = static_cast<char>(random());
    bad.resize(bad.size() - random() % 2);
    const auto layout = Decode<Layout>("layout", Seal(3, bad));
    if (!layout.ok()) continue;
    EXPECT_EQ(*Decode<Layout>("layout", Encode(*layout)), *layout);
  }
}

// What a store keeps of ten steps: layouts, and bytes of their blocks, over a reopen.
struct Kept {
  std::vector<Layout> layouts;
  std::uint64_t bytes = 0;
};

Kept Keep(const std::optional<Placement>& placement) {
  std::string directory = ::testing::TempDir() + "/statcollect_layout_XXXXXX";
  EXPECT_NE(mkdtemp(directory.data()), nullptr);
  AttemptId attempt = 0;
  {
    const auto store = OpenRocksDbStore(directory);
    attempt = (*store)->CreateAttempt({.run = "r", .world_size = 1})->id;
    std::uint64_t next_seq = 1;
    for (std::uint64_t step = 0; step < 10; ++step) {
      RecordBatch batch = MakeBatch(next_seq, step, 0, 300);
      batch.layouts[0].placement = placement;
      if (step > 0) batch.layouts.clear();
      next_seq = batch.last_seq() + 1;
      const RankMeta meta = MetaOf(0, batch.last_seq());
      EXPECT_TRUE(AppendBatch(**store, attempt, 0, batch, meta).ok());
    }
  }
  Kept kept;
  {
    const auto store = OpenRocksDbStore(directory);
    kept.layouts = (*(*store)->Definitions(attempt, 0))->layouts;
    const auto scan = (*store)->ScanStats(attempt, 0, {});
    while (scan->Next()) {
    }
    EXPECT_TRUE(scan->status().ok()) << scan->status().message();
    kept.bytes = scan->bytes_read();
  }
  std::filesystem::remove_all(directory);
  return kept;
}

TEST(LayoutStore, APlacementIsKeptOverAReopenAndCostsARecordNothing) {
  const Placement place{
      .global_shape = {2, 1000}, .ranges = {0, 1, 999, 1000}, .piece = 1, .pieces = 2};
  const Kept without = Keep(std::nullopt), with = Keep(place);
  ASSERT_EQ(with.layouts.size(), 1u);
  EXPECT_EQ(with.layouts[0].placement, place);
  EXPECT_EQ(without.layouts[0].placement, std::nullopt);
  EXPECT_GT(with.bytes, 3000u);
  EXPECT_EQ(with.bytes, without.bytes);
}

}  // namespace
}  // namespace statcollect
