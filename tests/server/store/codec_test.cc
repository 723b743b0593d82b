#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/store/byte_io.h"
#include "server/store/codec/block_reader.h"
#include "server/store/codec/catalogue.h"
#include "server/store/codec/packed_column.h"
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

// Anything that 64 bits can hold, and records like real ones.
class Blocks {
 public:
  explicit Blocks(unsigned seed) : random_(seed) {}
  std::mt19937_64& random() { return random_; }

  BlockColumns Any(std::size_t count, std::uint32_t width) {
    StatColumns columns = Columns(count, width);
    return Block(columns);
  }

  static BlockColumns Block(const StatColumns& columns) {
    std::vector<std::uint32_t> indexes(columns.size());
    std::iota(indexes.begin(), indexes.end(), 0u);
    std::vector<std::size_t> sample_at(columns.size());
    std::exclusive_scan(columns.sample_count.begin(), columns.sample_count.end(), sample_at.begin(),
                        std::size_t{0});
    BlockColumns block;
    block.Take(columns, indexes, sample_at);
    return block;
  }

  StatColumns Columns(std::size_t count, std::uint32_t width) {
    StatColumns columns;
    columns.sketch_width = width;
    const bool wild = random_() % 2 == 0;
    for (std::size_t i = 0; i < count; ++i) Add(&columns, i, wild);
    return columns;
  }

  // As `columns` in another step: some records the same, most of them changed a little.
  StatColumns Later(StatColumns columns) {
    columns.samples.clear();
    for (std::size_t i = 0; i < columns.size(); ++i) {
      columns.sample_count[i] = 0;
      if (random_() % 4 == 0) continue;
      TensorStats& s = columns.stats[i];
      s.hash = random_();
      s.zero += random_() % 3;
      if (s.has_finite) {
        s.mean *= -1.01;
        s.std *= 1.001;
        s.l2 = std::nextafter(s.l2, 1e9);
      }
      if (random_() % 8 == 0) s = Stats(random_() % 2 == 0);
      for (double& sum :
           std::span(columns.sketch).subspan(i * columns.sketch_width, columns.sketch_width))
        sum *= 0.5;
    }
    return columns;
  }

 private:
  double Real() {
    switch (random_() % 6) {
      case 0:
        return std::bit_cast<double>(random_());  // infinities, NaNs, denormals
      case 1:
        return -0.0;
      case 2:
        return std::numeric_limits<double>::infinity();
      default:
        return std::normal_distribution<double>()(random_);
    }
  }

  TensorStats Stats(bool wild) {
    TensorStats s{.numel = random_() % 100000, .hash = random_()};
    s.has_finite = random_() % 5 != 0;
    if (wild) {
      s.nan = random_() >> (random_() % 64);
      s.zero = random_();
      s.neg = random_() % 7;
      s.pos = random_();
    } else {
      s.neg = s.has_finite ? s.numel / 3 : 0;
      s.pos = s.has_finite ? s.numel - s.neg : 0;
      s.nan = s.has_finite ? 0 : s.numel;
    }
    if (!s.has_finite) return s;
    s.min = wild ? Real() : -1.5;
    s.max = wild ? Real() : 2.25;
    s.mean = wild ? Real() : 0.1 * static_cast<double>(random_() % 100);
    s.std = wild ? Real() : 0.5;
    s.l1 = wild ? Real() : static_cast<double>(s.numel) * 0.4;
    s.l2 =
        wild ? Real() : std::sqrt(static_cast<double>(s.numel) * (s.mean * s.mean + s.std * s.std));
    return s;
  }

  void Add(StatColumns* columns, std::size_t i, bool wild) {
    columns->activation.push_back(wild ? static_cast<std::uint32_t>(random_())
                                       : static_cast<std::uint32_t>(7 + i));
    columns->layout.push_back(static_cast<std::uint32_t>(random_() % 5));
    columns->order.push_back(static_cast<std::uint32_t>(i));
    columns->step.push_back(7);
    columns->stats.push_back(Stats(wild));
    const bool wide = random_() % 2 == 0;
    for (std::uint32_t k = 0; k < columns->sketch_width; ++k) {
      columns->sketch.push_back(
          wide ? Real() : static_cast<float>(std::normal_distribution<double>()(random_)));
    }
    columns->sample_count.push_back(static_cast<std::uint32_t>(random_() % 3));
    for (std::uint32_t k = 0; k < columns->sample_count.back(); ++k)
      columns->samples.push_back(Real());
  }

  std::mt19937_64 random_;
};

std::vector<std::uint64_t> BitsOf(const std::vector<double>& values) {
  std::vector<std::uint64_t> bits;
  for (const double value : values) bits.push_back(std::bit_cast<std::uint64_t>(value));
  return bits;
}

void ExpectEqual(const BlockColumns& a, const BlockColumns& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(a.sketch_width(), b.sketch_width());
  for (std::size_t column = 0; column < kColumnCount; ++column) {
    EXPECT_TRUE(
        std::ranges::equal(a.of(static_cast<Column>(column)), b.of(static_cast<Column>(column))))
        << column;
  }
  EXPECT_EQ(BitsOf(a.sketch), BitsOf(b.sketch));
  EXPECT_EQ(BitsOf(a.samples), BitsOf(b.samples));
  EXPECT_EQ(a.Digest(), b.Digest());
}

// What the encoded block says; also record by record.
Status Read(const EncodedBlock& encoded, const BlockColumns* key_frame, BlockColumns* block) {
  auto reader = BlockReader::Open({.step = 7}, encoded.stats);
  if (!reader.ok()) return reader.status();
  if (reader->kind() == BlockReader::Kind::kAlias) return {Code::kInvalidArgument, "an alias"};
  if ((reader->kind() == BlockReader::Kind::kRelative) != (key_frame != nullptr))
    return {Code::kInvalidArgument, "of another kind"};
  STATCOLLECT_RETURN_IF_ERROR(reader->ReadNumbers(key_frame, block));
  STATCOLLECT_RETURN_IF_ERROR(reader->ReadSums(
      encoded.sums.empty() ? std::nullopt : std::optional<std::string_view>(encoded.sums),
      key_frame, block));
  for (std::size_t i = 0; i < block->size(); ++i) {
    ColumnRecord key;
    if (key_frame != nullptr) key = key_frame->Record(i);
    EXPECT_EQ(reader->ReadRecord(i, key_frame != nullptr ? &key : nullptr), block->Record(i)) << i;
  }
  return Status::Ok();
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

BlockDigest GoldenDigest() {
  BlockDigest digest;
  std::iota(digest.begin(), digest.end(), std::uint8_t{0xd0});
  return digest;
}

// Changing these bytes makes every store unreadable: raise kStatBlockVersion and read both.
TEST(Captures, GoldenBytes) {
  EXPECT_EQ(Hex(Encode(CaptureHead{.layout = 2, .elements = 300, .bytes = 1200})),
            "01"          // version
            "02"          // layout
            "ac02"        // elements
            "b009"        // bytes of the chunk
            "d1268b4c");  // CRC-32C
  EXPECT_EQ(
      Hex(EncodeCaptureKey(
          {.attempt = 1, .rank = 2, .part = 'd', .step = 3, .activation = 4, .offset = 0x80000})),
      "00000001000000026400000000000000030000000400080000");
  const auto key = DecodeCaptureKey(
      EncodeCaptureKey({.attempt = 9, .rank = 8, .step = 7, .activation = 6, .offset = 5}));
  ASSERT_TRUE(key);
  EXPECT_EQ(key->attempt, 9u);
  EXPECT_EQ(key->part, 'h');
  EXPECT_EQ(key->offset, 5u);
  EXPECT_FALSE(DecodeCaptureKey("short"));
}

TEST(Exponents, GoldenBytes) {
  const ExponentRecord record{
      .step = 7, .activation = 3, .layout = 2, .lowest = -25, .counts = {300, 0, 1}};
  const std::string bytes = Encode(record);
  EXPECT_EQ(Hex(bytes).substr(0, 20),
            "01"      // version
            "07"      // step
            "03"      // activation
            "02"      // layout
            "31"      // lowest exponent
            "03"      // counts
            "ac0200"  // of -25, -24
            "01");    // of -23
  const auto back = Decode<ExponentRecord>("exponents", bytes);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(*back, record);
  ExponentRecord beyond = record;
  beyond.lowest = kExponentHighest - 1;
  EXPECT_EQ(Decode<ExponentRecord>("exponents", Encode(beyond)).status().code(), Code::kDataLoss);
  EXPECT_EQ(
      Hex(EncodeCaptureKey({.attempt = 1, .rank = 2, .part = 'e', .step = 3, .activation = 4})),
      "00000001000000026500000000000000030000000400000000");
}

TEST(TokenRecord, GoldenBytes) {
  const TokenRecord record{
      .step = 7,
      .tap = "fc",
      .call = 1,
      .dtype = DType::kF32,
      .columns = 300,
      .first_column = 2,
      .rows = {{.key = 0x0102030405060708,
                .position = 129,
                .stats = {.l2 = 1, .hash = 0x1112131415161718, .sketch = {-2}}}}};
  const std::string bytes = Encode(record);
  EXPECT_EQ(Hex(bytes).substr(0, 130),
            "01"                // version
            "07"                // step
            "026663"            // tap
            "01"                // call
            "02"                // dtype
            "ac02"              // columns
            "02"                // first column
            "01"                // rows
            "0807060504030201"  // key
            "8101"              // position
            "0000803f"          // l2
            "1817161514131211"  // hash
            "000000c0"          // sums
            "00000000000000000000000000000000000000000000000000000000");
  const auto back = Decode<TokenRecord>("tokens", bytes);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(*back, record);
  TokenRecord many = record;
  many.rows.resize(kTokenRowsMax + 1);
  EXPECT_EQ(Decode<TokenRecord>("tokens", Encode(many)).status().code(), Code::kDataLoss);
}

TEST(StatBlock, GoldenBytes) {
  const BlockColumns block = Blocks::Block(GoldenColumns());
  const EncodedBlock whole = EncodeBlock(block, GoldenDigest());
  EXPECT_EQ(Hex(whole.stats),
            "0200d0d1d2d3d4d5d6d7d8d9dadbdcdddedf0200"  // version 2, whole, digest, 2 records, no
                                                        // sketch; then mode, base, shift, width,
                                                        // bits of each column
            "0001010101"                                // activation
            "0000000102"                                // layout
            "0005000102"                                // order
            "0000010305"                                // flags
            "01d504000203"                              // numel
            "0000000102"                                // nan
            "000040"                                    // +inf
            "000040"                                    // -inf
            "000040"                                    // zero
            "000002051900"                              // neg
            "040040"                                    // pos
            "0080808080808080f03f40"                    // mean
            "0080808080808080e83f40"                    // std
            "04f0baf3929aa55140"                        // l2
            "04b8c188d698ebbc0140"                      // l1
            "0080808080808080f83f40"                    // min
            "0080808080808080f83f40"                    // max
            "0000000101"                                // samples
            "efcdab89674523010100000000000000"          // hashes
            "ea9b59ae"                                  // CRC-32C
  );
  EXPECT_EQ(Hex(whole.sums), "0200000000000000407eaf0f17");
  StatColumns later = GoldenColumns();
  later.stats[0].zero = 2;
  later.stats[0].pos = 198;
  later.stats[0].mean = 0.25;
  const EncodedBlock relative = EncodeBlock(Blocks::Block(later), GoldenDigest(), block, 3);
  EXPECT_EQ(Hex(relative.stats),
            "0201d0d1d2d3d4d5d6d7d8d9dadbdcdddedf0200030102"  // relative, 3 steps back, the second
                                                              // record is the key frame's
            "000040"                                          // layout
            "000540"                                          // order
            "000a40"                                          // flags
            "00ac0240"                                        // numel
            "000040"                                          // nan
            "000040"                                          // +inf
            "000040"                                          // -inf
            "000240"                                          // zero
            "006440"                                          // neg
            "040040"                                          // pos
            "0080808080808080e83f40"                          // mean
            "0080808080808080e83f40"                          // std
            "048cdaa4efccd3c00b40"                            // l2
            "040040"                                          // l1
            "0080808080808080f83f40"                          // min
            "0080808080808080f83f40"                          // max
            "000140"                                          // samples
            "efcdab8967452301"                                // hashes
            "de05c389"                                        // CRC-32C
  );
  EXPECT_EQ(Hex(EncodeAlias(GoldenDigest(), 200, 16,
                            {.attempt = 1, .rank = 2, .step = 300, .activation = 4})),
            "0202d0d1d2d3d4d5d6d7d8d9dadbdcdddedfc801100102ac02047cf0d926");
}

TEST(StatBlock, RoundTripsWholeAndRelative) {
  const unsigned seed = 7;
  Blocks blocks(seed);
  for (int i = 0; i < 400; ++i) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", block " + std::to_string(i));
    const std::size_t count = i % 8 == 0 ? kBlockRecordsMax : 1 + blocks.random()() % 70;
    const StatColumns columns =
        blocks.Columns(count, std::array{0u, 16u, 32u, 64u}[blocks.random()() % 4]);
    const BlockColumns block = Blocks::Block(columns);
    BlockColumns read;
    ASSERT_TRUE(Read(EncodeBlock(block, block.Digest()), nullptr, &read).ok());
    ExpectEqual(read, block);

    const BlockColumns later = Blocks::Block(blocks.Later(columns));
    ASSERT_TRUE(IsKeyFrameFor(block, later));
    const Status status = Read(EncodeBlock(later, later.Digest(), block, 1), &block, &read);
    ASSERT_TRUE(status.ok()) << status.message();
    ExpectEqual(read, later);
  }
}

TEST(StatBlock, WhatIsAsInTheKeyFrameTakesNoRoom) {
  Blocks blocks(8);
  const BlockColumns block = blocks.Any(kBlockRecordsMax, 16);
  const EncodedBlock same = EncodeBlock(block, block.Digest(), block, 1);
  EXPECT_LT(same.stats.size(), 64u);
  EXPECT_TRUE(same.sums.empty());
  BlockColumns read;
  ASSERT_TRUE(Read(same, &block, &read).ok());
  ExpectEqual(read, block);
}

TEST(StatBlock, AliasSaysItsTarget) {
  const StatKey target{
      .attempt = 1, .rank = 0xffffffff, .step = ~std::uint64_t{0}, .activation = 5};
  const auto reader = BlockReader::Open({.step = 7}, EncodeAlias(GoldenDigest(), 200, 16, target));
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(reader->kind(), BlockReader::Kind::kAlias);
  EXPECT_EQ(reader->target(), target);
  EXPECT_EQ(reader->digest(), GoldenDigest());
  EXPECT_EQ(reader->size(), 200u);
}

TEST(StatBlock, DigestTellsContentsApart) {
  const StatColumns columns = GoldenColumns();
  const BlockDigest digest = Blocks::Block(columns).Digest();
  EXPECT_EQ(Blocks::Block(columns).Digest(), digest);
  StatColumns other = columns;
  other.stats[1].hash ^= 1;
  EXPECT_NE(Blocks::Block(other).Digest(), digest);
  other = columns;
  other.samples[0] = -2;
  EXPECT_NE(Blocks::Block(other).Digest(), digest);
  other = columns;
  other.order[1] = 7;
  EXPECT_NE(Blocks::Block(other).Digest(), digest);
  other = columns;
  other.step = {10, 10};
  EXPECT_EQ(Blocks::Block(other).Digest(), digest) << "the step is the key's";
}

TEST(StatBlock, EveryTruncationAndEveryFlippedBitIsSeen) {
  Blocks blocks(9);
  const BlockColumns block = blocks.Any(5, 16);
  const EncodedBlock good = EncodeBlock(block, block.Digest());
  BlockColumns read;
  for (std::size_t size = 0; size < good.stats.size(); ++size) {
    EXPECT_FALSE(Read({good.stats.substr(0, size), good.sums}, nullptr, &read).ok()) << size;
  }
  for (std::size_t size = 0; size < good.sums.size(); ++size) {
    EXPECT_FALSE(Read({good.stats, good.sums.substr(0, size)}, nullptr, &read).ok()) << size;
  }
  for (std::size_t bit = 0; bit < (good.stats.size() + good.sums.size()) * 8; ++bit) {
    EncodedBlock bad = good;
    char& byte =
        bit / 8 < bad.stats.size() ? bad.stats[bit / 8] : bad.sums[bit / 8 - bad.stats.size()];
    byte = static_cast<char>(byte ^ (1 << (bit % 8)));
    const Status status = Read(bad, nullptr, &read);
    ASSERT_FALSE(status.ok()) << bit;
    EXPECT_EQ(status.code(), Code::kDataLoss);
    EXPECT_THAT(status.message(), HasSubstr("block of attempt 0, rank 0, step 7"));
  }
}

// Behind a correct checksum the content is still not trusted.
TEST(StatBlock, DamagedContentUnderACorrectChecksumNeverCrashes) {
  Blocks blocks(10);
  std::mt19937_64& random = blocks.random();
  for (int i = 0; i < 4000; ++i) {
    const StatColumns columns = blocks.Columns(1 + random() % 40, 16);
    const BlockColumns block = Blocks::Block(columns);
    const BlockColumns later = Blocks::Block(blocks.Later(columns));
    const bool relative = random() % 2 == 0;
    const EncodedBlock good = relative ? EncodeBlock(later, later.Digest(), block, 1)
                                       : EncodeBlock(block, block.Digest());
    std::string bad = good.stats.substr(1, good.stats.size() - 5);
    if (random() % 3 == 0) bad.resize(random() % bad.size());
    for (std::size_t flips = random() % 8; flips > 0 && !bad.empty(); --flips) {
      const std::size_t at = random() % 2 == 0 ? random() % std::min<std::size_t>(bad.size(), 40)
                                               : random() % bad.size();
      bad[at] = static_cast<char>(random());
    }
    BlockColumns read;
    const Status status =
        Read({Seal(kStatBlockVersion, bad), good.sums}, relative ? &block : nullptr, &read);
    if (status.ok()) {
      EXPECT_EQ(read.sketch.size(), read.size() * read.sketch_width());
    }
  }
}

TEST(StatBlock, NewerVersionIsNamed) {
  const auto reader = BlockReader::Open({.step = 7}, Seal(3, "anything"));
  ASSERT_FALSE(reader.ok());
  EXPECT_EQ(reader.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(reader.status().message(), HasSubstr("format version is 3; this build reads 1..2"));
}

TEST(PackedColumn, RoundTripsEveryWidthShiftAndLength) {
  std::mt19937_64 random(11);
  for (unsigned width = 0; width <= 64; ++width) {
    for (const std::size_t count : {1u, 2u, 31u, 32u, 33u, 64u, 255u, 256u}) {
      const unsigned shift = width == 64 ? 0 : static_cast<unsigned>(random() % (65 - width));
      const std::uint64_t base = random() >> (random() % 64);
      std::vector<std::uint64_t> numbers(count);
      for (std::uint64_t& number : numbers) {
        const std::uint64_t bits = width == 0 ? 0 : random() >> (64 - width);
        number = base + (shift == 64 ? 0 : bits << shift);
      }
      ByteWriter out;
      WritePacked(out, numbers, PackingOf(numbers));
      for (const bool followed : {false, true}) {
        const std::string bytes = out.bytes() + (followed ? "12345678" : "");
        ByteReader in(bytes);
        const PackedColumn column(in, count);
        ASSERT_TRUE(in.ok());
        EXPECT_EQ(in.remaining(), followed ? 8u : 0u);
        std::vector<std::uint64_t> read(count);
        column.ReadAll(read);
        ASSERT_EQ(read, numbers) << "width " << width << ", count " << count;
        for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(column.At(i), numbers[i]);
      }
    }
  }
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
  const AttemptMeta attempt{.id = 7,
                            .number = 2,
                            .run = "base",
                            .launch = "torchrun:x",
                            .world_size = 8,
                            .start_unix_nanos = -1};
  EXPECT_EQ(*Decode<AttemptMeta>("attempt", Encode(attempt)), attempt);
  const auto rank = Decode<RankMeta>("rank", Encode(SomeRank()));
  ASSERT_TRUE(rank.ok());
  EXPECT_TRUE(rank->info.run.empty()) << "the hello is a value of its own";
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
  const TensorDef def{.id = 1,
                      .key = {.name = "blocks.1.ln2",
                              .kind = Kind::kGradOutput,
                              .output_path = "0.a",
                              .micro_batch = 1,
                              .call = 2,
                              .mode = Mode::kEval},
                      .parent = "blocks.1",
                      .class_name = "LayerNorm",
                      .depth = -1};
  EXPECT_EQ(*Decode<TensorDef>("def", Encode(def)), def);
  const Layout layout{.id = 9, .dtype = DType::kBf16, .shape = {0, 1, 1ll << 40}};
  EXPECT_EQ(*Decode<Layout>("layout", Encode(layout)), layout);
  const ScalarRecord scalar{.name = "loss",
                            .step = 3,
                            .micro_batch = 1,
                            .value = -std::numeric_limits<double>::infinity()};
  EXPECT_EQ(*Decode<ScalarRecord>("scalar", Encode(scalar)), scalar);
  const EventRecord event{
      .kind = "records_dropped", .step = 1, .unix_nanos = 5, .text = "t", .fields = {{"a", "b"}}};
  EXPECT_EQ(*Decode<EventRecord>("event", Encode(event)), event);
  const StepRecord step{.step = ~std::uint64_t{0}, .unix_nanos = -7, .micro_batches = 2};
  EXPECT_EQ(*Decode<StepRecord>("step", Encode(step)), step);
}

TEST(Catalogue, RanksThatRecordAreWrittenOnlyWhereTheyAreNotAll) {
  RankMeta rank = SomeRank();
  const std::string all = Encode(rank), hello = Encode(rank.info);
  rank.ranks_expected = 200;
  rank.info.ranks = "0,3";
  const std::string some = Encode(rank), some_hello = Encode(rank.info);
  EXPECT_EQ(Hex(all).substr(0, 2), "01");
  EXPECT_EQ(Hex(some).substr(0, 2), "02") << "which builds before it refuse by its version";
  EXPECT_EQ(Hex(hello).substr(0, 2), "01");
  EXPECT_EQ(Hex(some_hello).substr(0, 2), "02");
  EXPECT_EQ(Hex(some).size(), Hex(all).size() + 4) << "a varint of two bytes";
  EXPECT_EQ(Decode<RankMeta>("rank", some)->ranks_expected, 200u);
  EXPECT_EQ(Decode<SessionInfo>("hello", some_hello)->ranks, "0,3");
  EXPECT_EQ(Decode<RankMeta>("rank", all)->ranks_expected, 0u) << "written by any build";
  EXPECT_EQ(Decode<SessionInfo>("hello", hello)->ranks, "");
}

TEST(Catalogue, NanScalarKeepsItsBits) {
  const double nan = std::bit_cast<double>(0x7ff8000000001234u);
  const auto decoded =
      Decode<ScalarRecord>("scalar", Encode(ScalarRecord{.name = "loss", .value = nan}));
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
  const TensorDef def{.id = 1,
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
  const TensorDef of_operator{.id = 1,
                              .key = {.name = "m/#3 aten.mul.Tensor",
                                      .kind = Kind::kOperator,
                                      .output_path = "0",
                                      .micro_batch = 0,
                                      .call = 0,
                                      .mode = Mode::kTrain},
                              .parent = "m",
                              .class_name = "C",
                              .depth = 1};
  EXPECT_EQ(Hex(Encode(of_operator)),
            "01"
            "01"
            "146d2f2333206174656e2e6d756c2e54656e736f72"
            "0c"
            "0130"
            "00"
            "00"
            "01"
            "016d"
            "0143"
            "02"
            "092d4ada");
  Layout layout{.id = 2, .dtype = DType::kBf16, .shape = {3, 64}, .hash_kind = HashKind::kContent2};
  EXPECT_EQ(Hex(Encode(layout)),
            "01"
            "02"
            "04"
            "02"
            "06"
            "8001"
            "baf48a8f");
  EXPECT_EQ(*Decode<Layout>("layout", Encode(layout)), layout);
  layout.hash_kind = HashKind::kContent3;
  EXPECT_EQ(Hex(Encode(layout)).substr(0, 20), "01020402068001000005");
  EXPECT_EQ(*Decode<Layout>("layout", Encode(layout)), layout);
  Layout foreign = layout;
  foreign.absent = 0x3010;
  foreign.untrusted = 8;
  foreign.hash_kind = HashKind::kCrc32;
  EXPECT_EQ(Hex(Encode(foreign)).substr(0, 22), "0102040206800190600801");
  EXPECT_EQ(*Decode<Layout>("layout", Encode(foreign)), foreign);
  const ScalarRecord scalar{.name = "s", .step = 1, .micro_batch = 2, .value = 1};
  EXPECT_EQ(Hex(Encode(scalar)),
            "01"
            "0173"
            "01"
            "02"
            "000000000000f03f"
            "c2993498");
  const EventRecord event{
      .kind = "e", .step = 1, .unix_nanos = 2, .text = "t", .fields = {{"a", "b"}}};
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
    (void)Decode<TensorDef>("def", sealed);
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
