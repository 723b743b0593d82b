// The hand-written encoding against the generated code.
#include "agent/export/wire.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <random>
#include <string>

#include "proto/convert.h"
#include "statcollect/v1/ingest.pb.h"
#include "tests/support/random_batch.h"
#include "tests/support/random_placement.h"

namespace statcollect {
namespace {

static_assert(wire::kProtocolVersion == kProtocolVersion);

v1::AgentMessage Parse(const std::string& bytes) {
  v1::AgentMessage message;
  EXPECT_TRUE(message.ParseFromString(bytes));
  return message;
}

void ExpectSameBatch(const RecordBatch& batch, std::span<const Layout> known_before,
                     std::span<const Layout> known) {
  const v1::AgentMessage message = Parse(wire::EncodeBatch(batch, known));
  ASSERT_TRUE(message.has_batch());
  const auto decoded = FromWire(message.batch(), known_before);
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(decoded->first_seq, batch.first_seq);
  EXPECT_EQ(decoded->activations, batch.activations);
  EXPECT_EQ(decoded->layouts, batch.layouts);
  EXPECT_TRUE(testing::operator==(decoded->stats, batch.stats));
  EXPECT_EQ(decoded->scalars, batch.scalars);
  EXPECT_EQ(decoded->events, batch.events);
  EXPECT_EQ(decoded->memory, batch.memory);
  EXPECT_EQ(decoded->densities, batch.densities);
  EXPECT_EQ(decoded->exponents, batch.exponents);
  EXPECT_EQ(decoded->tokens, batch.tokens);
  EXPECT_EQ(decoded->settings, batch.settings);
  EXPECT_EQ(decoded->steps, batch.steps);
}

TEST(Wire, BatchesArriveAsTheyWere) {
  const auto layouts = testing::StandardLayouts();
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto width = std::array{0u, 16u, 32u, 64u}[seed % 4];
    RecordBatch batch =
        testing::RandomBatch(seed, 1 + seed * 1000,
                             {.activations = 1 + static_cast<std::uint32_t>(seed % 20),
                              .first_step = seed * (seed % 3 == 0 ? 1'000'000'007 : 1),
                              .steps = 1 + seed % 3,
                              .sketch_width = width});
    if (seed % 2 == 0) testing::AddObservations(&batch, seed);
    ExpectSameBatch(batch, {}, layouts);
  }
}

TEST(Wire, ABatchSaysWhichNumbersStayUnusedBeforeIt) {
  RecordBatch batch = testing::RandomBatch(1, 100);
  batch.skipped = 98;
  const auto layouts = testing::StandardLayouts();
  const auto decoded = FromWire(Parse(wire::EncodeBatch(batch, layouts)).batch(), {});
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(decoded->skipped, 98u);
}

TEST(Wire, BatchesAreByteForByteWhatTheGeneratedCodeWrites) {
  const auto layouts = testing::StandardLayouts();
  RecordBatch batch = testing::RandomBatch(7, 42);
  testing::AddObservations(&batch, 0);
  v1::AgentMessage message;
  *message.mutable_batch() = ToWire(batch, {});
  EXPECT_EQ(wire::EncodeBatch(batch, layouts), message.SerializeAsString());
}

TEST(Wire, PlacementsArriveAsTheyWereByteForByteWhatTheGeneratedCodeWrites) {
  std::mt19937_64 random(17);
  for (int i = 0; i < 300; ++i) {
    RecordBatch batch;
    batch.first_seq = 1;
    batch.steps = {{}};
    for (std::uint32_t id = 0; id < 3; ++id)
      batch.layouts.push_back(testing::RandomShard(random, id));
    ExpectSameBatch(batch, {}, batch.layouts);
    v1::AgentMessage message;
    *message.mutable_batch() = ToWire(batch, {});
    EXPECT_EQ(wire::EncodeBatch(batch, batch.layouts), message.SerializeAsString());
  }
}

TEST(Wire, APlacementCostsItsLayoutBytesOnceAndARecordNone) {
  std::vector<Layout> layouts = testing::StandardLayouts();
  RecordBatch first = testing::RandomBatch(3, 100),
              later = testing::RandomBatch(3, 500, {.define = false});
  const std::size_t bytes = wire::EncodeBatch(first, layouts).size();
  const std::string bytes_later = wire::EncodeBatch(later, layouts);
  layouts[0].placement =
      first.layouts[0].placement = {.global_shape = {4, 64}, .boxes = {0, 24, 4, 8}};
  EXPECT_LT(wire::EncodeBatch(first, layouts).size(), bytes + 32);
  EXPECT_EQ(wire::EncodeBatch(later, layouts), bytes_later);
}

TEST(Wire, RecordsMayUseLayoutsOfEarlierBatches) {
  const auto layouts = testing::StandardLayouts();
  const RecordBatch batch = testing::RandomBatch(3, 100, {.define = false});
  ExpectSameBatch(batch, layouts, layouts);
}

TEST(Wire, BatchesWithoutTensorsAndWithSamplesAndWithExtremesArrive) {
  RecordBatch small;
  small.first_seq = 1;
  small.scalars = {{"nan", 0, 3, std::numeric_limits<double>::infinity()},
                   {"minus zero", 0, 0, -0.0}};
  small.events = {
      {"note", std::numeric_limits<std::uint64_t>::max(), -5, "", {{"a", ""}, {"b", "c"}}}};
  ExpectSameBatch(small, {}, {});

  RecordBatch samples = testing::RandomBatch(5, 9, {.activations = 2, .steps = 1});
  samples.stats.sample_count = {3, 0};
  samples.stats.samples = {1.5, -2.5, 1e300};
  ExpectSameBatch(samples, {}, testing::StandardLayouts());
}

TEST(Wire, ChunksOfCapturesArriveAsTheyWere) {
  RecordBatch batch = testing::RandomBatch(5, 9, {.activations = 2, .steps = 1});
  const std::vector<Layout> layouts = testing::StandardLayouts();
  batch.captures = {{.step = 3,
                     .activation = 1,
                     .layout = 1,
                     .elements = 16,
                     .offset = 0,
                     .data = std::string(100, '\0')},
                    {.step = 3,
                     .activation = 1,
                     .layout = 1,
                     .elements = 16,
                     .offset = 100,
                     .data = std::string(28, 'x')}};
  ExpectSameBatch(batch, {}, layouts);
  const auto decoded = FromWire(Parse(wire::EncodeBatch(batch, layouts)).batch(), {});
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(decoded->captures, batch.captures);
}

TEST(Wire, DefinitionsKeepNegativeDepths) {
  RecordBatch batch = testing::RandomBatch(5, 9, {.activations = 1, .steps = 1});
  batch.activations[0].depth = -1;
  ExpectSameBatch(batch, {}, testing::StandardLayouts());
}

TEST(Wire, HelloArrivesAsItWas) {
  SessionInfo info{.run = "base",
                   .session = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0},
                   .launch = "torchrun:x",
                   .if_exists = IfExists::kAppend,
                   .rank = 3,
                   .local_rank = 1,
                   .world_size = 8,
                   .host = "node",
                   .pid = 1234,
                   .start_unix_nanos = 1'700'000'000'000'000'000,
                   .agent_version = "0.1.0",
                   .config = {{"lr", "0.1"}, {"empty", ""}},
                   .ranks = "0-3",
                   .attempt_start_unix_nanos = 1'700'000'000'000'000'007};
  const v1::AgentMessage message = Parse(wire::EncodeHello(info, 17));
  ASSERT_TRUE(message.has_hello());
  EXPECT_EQ(message.hello().first_unacked_seq(), 17u);
  const auto decoded = FromWire(message.hello());
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(decoded->run, info.run);
  EXPECT_EQ(decoded->session, info.session);
  EXPECT_EQ(decoded->launch, info.launch);
  EXPECT_EQ(decoded->if_exists, info.if_exists);
  EXPECT_EQ(decoded->rank, info.rank);
  EXPECT_EQ(decoded->local_rank, info.local_rank);
  EXPECT_EQ(decoded->world_size, info.world_size);
  EXPECT_EQ(decoded->host, info.host);
  EXPECT_EQ(decoded->pid, info.pid);
  EXPECT_EQ(decoded->start_unix_nanos, info.start_unix_nanos);
  EXPECT_EQ(decoded->agent_version, info.agent_version);
  EXPECT_EQ(decoded->config, info.config);
  EXPECT_EQ(decoded->ranks, info.ranks);
  EXPECT_EQ(decoded->attempt_start_unix_nanos, info.attempt_start_unix_nanos);
}

TEST(Wire, GoodbyeCarriesTheCounters) {
  const AgentCounters counters{
      .produced = 10, .acked = 7, .pending = 0, .dropped_by_cause = {{"closed", 3}}};
  const v1::AgentMessage message = Parse(wire::EncodeGoodbye(counters));
  ASSERT_TRUE(message.has_goodbye());
  const AgentCounters decoded = FromWire(message.goodbye().counters());
  EXPECT_EQ(decoded.produced, 10u);
  EXPECT_EQ(decoded.acked, 7u);
  EXPECT_EQ(decoded.dropped_by_cause, counters.dropped_by_cause);
  EXPECT_FALSE(decoded.unused);
  EXPECT_TRUE(FromWire(Parse(wire::EncodeGoodbye({.unused = true})).goodbye().counters()).unused);
}

TEST(Wire, ReadsWhatTheCollectorSays) {
  v1::CollectorMessage welcome;
  welcome.mutable_welcome()->set_protocol_version(1);
  welcome.mutable_welcome()->set_attempt(2);
  welcome.mutable_welcome()->set_durable_seq(1ull << 40);
  welcome.mutable_welcome()->mutable_limits()->set_window_batches_max(3);
  welcome.mutable_welcome()->mutable_limits()->set_capture_chunk_bytes_max(1u << 20);
  welcome.mutable_welcome()->set_fsync(true);
  welcome.mutable_welcome()->set_store_id(std::string(15, 'i') + '\xff');
  welcome.mutable_welcome()->set_store_epoch(~std::uint64_t{0} - 1);
  const auto read = wire::Decode(welcome.SerializeAsString());
  ASSERT_TRUE(read.ok() && read->welcome && !read->ack);
  EXPECT_EQ(read->welcome->attempt, 2u);
  EXPECT_EQ(read->welcome->durable_seq, 1ull << 40);
  EXPECT_EQ(read->welcome->limits.window_batches_max, 3u);
  EXPECT_EQ(read->welcome->limits.message_bytes_max, 4u << 20) << "not said: the default";
  EXPECT_EQ(read->welcome->limits.capture_chunk_bytes_max, 1u << 20);
  EXPECT_EQ(read->welcome->store.id[0], 'i');
  EXPECT_EQ(read->welcome->store.id[15], 0xff);
  EXPECT_EQ(read->welcome->store.epoch, ~std::uint64_t{0} - 1);
  welcome.mutable_welcome()->set_store_id("short");
  welcome.mutable_welcome()->clear_store_epoch();
  EXPECT_FALSE(wire::Decode(welcome.SerializeAsString())->welcome->store.known())
      << "as an older collector";

  v1::CollectorMessage ack;
  ack.mutable_ack()->set_durable_seq(9);
  EXPECT_EQ(*wire::Decode(ack.SerializeAsString())->ack, 9u);
  ack.mutable_ack()->set_durable_seq(0);
  EXPECT_EQ(*wire::Decode(ack.SerializeAsString())->ack, 0u);

  v1::CollectorMessage directive;
  directive.mutable_directive()->set_kind("steps");
  (*directive.mutable_directive()->mutable_arguments())["steps"] = "5-9";
  (*directive.mutable_directive()->mutable_arguments())["empty"] = "";
  const auto told = wire::Decode(directive.SerializeAsString());
  ASSERT_TRUE(told.ok() && told->directive);
  EXPECT_FALSE(told->welcome || told->ack);
  EXPECT_EQ(told->directive->kind, "steps");
  EXPECT_EQ(told->directive->arguments,
            (std::map<std::string, std::string>{{"empty", ""}, {"steps", "5-9"}}));

  v1::CollectorMessage unknown;
  const auto ignored = wire::Decode(unknown.SerializeAsString() + std::string("\x7a\x02hi"));
  ASSERT_TRUE(ignored.ok()) << "field 15, of a later version";
  EXPECT_FALSE(ignored->welcome || ignored->ack || ignored->directive);
}

TEST(Wire, RefusesGarbageWithoutCrashing) {
  EXPECT_EQ(wire::Decode("HTTP/1.1 400 Bad Request\r\n").status().code(), Code::kDataLoss);
  EXPECT_EQ(wire::Decode(std::string("\x0a\xff\xff\xff\xff\x0f", 6)).status().code(),
            Code::kDataLoss);
  std::mt19937_64 rng(1);
  v1::CollectorMessage welcome;
  welcome.mutable_welcome()->set_durable_seq(12345);
  welcome.mutable_welcome()->mutable_limits()->set_window_bytes_max(1u << 24);
  const std::string good = welcome.SerializeAsString();
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = good;
    for (int flips = 0; flips < 3; ++flips) bytes[rng() % bytes.size()] = static_cast<char>(rng());
    bytes.resize(rng() % (bytes.size() + 1));
    const auto decoded = wire::Decode(bytes);
    v1::CollectorMessage reference;
    // Where protobuf finds a welcome, and no field that it does not know, we find the same.
    if (!reference.ParseFromString(bytes) || !reference.has_welcome()) continue;
    v1::CollectorMessage known;
    known.mutable_welcome()->set_protocol_version(reference.welcome().protocol_version());
    known.mutable_welcome()->set_attempt(reference.welcome().attempt());
    known.mutable_welcome()->set_durable_seq(reference.welcome().durable_seq());
    known.mutable_welcome()->set_fsync(reference.welcome().fsync());
    if (reference.welcome().has_limits()) {
      auto* limits = known.mutable_welcome()->mutable_limits();
      limits->set_message_bytes_max(reference.welcome().limits().message_bytes_max());
      limits->set_window_batches_max(reference.welcome().limits().window_batches_max());
      limits->set_window_bytes_max(reference.welcome().limits().window_bytes_max());
    }
    if (known.ByteSizeLong() != reference.ByteSizeLong()) continue;
    ASSERT_TRUE(decoded.ok() && decoded->welcome) << "i = " << i;
    EXPECT_EQ(decoded->welcome->durable_seq, reference.welcome().durable_seq()) << "i = " << i;
  }
}

}  // namespace
}  // namespace statcollect
