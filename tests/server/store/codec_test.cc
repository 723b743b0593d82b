#include <cmath>
#include <limits>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/store/codec/byte_io.h"
#include "server/store/codec/catalogue.h"
#include "server/store/codec/sealed.h"
#include "server/store/codec/stat_block.h"

namespace statcollect {
namespace {

using ::testing::HasSubstr;

std::string Hex(std::string_view bytes) {
  std::string hex;
  for (const unsigned char byte : bytes) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

StatColumns RandomColumns(std::mt19937_64& random, std::size_t count, std::uint32_t width) {
  std::normal_distribution<double> normal;
  StatColumns columns;
  columns.sketch_width = width;
  for (std::size_t i = 0; i < count; ++i) {
    columns.activation.push_back(static_cast<std::uint32_t>(random()));
    columns.layout.push_back(static_cast<std::uint32_t>(random() % 5));
    columns.order.push_back(static_cast<std::uint32_t>(i));
    columns.step.push_back(7);
    TensorStats s{.numel = random() % 1000, .nan = random() % 3, .zero = random(), .hash = random()};
    s.has_finite = random() % 4 != 0;
    if (s.has_finite) {
      s.min = normal(random);
      s.max = normal(random) * 1e300;
      s.mean = -0.0;
      s.std = std::numeric_limits<double>::denorm_min();
      s.l1 = std::numeric_limits<double>::infinity();
      s.l2 = normal(random);
    }
    columns.stats.push_back(s);
    const bool wide = random() % 2 == 0;
    for (std::uint32_t k = 0; k < width; ++k) {
      columns.sketch.push_back(wide ? normal(random) : static_cast<float>(normal(random)));
    }
    columns.sample_count.push_back(static_cast<std::uint32_t>(random() % 3));
    for (std::uint32_t k = 0; k < columns.sample_count.back(); ++k) columns.samples.push_back(normal(random));
  }
  return columns;
}

void ExpectEqual(const StatColumns& a, const StatColumns& b) {
  EXPECT_EQ(a.activation, b.activation);
  EXPECT_EQ(a.layout, b.layout);
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.order, b.order);
  EXPECT_EQ(a.stats, b.stats);
  EXPECT_EQ(a.sketch_width, b.sketch_width);
  EXPECT_EQ(a.sketch, b.sketch);
  EXPECT_EQ(a.sample_count, b.sample_count);
  EXPECT_EQ(a.samples, b.samples);
}

StatColumns GoldenColumns() {
  StatColumns columns;
  columns.activation = {3, 1};
  columns.layout = {0, 1};
  columns.order = {5, 6};
  columns.step = {9, 9};
  columns.stats = {{.numel = 300,
                    .neg = 100,
                    .pos = 200,
                    .has_finite = true,
                    .min = -1,
                    .max = 1,
                    .mean = 0.5,
                    .std = 0.25,
                    .l1 = 150,
                    .l2 = 10,
                    .hash = 0x0123456789abcdef},
                   {.numel = 1, .nan = 1, .hash = 1}};
  columns.sketch_width = 0;
  columns.sample_count = {1, 0};
  columns.samples = {2.0};
  return columns;
}

// Changing these bytes makes every store unreadable: raise kStatBlockVersion and read both.
TEST(StatBlock, GoldenBytes) {
  EXPECT_EQ(Hex(EncodeStatBlock(GoldenColumns(), 0, 2)),
            "01"    // version
            "0200"  // 2 records, no sketch
            "0603"
            "0002"
            "0a02"  // activation, layout, order: zigzag differences
            "0100"  // has_finite
            "ac0201"
            "0001"
            "0000"
            "0000"
            "0000"
            "6400"
            "c80100"  // numel nan +inf -inf zero neg pos
            "000000000000f0bf"
            "000000000000f03f"
            "000000000000e03f"
            "000000000000d03f"
            "0000000000c06240"
            "0000000000002440"
            "efcdab8967452301"
            "0100000000000000"  // hashes
            "0100"
            "0000000000000040"  // one sample
            "cf1dbf26");        // CRC-32C
}

TEST(StatBlock, RoundTripsRandomColumns) {
  const unsigned seed = 7;
  std::mt19937_64 random(seed);
  for (int i = 0; i < 200; ++i) {
    const StatColumns columns =
        RandomColumns(random, 1 + random() % 40, std::array{0u, 16u, 32u, 64u}[random() % 4]);
    auto decoded = DecodeStatBlock("block", EncodeStatBlock(columns, 0, columns.size()), 7);
    ASSERT_TRUE(decoded.ok()) << decoded.status().message() << ", seed " << seed;
    ExpectEqual(*decoded, columns);
  }
}

TEST(StatBlock, EncodesAPartOfTheColumns) {
  std::mt19937_64 random(8);
  const StatColumns columns = RandomColumns(random, 10, 16);
  auto decoded = DecodeStatBlock("block", EncodeStatBlock(columns, 4, 3), 7);
  ASSERT_TRUE(decoded.ok());
  ASSERT_EQ(decoded->size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(decoded->stats[i], columns.stats[4 + i]);
    EXPECT_TRUE(std::ranges::equal(decoded->SketchOf(i), columns.SketchOf(4 + i)));
  }
}

TEST(StatBlock, EveryTruncationAndEveryFlippedBitIsSeen) {
  std::mt19937_64 random(9);
  const StatColumns columns = RandomColumns(random, 5, 16);
  const std::string good = EncodeStatBlock(columns, 0, columns.size());
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(DecodeStatBlock("block", std::string_view(good).substr(0, size), 7).ok()) << size;
  }
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    const auto decoded = DecodeStatBlock("block of step 7", bad, 7);
    ASSERT_FALSE(decoded.ok()) << bit;
    EXPECT_EQ(decoded.status().code(), Code::kDataLoss);
    EXPECT_THAT(decoded.status().message(), HasSubstr("block of step 7"));
  }
}

// Behind a correct checksum the content is still not trusted.
TEST(StatBlock, DamagedContentUnderACorrectChecksumNeverCrashes) {
  const unsigned seed = 10;
  std::mt19937_64 random(seed);
  const StatColumns columns = RandomColumns(random, 5, 16);
  const std::string good = EncodeStatBlock(columns, 0, columns.size());
  const std::string payload = good.substr(1, good.size() - 5);
  for (int i = 0; i < 20000; ++i) {
    std::string bad = payload.substr(0, random() % 3 == 0 ? random() % payload.size() : payload.size());
    for (std::size_t flips = random() % 8; flips > 0 && !bad.empty(); --flips) {
      bad[random() % std::min<std::size_t>(bad.size(), 60)] = static_cast<char>(random());
    }
    const auto decoded = DecodeStatBlock("block", Seal(kStatBlockVersion, bad), 7);
    if (decoded.ok()) {
      EXPECT_EQ(decoded->sketch.size(), decoded->size() * decoded->sketch_width);
      EXPECT_EQ(decoded->stats.size(), decoded->size());
    }
  }
  for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1001}, ~std::uint64_t{0}}) {
    ByteWriter out;
    out.Varint(count);
    out.Varint(16);
    EXPECT_FALSE(DecodeStatBlock("block", Seal(kStatBlockVersion, out.bytes()), 7).ok());
  }
}

TEST(StatBlock, NewerVersionIsNamed) {
  const auto decoded = DecodeStatBlock("block", Seal(2, "anything"), 7);
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(decoded.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(decoded.status().message(), HasSubstr("format version is 2; this build reads 1..1"));
}

RankMeta SomeRank() {
  RankMeta meta;
  meta.info.run = "base";
  meta.info.session = {1, 2, 3};
  meta.info.rank = 3;
  meta.info.world_size = 4;
  meta.info.host = "node";
  meta.info.config = {{"lr", "1e-3"}, {"empty", ""}};
  meta.durable_seq = 1u << 30;
  meta.records = 5;
  meta.last_step = 9;
  meta.dropped = {{"buffer_full", 7}};
  meta.last_write_unix_nanos = -5;
  meta.finished = true;
  return meta;
}

TEST(Catalogue, RoundTrips) {
  const AttemptMeta attempt{
      .id = 7, .number = 2, .run = "base", .launch = "torchrun:x", .world_size = 8, .start_unix_nanos = -1};
  EXPECT_EQ(*Decode<AttemptMeta>("attempt", Encode(attempt)), attempt);
  const auto rank = Decode<RankMeta>("rank", Encode(SomeRank()));
  ASSERT_TRUE(rank.ok());
  EXPECT_TRUE(rank->info.run.empty()) << "what the hello told is a value of its own";
  EXPECT_EQ(rank->durable_seq, 1u << 30);
  EXPECT_EQ(rank->first_step, std::nullopt);
  EXPECT_EQ(rank->last_step, 9u);
  EXPECT_EQ(rank->dropped, SomeRank().dropped);
  EXPECT_TRUE(rank->finished);
  const auto info = Decode<SessionInfo>("hello", Encode(SomeRank().info));
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->run, "base");
  EXPECT_EQ(info->session, SomeRank().info.session);
  EXPECT_EQ(info->rank, 3u);
  EXPECT_EQ(info->world_size, 4u);
  EXPECT_EQ(info->host, "node");
  EXPECT_EQ(info->config, SomeRank().info.config);
  const ActivationDef def{.id = 1,
                          .key = {.name = "blocks.1.ln2",
                                  .kind = Kind::kGradOutput,
                                  .output_path = "0.a",
                                  .micro_batch = 1,
                                  .call = 2,
                                  .mode = Mode::kEval},
                          .parent = "blocks.1",
                          .class_name = "LayerNorm",
                          .depth = -1};
  EXPECT_EQ(*Decode<ActivationDef>("def", Encode(def)), def);
  const Layout layout{.id = 9, .dtype = DType::kBf16, .shape = {0, 1, 1ll << 40}};
  EXPECT_EQ(*Decode<Layout>("layout", Encode(layout)), layout);
  const ScalarRecord scalar{
      .name = "loss", .step = 3, .micro_batch = 1, .value = -std::numeric_limits<double>::infinity()};
  EXPECT_EQ(*Decode<ScalarRecord>("scalar", Encode(scalar)), scalar);
  const EventRecord event{
      .kind = "records_dropped", .step = 1, .unix_nanos = 5, .text = "t", .fields = {{"a", "b"}}};
  EXPECT_EQ(*Decode<EventRecord>("event", Encode(event)), event);
  const StepRecord step{.step = ~std::uint64_t{0}, .unix_nanos = -7, .micro_batches = 2};
  EXPECT_EQ(*Decode<StepRecord>("step", Encode(step)), step);
}

TEST(Catalogue, NanScalarKeepsItsBits) {
  const double nan = std::bit_cast<double>(0x7ff8000000001234u);
  const auto decoded = Decode<ScalarRecord>("scalar", Encode(ScalarRecord{.name = "loss", .value = nan}));
  EXPECT_EQ(std::bit_cast<std::uint64_t>(decoded->value), 0x7ff8000000001234u);
}

// As for blocks: bytes that change make stores unreadable.
TEST(Catalogue, GoldenBytes) {
  SessionInfo info{.run = "r",
                   .session = {1, 2},
                   .launch = "L",
                   .if_exists = IfExists::kAppend,
                   .rank = 3,
                   .local_rank = 1,
                   .world_size = 200,
                   .host = "h",
                   .pid = 5,
                   .start_unix_nanos = -1,
                   .agent_version = "v",
                   .config = {{"k", "w"}}};
  EXPECT_EQ(Hex(Encode(info)),
            "01"
            "0172"
            "01020000000000000000000000000000"
            "014c"
            "03"
            "03"
            "01"
            "c801"
            "0168"
            "0a"
            "01"
            "0176"
            "01016b0177"
            "ad864136");
  RankMeta rank;
  rank.durable_seq = 300;
  rank.records = 2;
  rank.stat_records = 1;
  rank.steps = 1;
  rank.first_step = 0;
  rank.dropped = {{"c", 4}};
  rank.last_write_unix_nanos = 1;
  rank.finished = true;
  EXPECT_EQ(Hex(Encode(rank)),
            "01"
            "ac02"
            "02"
            "01"
            "01"
            "0100"
            "00"
            "01016304"
            "02"
            "01"
            "5bcb73dd");
  const AttemptMeta attempt{
      .id = 7, .number = 2, .run = "r", .launch = "", .world_size = 8, .start_unix_nanos = 1};
  EXPECT_EQ(Hex(Encode(attempt)),
            "01"
            "07"
            "02"
            "0172"
            "00"
            "08"
            "02"
            "d4dac36d");
  const ActivationDef def{.id = 1,
                          .key = {.name = "n",
                                  .kind = Kind::kOutput,
                                  .output_path = "0",
                                  .micro_batch = 2,
                                  .call = 3,
                                  .mode = Mode::kEval},
                          .parent = "p",
                          .class_name = "C",
                          .depth = -1};
  EXPECT_EQ(Hex(Encode(def)),
            "01"
            "01"
            "016e"
            "01"
            "0130"
            "02"
            "03"
            "02"
            "0170"
            "0143"
            "01"
            "4446012c");
  const Layout layout{.id = 2, .dtype = DType::kBf16, .shape = {3, 64}};
  EXPECT_EQ(Hex(Encode(layout)),
            "01"
            "02"
            "04"
            "02"
            "06"
            "8001"
            "baf48a8f");
  const ScalarRecord scalar{.name = "s", .step = 1, .micro_batch = 2, .value = 1};
  EXPECT_EQ(Hex(Encode(scalar)),
            "01"
            "0173"
            "01"
            "02"
            "000000000000f03f"
            "c2993498");
  const EventRecord event{.kind = "e", .step = 1, .unix_nanos = 2, .text = "t", .fields = {{"a", "b"}}};
  EXPECT_EQ(Hex(Encode(event)),
            "01"
            "0165"
            "01"
            "04"
            "0174"
            "0101610162"
            "529291f7");
  const StepRecord step{.step = 1, .unix_nanos = 2, .micro_batches = 3};
  EXPECT_EQ(Hex(Encode(step)),
            "01"
            "01"
            "04"
            "03"
            "29e1b96d");
}

TEST(Catalogue, DamagedContentUnderACorrectChecksumNeverCrashes) {
  std::mt19937_64 random(11);
  const std::string good = Encode(SomeRank());
  const std::string payload = good.substr(1, good.size() - 5);
  for (int i = 0; i < 20000; ++i) {
    std::string bad = payload.substr(0, random() % (payload.size() + 1));
    for (std::size_t flips = random() % 6; flips > 0 && !bad.empty(); --flips)
      bad[random() % bad.size()] = static_cast<char>(random());
    const std::string sealed = Seal(1, bad);
    (void)Decode<RankMeta>("rank", sealed);
    (void)Decode<ActivationDef>("def", sealed);
    (void)Decode<Layout>("layout", sealed);
    (void)Decode<EventRecord>("event", sealed);
  }
  ByteWriter huge;
  huge.Varint(1);
  huge.U8(2);
  huge.Varint(~std::uint64_t{0} >> 1);  // dimensions that cannot be there
  EXPECT_FALSE(Decode<Layout>("layout", Seal(1, huge.bytes())).ok());
}

TEST(ByteReader, RefusesOverlongVarint) {
  ByteReader in(std::string_view("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", 10));
  in.Varint();
  EXPECT_FALSE(in.ok());
  ByteReader max(std::string_view("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 10));
  EXPECT_EQ(max.Varint(), ~std::uint64_t{0});
  EXPECT_TRUE(max.done());
}

}  // namespace
}  // namespace statcollect
