#include "proto/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <google/protobuf/stubs/logging.h>

#include <functional>
#include <limits>

#include "common/checksum.h"
#include "tests/support/random_batch.h"
#include "tests/support/random_placement.h"

namespace statcollect {
namespace {

using testing::AddStat;
using testing::BatchShape;
using ::testing::HasSubstr;
using testing::MakeActivation;
using testing::MakeLayout;
using testing::RandomBatch;

constexpr double kInf = std::numeric_limits<double>::infinity();

SessionInfo Info() {
  SessionInfo info;
  info.run = "base";
  info.session = {1, 2, 3};
  info.launch = "torchrun-17";
  info.rank = 3;
  info.local_rank = 1;
  info.world_size = 4;
  info.host = "node-7";
  info.pid = 99;
  info.start_unix_nanos = 123;
  info.agent_version = "0.1.0";
  info.if_exists = IfExists::kAppend;
  info.config = {{"lr", "0.1"}, {"empty", ""}};
  return info;
}

TEST(ConvertHello, ComesBackAsItWas) {
  auto back = FromWire(ToWire(Info(), 7));
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->run, "base");
  EXPECT_EQ(back->session, Info().session);
  EXPECT_EQ(back->launch, "torchrun-17");
  EXPECT_EQ(back->rank, 3u);
  EXPECT_EQ(back->local_rank, 1u);
  EXPECT_EQ(back->world_size, 4u);
  EXPECT_EQ(back->host, "node-7");
  EXPECT_EQ(back->pid, 99);
  EXPECT_EQ(back->start_unix_nanos, 123);
  EXPECT_EQ(back->agent_version, "0.1.0");
  EXPECT_EQ(back->if_exists, IfExists::kAppend);
  EXPECT_EQ(back->config, Info().config);
  EXPECT_EQ(ToWire(Info(), 7).first_unacked_seq(), 7u);
}

TEST(ConvertHello, RanksThatRecordComeBackInOneSpelling) {
  v1::Hello hello = ToWire(Info(), 1);
  EXPECT_EQ(FromWire(hello)->ranks, "") << "all of the world, as from agents of earlier releases";
  hello.set_ranks("3,0-1");
  EXPECT_EQ(FromWire(hello)->ranks, "0-1,3");
  SessionInfo info = Info();
  info.ranks = "3";
  EXPECT_EQ(FromWire(ToWire(info, 1))->ranks, "3");
}

TEST(ConvertHello, TakesUnspecifiedPolicyAsError) {
  v1::Hello hello = ToWire(Info(), 1);
  hello.set_if_exists(v1::IF_EXISTS_UNSPECIFIED);
  EXPECT_EQ(FromWire(hello)->if_exists, IfExists::kError);
}

void ExpectHelloRefused(const std::function<void(v1::Hello*)>& change, Code code,
                        const std::string& part) {
  v1::Hello hello = ToWire(Info(), 1);
  change(&hello);
  auto result = FromWire(hello);
  ASSERT_FALSE(result.ok()) << part;
  EXPECT_EQ(result.status().code(), code) << part;
  EXPECT_THAT(result.status().message(), HasSubstr(part));
}

TEST(ConvertHello, RefusesWhatIsNotAnIdentity) {
  const Code invalid = Code::kInvalidArgument;
  ExpectHelloRefused([](auto* h) { h->set_protocol_version(2); }, Code::kFailedPrecondition,
                     "this build speaks 1");
  const std::string names[] = {"", "../x", "a b", "a\n", "-a", std::string(129, 'a')};
  for (const std::string& name : names) {
    ExpectHelloRefused([&](auto* h) { h->set_run(name); }, invalid, "hello");
  }
  ExpectHelloRefused([](auto* h) { h->set_session_id("short"); }, invalid,
                     "session_id has 5 bytes");
  ExpectHelloRefused([](auto* h) { h->set_session_id(std::string(17, 'x')); }, invalid,
                     "session_id has 17 bytes");
  ExpectHelloRefused([](auto* h) { h->set_first_unacked_seq(0); }, invalid, "first_unacked_seq");
  ExpectHelloRefused([](auto* h) { h->set_rank(4); }, invalid, "rank is 4 of world_size 4");
  ExpectHelloRefused([](auto* h) { h->set_world_size(0); }, invalid, "world_size 0");
  ExpectHelloRefused([](auto* h) { h->set_ranks("x"); }, invalid, "hello: read ranks 'x'");
  ExpectHelloRefused([](auto* h) { h->set_ranks("3-4"); }, invalid, "is beyond the last rank, 3");
  ExpectHelloRefused([](auto* h) { h->set_ranks("0-2"); }, invalid,
                     "rank 3 is not among the ranks that record, '0-2'");
  ExpectHelloRefused([](auto* h) { h->set_if_exists(static_cast<v1::IfExists>(4)); }, invalid,
                     "if_exists is 4");
  ExpectHelloRefused([](auto* h) { h->set_if_exists(static_cast<v1::IfExists>(-1)); }, invalid,
                     "if_exists is -1");
  ExpectHelloRefused([](auto* h) { h->set_host("a\nb"); }, invalid, "host");
  ExpectHelloRefused([](auto* h) { h->set_launch(std::string(4096, 'x')); }, invalid, "launch");
  ExpectHelloRefused([](auto* h) { (*h->mutable_config())["a\x1b[31m"] = "x"; }, invalid,
                     "configuration key");
  ExpectHelloRefused(
      [](auto* h) { (*h->mutable_config())["big"] = std::string(kTextBytesMax + 1, 'x'); }, invalid,
      "65537 bytes");
  ExpectHelloRefused(
      [](auto* h) {
        for (std::size_t i = 0; i <= kConfigEntriesMax; ++i)
          (*h->mutable_config())["k" + std::to_string(i)] = "";
      },
      invalid, "entries");
}

TEST(ConvertBatch, ComesBackAsItWasForManySeeds) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const std::uint32_t widths[] = {0, 16, 32, 64};
    const RecordBatch batch =
        RandomBatch(seed, 1 + seed, {.activations = 13, .sketch_width = widths[seed % 4]});
    auto back = FromWire(ToWire(batch, {}), {});
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(back->first_seq, batch.first_seq);
    EXPECT_EQ(back->activations, batch.activations);
    EXPECT_EQ(back->layouts, batch.layouts);
    EXPECT_TRUE(testing::operator==(back->stats, batch.stats));
    EXPECT_EQ(back->scalars, batch.scalars);
    EXPECT_EQ(back->events, batch.events);
    EXPECT_EQ(back->steps, batch.steps);
  }
}

TEST(ConvertBatch, UsesLayoutsThatAnEarlierBatchDefined) {
  const auto known = testing::StandardLayouts();
  const RecordBatch batch = RandomBatch(3, 100, {.define = false});
  auto back = FromWire(ToWire(batch, known), known);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_TRUE(testing::operator==(back->stats, batch.stats));
  auto unknown = FromWire(ToWire(batch, known), {});
  EXPECT_THAT(unknown.status().message(), HasSubstr("stats.layout[0] is 0"));
}

TEST(ConvertBatch, KeepsSamplesAndNonFiniteScalars) {
  std::mt19937_64 rng(1);
  RecordBatch batch;
  batch.first_seq = 1;
  batch.layouts = {MakeLayout(0, DType::kF64, {3}), MakeLayout(1, DType::kF32, {0, 4})};
  batch.activations = {MakeActivation(0), MakeActivation(1)};
  AddStat(&batch, 0, batch.layouts[0], 0, 0, rng);
  AddStat(&batch, 1, batch.layouts[1], 0, 1, rng);
  batch.stats.sample_count = {2, 0};
  batch.stats.samples = {1e-300, -kInf};
  batch.scalars.push_back({"loss", 0, 0, std::numeric_limits<double>::quiet_NaN()});
  auto back = FromWire(ToWire(batch, {}), {});
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_TRUE(testing::operator==(back->stats, batch.stats));
  EXPECT_FALSE(back->stats.stats[1].has_finite);
  EXPECT_TRUE(std::isnan(back->scalars[0].value));
}

TEST(ConvertBatch, RefusesMemoryDensityAndSettingsThatCannotBe) {
  struct Case {
    std::function<void(v1::Records&)> change;
    const char* expected;
  };
  const Case cases[] = {
      {[](auto& r) { r.mutable_memory(0)->set_phase(v1::MEMORY_PHASE_UNSPECIFIED); }, "phase is 0"},
      {[](auto& r) { r.mutable_memory(0)->set_phase(static_cast<v1::MemoryPhase>(99)); },
       "phase is 99"},
      {[](auto& r) { r.mutable_memory(0)->add_bytes(1); }, "one for each bit"},
      {[](auto& r) { r.mutable_memory(0)->set_present(~0u); }, "one for each bit"},
      {[](auto& r) { r.mutable_memory(0)->set_bytes(0, -1); }, "allocated is -1"},
      {[](auto& r) { r.mutable_memory(1)->set_module("a\nb"); }, "control character"},
      {[](auto& r) { r.mutable_densities(0)->set_input(""); }, "it is empty"},
      {[](auto& r) { r.mutable_densities(0)->set_type(v1::DENSITY_TYPE_UNSPECIFIED); },
       "type is 0"},
      {[](auto& r) { r.mutable_densities(0)->set_total(5); }, "valid is 6 of 5"},
      {[](auto& r) { r.mutable_densities(0)->set_valid_per_sample(0, 4); },
       "does not add up to valid, 6"},
      {[](auto& r) { r.mutable_densities(0)->set_valid_per_sample(0, ~0ull); }, "does not add up"},
      {[](auto& r) { r.mutable_densities(0)->mutable_valid_per_sample()->Resize(5000, 0); },
       "at most 4096"},
      {[](auto& r) { r.mutable_settings(0)->set_name("\xff"); }, "invalid UTF-8"},
      {[](auto& r) { r.mutable_settings(0)->set_value(std::string(70'000, 'x')); },
       "at most 65536"},
  };
  RecordBatch batch = RandomBatch(1, 1);
  testing::AddObservations(&batch, 0);
  const auto known = testing::StandardLayouts();
  v1::Records good;
  ToWire(batch, known, &good);
  ASSERT_TRUE(FromWire(good, {}).ok());
  for (const Case& one : cases) {
    v1::Records bad = good;
    one.change(bad);
    const auto converted = FromWire(bad, {});
    ASSERT_FALSE(converted.ok()) << one.expected;
    EXPECT_EQ(converted.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(converted.status().message(), HasSubstr(one.expected));
  }
}

TEST(ConvertBatch, RefusesExponentsThatCannotBe) {
  RecordBatch batch = RandomBatch(1, 1, {.activations = 2, .steps = 1});
  const ExponentRecord good{
      .step = 0, .activation = 0, .layout = 1, .lowest = -25, .counts = {3, 0, 12}};
  const auto with = [&](const std::function<void(ExponentRecord&)>& change) {
    RecordBatch changed = batch;
    changed.exponents = {good};
    change(changed.exponents[0]);
    const auto converted = FromWire(ToWire(changed, {}), {});
    if (!converted.ok()) return converted.status();
    EXPECT_EQ(converted->exponents, changed.exponents);
    return Status::Ok();
  };
  EXPECT_TRUE(with([](ExponentRecord&) {}).ok());
  EXPECT_TRUE(with([](ExponentRecord& e) { e.counts.clear(); }).ok());
  EXPECT_TRUE(with([](ExponentRecord& e) { e.lowest = kExponentHighest - 2; }).ok());
  EXPECT_TRUE(with([](ExponentRecord& e) { e.layout = 3, e.counts = {14}; }).ok())
      << "7 complex elements";
  EXPECT_THAT(with([](ExponentRecord& e) { e.layout = 99; }).message(), HasSubstr("exponents[0]"));
  EXPECT_THAT(with([](ExponentRecord& e) { e.lowest = kExponentLowest - 1; }).message(),
              HasSubstr("within -150..128"));
  EXPECT_THAT(with([](ExponentRecord& e) { e.lowest = kExponentHighest - 1; }).message(),
              HasSubstr("within -150..128"));
  EXPECT_THAT(with([](ExponentRecord& e) { e.lowest = 0x7fffffff; }).message(),
              HasSubstr("within"));
  EXPECT_THAT(with([](ExponentRecord& e) { e.counts.push_back(0); }).message(), HasSubstr("not 0"));
  EXPECT_THAT(with([](ExponentRecord& e) { e.counts.push_back(2); }).message(),
              HasSubstr("at most all"));
  EXPECT_THAT(with([](ExponentRecord& e) { e.counts.push_back(~0ull - 14); }).message(),
              HasSubstr("at most all"));
}

TEST(ConvertBatch, RefusesRowsOfTokensThatCannotBe) {
  RecordBatch batch = RandomBatch(1, 1, {.activations = 2, .steps = 1});
  batch.tokens = {{.tap = "fc",
                   .dtype = DType::kBf16,
                   .columns = 4,
                   .rows = {{.key = 5, .position = 1}, {.key = 6, .position = 2}}}};
  v1::Records good;
  ToWire(batch, {}, &good);
  const auto back = FromWire(good, {});
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->tokens, batch.tokens);
  const auto with = [&](const std::function<void(v1::TokenRows&)>& change) {
    v1::Records changed = good;
    change(*changed.mutable_tokens(0));
    return FromWire(changed, {}).status();
  };
  EXPECT_THAT(with([](v1::TokenRows& t) { t.set_tap(""); }).message(), HasSubstr("tokens[0]"));
  EXPECT_THAT(with([](v1::TokenRows& t) { t.set_dtype(v1::DTYPE_UNSPECIFIED); }).message(),
              HasSubstr("dtype 0"));
  EXPECT_THAT(with([](v1::TokenRows& t) { t.set_dtype(static_cast<v1::DType>(99)); }).message(),
              HasSubstr("dtype 99"));
  for (const auto& change : std::vector<std::function<void(v1::TokenRows&)>>{
           [](v1::TokenRows& t) { t.add_key(1); }, [](v1::TokenRows& t) { t.add_position(1); },
           [](v1::TokenRows& t) { t.add_l2(1); }, [](v1::TokenRows& t) { t.add_hash(1); },
           [](v1::TokenRows& t) { t.add_sketch(1); },
           [](v1::TokenRows& t) {
             for (auto* column : {t.mutable_key(), t.mutable_hash()}) column->Clear();
             t.clear_position(), t.clear_l2(), t.clear_sketch();
           },
           [](v1::TokenRows& t) {
             t.mutable_key()->Resize(kTokenRowsMax + 1, 0);
             t.mutable_hash()->Resize(kTokenRowsMax + 1, 0);
             t.mutable_position()->Resize(kTokenRowsMax + 1, 0);
             t.mutable_l2()->Resize(kTokenRowsMax + 1, 0);
             t.mutable_sketch()->Resize(8 * (kTokenRowsMax + 1), 0);
           }}) {
    EXPECT_THAT(with(change).message(), HasSubstr("1..4096"));
  }
}

TEST(ConvertBatch, RefusesChunksOfCapturesThatCannotBe) {
  RecordBatch batch = RandomBatch(1, 1, {.activations = 2, .steps = 1});
  const Layout& f64 = batch.layouts[1];  // 16 elements, 128 bytes
  const CaptureChunk good{.step = 0,
                          .activation = 0,
                          .layout = f64.id,
                          .elements = 16,
                          .offset = 8,
                          .data = std::string(120, 'v')};
  const auto with = [&](const std::function<void(CaptureChunk&)>& change) {
    RecordBatch changed = batch;
    changed.captures = {good};
    change(changed.captures[0]);
    return FromWire(ToWire(changed, {}), {}).status();
  };
  EXPECT_TRUE(with([](CaptureChunk&) {}).ok());
  EXPECT_THAT(with([](CaptureChunk& c) { c.layout = 99; }).message(), HasSubstr("captures[0]"));
  EXPECT_THAT(with([](CaptureChunk& c) { c.elements = 17; }).message(),
              HasSubstr("at most the tensor's 16"));
  EXPECT_THAT(with([](CaptureChunk& c) { c.elements = ~0ull; }).message(), HasSubstr("elements"));
  EXPECT_THAT(with([](CaptureChunk& c) { c.offset = 9; }).message(), HasSubstr("within the 128"));
  EXPECT_THAT(with([](CaptureChunk& c) { c.offset = ~0u; }).message(), HasSubstr("within the 128"));
  EXPECT_THAT(with([](CaptureChunk& c) { c.data.clear(); }).message(), HasSubstr("of 0 bytes"));
  EXPECT_THAT(with([](CaptureChunk& c) { c.data.resize(kCaptureChunkBytesMax + 1); }).message(),
              HasSubstr("1.." + std::to_string(kCaptureChunkBytesMax)));
  // A tensor beyond the limit may only be kept in part.
  Layout huge =
      MakeLayout(static_cast<std::uint32_t>(batch.layouts.size()), DType::kF32, {1 << 30});
  batch.layouts.push_back(huge);
  EXPECT_FALSE(with([&](CaptureChunk& c) {
                 c.layout = huge.id;
                 c.elements = (64u << 20) / 4 + 1;
               }).ok());
  EXPECT_TRUE(with([&](CaptureChunk& c) {
                c.layout = huge.id;
                c.elements = (64u << 20) / 4;
              }).ok());
}

TEST(ConvertBatch, RefusesDamagedBytesBeforeParsingThem) {
  v1::Batch wire = ToWire(RandomBatch(1, 1), {});
  for (std::size_t i = 0; i < wire.records().size(); i += 7) {
    v1::Batch damaged = wire;
    (*damaged.mutable_records())[i] = static_cast<char>(damaged.records()[i] ^ 0x10);
    EXPECT_EQ(FromWire(damaged, {}).status().code(), Code::kDataLoss) << i;
  }
}

TEST(ConvertBatch, SurvivesAnyBytesUnderAValidChecksum) {
  const google::protobuf::LogSilencer silence;
  const v1::Batch wire =
      ToWire(RandomBatch(1, 1, {.activations = 3, .steps = 1, .sketch_width = 0}), {});
  for (std::size_t i = 0; i < wire.records().size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      v1::Batch damaged = wire;
      (*damaged.mutable_records())[i] = static_cast<char>(damaged.records()[i] ^ (1 << bit));
      damaged.set_crc(Crc32c(damaged.records()));
      if (auto result = FromWire(damaged, {}); !result.ok()) {
        EXPECT_EQ(result.status().code(), Code::kInvalidArgument);
      }
    }
    v1::Batch cut = wire;
    cut.mutable_records()->resize(i);
    cut.set_crc(Crc32c(cut.records()));
    EXPECT_EQ(FromWire(cut, {}).status().code(), Code::kInvalidArgument) << i;
  }
}

// Changes the parsed records of a valid batch, keeps checksum and count right, and expects a
// refusal that says `part`.
void ExpectRefused(const std::function<void(v1::Records*)>& change, const std::string& part) {
  v1::Batch wire = ToWire(RandomBatch(5, 1), {});
  v1::Records records;
  ASSERT_TRUE(records.ParseFromString(wire.records()));
  change(&records);
  wire.set_n(static_cast<std::uint32_t>(records.stats().activation_size() + records.scalars_size() +
                                        records.events_size() + records.steps_size()));
  wire.set_records(records.SerializeAsString());
  wire.set_crc(Crc32c(wire.records()));
  auto result = FromWire(wire, {});
  ASSERT_FALSE(result.ok()) << part;
  EXPECT_EQ(result.status().code(), Code::kInvalidArgument) << part;
  EXPECT_THAT(result.status().message(), HasSubstr(part));
}

TEST(ConvertBatch, RefusesColumnsOfUnequalLength) {
  ExpectRefused([](auto* r) { r->mutable_stats()->mutable_layout()->RemoveLast(); },
                "stats.layout has 15");
  ExpectRefused([](auto* r) { r->mutable_stats()->add_step(9); }, "stats.step has 17");
  ExpectRefused([](auto* r) { r->mutable_stats()->clear_order(); }, "stats.order has 0");
  ExpectRefused([](auto* r) { r->mutable_stats()->clear_nan(); }, "stats.nan has 0");
  ExpectRefused([](auto* r) { r->mutable_stats()->clear_has_finite(); }, "stats.has_finite");
  ExpectRefused([](auto* r) { r->mutable_stats()->clear_l2(); }, "stats.l2 has 0");
  ExpectRefused([](auto* r) { r->mutable_stats()->add_hash(1); }, "stats.hash has 17");
  ExpectRefused([](auto* r) { r->mutable_stats()->clear_activation(); }, "stats.layout has 16");
}

TEST(ConvertBatch, RefusesCountsThatDoNotAddUpToTheLayout) {
  ExpectRefused([](auto* r) { r->mutable_stats()->set_zero(0, 33); }, "stats.zero[0] is 33");
  ExpectRefused([](auto* r) { r->mutable_stats()->set_pos(0, ~0ull); }, "stats.pos[0]");
  ExpectRefused(
      [](auto* r) {
        int i = 0;
        while (r->stats().pos(i) == 0) ++i;
        r->mutable_stats()->set_pos(i, 0);
      },
      "short in its counts");
  // c64 counts its components twice: half of them is not enough.
  ExpectRefused([](auto* r) { r->mutable_stats()->set_pos(3, r->stats().pos(3) - 1); },
                "14 components");
}

TEST(ConvertBatch, RefusesMomentsThatContradictTheCounts) {
  ExpectRefused([](auto* r) { r->mutable_stats()->set_has_finite(0, !r->stats().has_finite(0)); },
                "has_finite[0]");
  ExpectRefused([](auto* r) { r->mutable_stats()->set_min(1, r->stats().max(1) + 1); },
                "stats.min[1]");
  ExpectRefused([](auto* r) { r->mutable_stats()->set_max(1, kInf); }, "stats.min[1]");
  ExpectRefused([](auto* r) { r->mutable_stats()->set_std(1, -1); }, "stats[1]");
  ExpectRefused(
      [](auto* r) {
        auto* s = r->mutable_stats();
        s->set_nan(0, 32), s->set_zero(0, 0), s->set_neg(0, 0), s->set_pos(0, 0),
            s->set_has_finite(0, false);
        s->set_min(0, -1);
      },
      "without finite elements");
}

// A batch of one record as another tool might tell it.
RecordBatch Partial(const Layout& layout, const TensorStats& stats) {
  RecordBatch batch;
  batch.first_seq = 1;
  batch.activations.push_back(MakeActivation(0));
  batch.layouts.push_back(layout);
  batch.stats.activation = batch.stats.layout = batch.stats.order = batch.stats.sample_count = {0};
  batch.stats.step = {0};
  batch.stats.stats = {stats};
  return batch;
}

TEST(ConvertBatch, TakesRecordsThatTellAPartOnly) {
  Layout layout{.id = 0, .dtype = DType::kF32, .shape = {8}};
  layout.absent = BitOf(Statistic::kL1) | BitOf(Statistic::kL2) | BitOf(Statistic::kHash) |
                  BitOf(Statistic::kInfSign) | BitOf(Statistic::kZero);
  layout.untrusted = BitOf(Statistic::kStd);
  const TensorStats stats{.numel = 8,
                          .pos_inf = 2,
                          .neg = 1,
                          .pos = 2,
                          .has_finite = true,
                          .min = -1,
                          .max = 3,
                          .mean = 1,
                          .std = 4};
  const RecordBatch batch = Partial(layout, stats);
  const auto back = FromWire(ToWire(batch, {}), {});
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->layouts, batch.layouts);
  EXPECT_EQ(back->stats.stats, batch.stats.stats);

  layout = Layout{.id = 0, .dtype = DType::kF32, .shape = {}};
  layout.hash_kind = HashKind::kCrc32;
  layout.absent = (BitOf(Statistic::kHash) - 1) | BitOf(Statistic::kShape);
  EXPECT_TRUE(FromWire(ToWire(Partial(layout, {.hash = 7}), {}), {}).ok());
}

TEST(ConvertBatch, RefusesPartsThatContradictTheLayout) {
  const auto refusal = [](const Layout& layout, const TensorStats& stats) {
    return FromWire(ToWire(Partial(layout, stats), {}), {}).status().message();
  };
  Layout layout{.id = 0, .dtype = DType::kF32, .shape = {8}};
  layout.absent = BitOf(Statistic::kZero) | BitOf(Statistic::kMean);
  EXPECT_THAT(refusal(layout, {.neg = 9, .has_finite = true}), HasSubstr("stats.neg[0] is 9"));
  EXPECT_THAT(refusal(layout, {.neg = 1, .has_finite = true, .mean = 2}),
              HasSubstr("mean, which its layout calls absent"));
  EXPECT_THAT(refusal(layout, {.neg = 1, .has_finite = false}), HasSubstr("has_finite"));
  layout.untrusted = BitOf(Statistic::kMean);
  EXPECT_THAT(refusal(layout, {}), HasSubstr("both absent and untrusted"));
  layout.untrusted = 1u << 14;
  EXPECT_THAT(refusal(layout, {}), HasSubstr("bits 0..13"));
  layout.untrusted = 0;
  layout.hash_kind = static_cast<HashKind>(7);
  EXPECT_THAT(refusal(layout, {}), HasSubstr("hash kind 7"));
  layout.hash_kind = HashKind::kContent3;
  layout.absent = BitOf(Statistic::kShape);
  EXPECT_THAT(refusal(layout, {}), HasSubstr("of unknown shape with 1 dimensions"));
}

TEST(ConvertBatch, AcceptsMomentsThatOverflow) {
  RecordBatch batch = RandomBatch(5, 1);
  batch.stats.stats[1].l2 = kInf;
  batch.stats.stats[1].mean = std::numeric_limits<double>::quiet_NaN();
  batch.stats.stats[1].has_finite = true;
  EXPECT_TRUE(FromWire(ToWire(batch, {}), {}).ok());
}

TEST(ConvertBatch, RefusesSketchesOfAnotherWidthOrLength) {
  ExpectRefused([](auto* r) { r->mutable_stats()->set_sketch_width(17); }, "sketch_width is 17");
  ExpectRefused([](auto* r) { r->mutable_stats()->set_sketch_width(64); },
                "stats.sketch_f64 has 64");
  ExpectRefused([](auto* r) { r->mutable_stats()->mutable_sketch_f32()->RemoveLast(); },
                "stats.sketch_f32 has 191");
  ExpectRefused([](auto* r) { r->mutable_stats()->add_sketch_f64(1); }, "stats.sketch_f64 has 65");
  ExpectRefused([](auto* r) { r->mutable_stats()->add_samples(1); }, "stats.samples has 1");
  ExpectRefused(
      [](auto* r) {
        for (int i = 0; i < 16; ++i) r->mutable_stats()->add_sample_count(i == 0 ? 33 : 0);
      },
      "stats.sample_count[0] is 33");
}

TEST(ConvertBatch, RefusesDefinitionsThatAreNotDenseOrNotKnown) {
  ExpectRefused([](auto* r) { r->mutable_activations(2)->set_id(7); }, "activations[2] is of id 7");
  ExpectRefused([](auto* r) { r->mutable_layouts(1)->set_id(0); }, "layouts[1] is of id 0");
  ExpectRefused(
      [](auto* r) {
        for (auto& l : *r->mutable_layouts()) l.set_id(l.id() + 1);
      },
      "layouts[0] is of id 1");
  constexpr auto kUnknown = static_cast<v1::Kind>(v1::Kind_MAX + 1);
  ExpectRefused([](auto* r) { r->mutable_activations(0)->set_kind(kUnknown); },
                "of kind " + std::to_string(kUnknown));
  ExpectRefused([](auto* r) { r->mutable_activations(0)->set_kind(v1::KIND_UNSPECIFIED); },
                "of kind 0");
  ExpectRefused([](auto* r) { r->mutable_activations(0)->set_mode(static_cast<v1::Mode>(-1)); },
                "of mode -1");
  ExpectRefused([](auto* r) { r->mutable_layouts(0)->set_dtype(static_cast<v1::DType>(18)); },
                "of dtype 18");
  ExpectRefused([](auto* r) { r->mutable_activations(1)->set_depth(-2); },
                "activations[1] is at depth -2");
}

TEST(ConvertBatch, RefusesALayoutThatChangesAKnownOne) {
  std::vector<Layout> known = testing::StandardLayouts();
  const v1::Batch wire = ToWire(RandomBatch(5, 1), {});
  EXPECT_TRUE(FromWire(wire, known).ok());
  known[2].shape = {30};
  EXPECT_THAT(FromWire(wire, known).status().message(),
              HasSubstr("layouts[2] is another definition of id 2"));
}

TEST(ConvertBatch, RefusesImpossibleShapes) {
  auto shape = [](std::vector<std::int64_t> sizes) {
    return [sizes](v1::Records* r) {
      r->mutable_layouts(0)->mutable_shape()->Assign(sizes.begin(), sizes.end());
    };
  };
  ExpectRefused(shape({-1}), "negative size");
  ExpectRefused(shape({std::int64_t{1} << 62}), "2^62");
  ExpectRefused(shape({1 << 30, 1 << 30, 4}), "2^62");
  ExpectRefused(shape({1 << 30, 1 << 30, 4, 0}), "2^62");
  ExpectRefused(shape(std::vector<std::int64_t>(65, 1)), "65 dimensions");
}

TEST(ConvertBatch, PlacementsComeBackAsTheyWere) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 500; ++i) {
    RecordBatch batch;
    batch.first_seq = 1;
    batch.steps = {{}};
    for (std::uint32_t id = 0; id < 4; ++id)
      batch.layouts.push_back(testing::RandomShard(random, id));
    auto back = FromWire(ToWire(batch, {}), {});
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(back->layouts, batch.layouts);
  }
}

TEST(ConvertBatch, ALayoutWithoutAPlacementHasNone) {
  const auto back = FromWire(ToWire(RandomBatch(5, 1), {}), {});
  for (const Layout& layout : back->layouts) EXPECT_FALSE(layout.placement);
}

// Layout 0 is 4 x 8.
TEST(ConvertBatch, RefusesPlacementsThatCannotBe) {
  const auto place = [](std::vector<std::int64_t> global, std::vector<std::int64_t> boxes,
                        std::vector<std::int64_t> ranges = {}) {
    return [=](v1::Records* r) {
      v1::Placement* to = r->mutable_layouts(0)->mutable_placement();
      to->mutable_global_shape()->Assign(global.begin(), global.end());
      to->mutable_boxes()->Assign(boxes.begin(), boxes.end());
      to->mutable_ranges()->Assign(ranges.begin(), ranges.end());
    };
  };
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  ExpectRefused(place({4, 8}, {0, 1, 4, 8}),
                "batch: layouts[0]: place a shard in the tensor of global shape (4, 8)");
  ExpectRefused(place({4, 16}, {0, 9, 4, 8}), "extends beyond dimension 1");
  ExpectRefused(place({4, 16}, {0, 0, 4, 9}), "the shard has the shape (4, 8)");
  ExpectRefused(place({-4, 8}, {}), "a size is negative");
  ExpectRefused(place({kMost, kMost}, {0, 0, 4, 8}), "2^62");
  ExpectRefused(place({4, 8}, {kMost, kMost, kMost, kMost}), "extends beyond");
  ExpectRefused(place({8, 8}, {0, 0, 2, 8, 1, 0, 2, 8}), "boxes overlap");
  ExpectRefused(place({4, 8}, {0, 0, 4, 8}, {0, 32}), "boxes and ranges");
  ExpectRefused(place({64}, {}, {0, 16, 15, 31}), "ranges overlap");
  ExpectRefused(place({64}, {}, {40, 65, 0, 7}), "a range goes from 40 to 65");
  ExpectRefused(place(std::vector<std::int64_t>(300'000, 1), {}), "300000 dimensions");
  ExpectRefused(place({64}, {}, std::vector<std::int64_t>(300'000, 0)), "65536 at most");
  ExpectRefused(
      [&](v1::Records* r) {
        place({4, 8}, {})(r);
        r->mutable_layouts(0)->mutable_placement()->set_piece(3);
        r->mutable_layouts(0)->mutable_placement()->set_pieces(3);
      },
      "piece 3 of 3");
  ExpectRefused(
      [&](v1::Records* r) {
        place({}, {})(r);
        r->mutable_layouts(0)->clear_shape();
        r->mutable_layouts(0)->set_absent(BitOf(Statistic::kShape));
      },
      "of unknown shape with a placement");
}

TEST(ConvertBatch, RefusesAPlacementThatChangesAKnownLayout) {
  RecordBatch batch = RandomBatch(5, 1);
  batch.layouts[0].placement = Placement{.global_shape = {8, 8}, .boxes = {4, 0, 4, 8}};
  const v1::Batch wire = ToWire(batch, {});
  EXPECT_TRUE(FromWire(wire, batch.layouts).ok());
  EXPECT_THAT(FromWire(wire, testing::StandardLayouts()).status().message(),
              HasSubstr("layouts[0] is another definition of id 0"));
}

TEST(ConvertBatch, RefusesHostileNames) {
  const google::protobuf::LogSilencer silence;
  const std::string hostile[] = {"",        "a\nb",   std::string("a\0b", 3),
                                 "\x1b[2J", "\u202e", std::string(4096, 'n')};
  for (const std::string& name : hostile) {
    ExpectRefused([&](auto* r) { r->mutable_activations(0)->set_name(name); }, "activations[0]");
    ExpectRefused([&](auto* r) { r->mutable_scalars(0)->set_name(name); }, "scalars[0]");
    ExpectRefused([&](auto* r) { r->mutable_events(0)->set_kind(name); }, "events[0]");
    ExpectRefused([&](auto* r) { (*r->mutable_events(0)->mutable_fields())[name] = "x"; },
                  "events[0]");
    if (name.empty()) continue;
    ExpectRefused([&](auto* r) { r->mutable_activations(0)->set_output_path(name); },
                  "activations[0]");
    ExpectRefused([&](auto* r) { r->mutable_activations(0)->set_class_name(name); },
                  "activations[0]");
    ExpectRefused([&](auto* r) { r->mutable_activations(0)->set_parent(name); }, "activations[0]");
  }
  ExpectRefused(
      [](auto* r) { r->mutable_events(0)->set_text(std::string(kTextBytesMax + 1, 'x')); },
      "events[0]");
}

TEST(ConvertBatch, RefusesStepsThatDecrease) {
  ExpectRefused([](auto* r) { r->mutable_stats()->set_step(3, 5); }, "stats.step[4] is 0");
}

TEST(ConvertBatch, RefusesHeadersThatCannotBe) {
  const v1::Batch good = ToWire(RandomBatch(5, 1), {});
  v1::Batch wire = good;
  wire.set_first_seq(0);
  EXPECT_THAT(FromWire(wire, {}).status().message(), HasSubstr("first_seq is 0"));
  wire = good;
  wire.set_n(0);
  EXPECT_THAT(FromWire(wire, {}).status().message(), HasSubstr("n is 0"));
  wire.set_n(kBatchRecordsMax + 1);
  EXPECT_THAT(FromWire(wire, {}).status().message(), HasSubstr("n is 65537"));
  wire.set_n(good.n() + 1);
  EXPECT_THAT(FromWire(wire, {}).status().message(), HasSubstr("expected n"));
  wire = good;
  wire.set_first_seq(~std::uint64_t{0});
  EXPECT_THAT(FromWire(wire, {}).status().message(), HasSubstr("passes the last"));
}

TEST(ConvertCounters, ComeBackAsTheyWere) {
  AgentCounters counters{
      .produced = 10, .acked = 5, .pending = 2, .dropped_by_cause = {{"buffer_full", 3}}};
  const AgentCounters back = FromWire(ToWire(counters));
  EXPECT_EQ(back.produced, 10u);
  EXPECT_EQ(back.acked, 5u);
  EXPECT_EQ(back.pending, 2u);
  EXPECT_EQ(back.dropped_by_cause, counters.dropped_by_cause);
}

}  // namespace
}  // namespace statcollect
