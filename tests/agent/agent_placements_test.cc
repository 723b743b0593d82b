// Shards of logical tensors, from Observe to what the collector gets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

#include "agent/tensor_place.h"
#include "statagent/agent.h"
#include "statagent/statagent.h"
#include "tests/support/fake_collector.h"

namespace statagent {
namespace {

using statcollect::testing::FakeCollector;
using statcollect::testing::MemoryStore;
using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using Sizes = std::vector<std::int64_t>;

// 6 x 40 elements, of which a shard is a copy.
constexpr std::int64_t kRows = 6, kColumns = 40;

float ValueAt(std::int64_t index) { return std::sin(static_cast<float>(index)) * 3; }

struct Shard {
  Sizes shape, boxes, ranges;
  std::vector<float> values;
  Sizes global = {kRows, kColumns};
  Placement placement;

  Shard(Sizes own_shape, Sizes own_boxes, Sizes own_ranges, const Sizes& indices)
      : shape(std::move(own_shape)), boxes(std::move(own_boxes)), ranges(std::move(own_ranges)) {
    for (const std::int64_t index : indices) values.push_back(ValueAt(index));
  }
  TensorView View() {
    placement = {.global_shape = global, .boxes = boxes, .ranges = ranges};
    return {.data = values.data(), .dtype = DType::kF32, .shape = shape, .placement = &placement};
  }
};

Sizes Columns(const std::vector<std::pair<std::int64_t, std::int64_t>>& spans) {
  Sizes indices;
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (const auto& [first, last] : spans) {
      for (std::int64_t column = first; column < last; ++column)
        indices.push_back(row * kColumns + column);
    }
  }
  return indices;
}

Sizes Range(std::int64_t first, std::int64_t last) {
  Sizes indices(static_cast<std::size_t>(last - first));
  std::iota(indices.begin(), indices.end(), first);
  return indices;
}

Shard Whole() {
  return {{kRows, kColumns}, {0, 0, kRows, kColumns}, {}, Range(0, kRows * kColumns)};
}

// Columns 0..7 and 33..39, then 7..33: a zigzag of two ranks.
std::vector<Shard> Zigzag() {
  return {{{kRows, 14}, {0, 0, kRows, 7, 0, 33, kRows, 7}, {}, Columns({{0, 7}, {33, 40}})},
          {{kRows, 26}, {0, 7, kRows, 26}, {}, Columns({{7, 33}})}};
}

// Of the flattened tensor, as FSDP1 cuts it.
std::vector<Shard> Flat() {
  std::vector<Shard> shards = {{{101}, {}, {0, 101}, Range(0, 101)},
                               {{139}, {}, {101, 240}, Range(101, 240)}};
  return shards;
}

class AgentPlacementsTest : public ::testing::Test {
 protected:
  AgentPlacementsTest() : server_(&store_) {
    auto started = Agent::Start({.run = "base",
                                 .collector = server_.address(),
                                 .rank = 0,
                                 .local_rank = 0,
                                 .world_size = 1});
    EXPECT_TRUE(started.ok()) << started.status().message();
    agent_ = *std::move(started);
  }

  MemoryStore::Session Close() {
    EXPECT_TRUE(agent_->Close(std::chrono::seconds(30)).ok());
    const auto session = store_.Only();
    EXPECT_EQ(session.error, "");
    return session;
  }

  MemoryStore store_;
  FakeCollector server_;
  std::unique_ptr<Agent> agent_;
};

struct Totals {
  std::uint64_t hash = 0, pos = 0, neg = 0;
  std::vector<double> sketch = std::vector<double>(16);
};

// Sums over the records of one name.
Totals TotalsOf(const MemoryStore::Session& session, const std::string& name) {
  Totals totals;
  for (const auto& batch : session.batches) {
    for (std::size_t i = 0; i < batch.stats.size(); ++i) {
      if (session.activations.at(batch.stats.activation[i]).key.name != name) continue;
      totals.hash += batch.stats.stats[i].hash;
      totals.pos += batch.stats.stats[i].pos;
      totals.neg += batch.stats.stats[i].neg;
      for (std::size_t k = 0; k < 16; ++k) totals.sketch[k] += batch.stats.SketchOf(i)[k];
    }
  }
  return totals;
}

TEST_F(AgentPlacementsTest, ShardsAddUpToTheWholeAndTheirLayoutsArrive) {
  std::vector<Shard> zigzag = Zigzag(), flat = Flat();
  Shard whole = Whole();
  TensorView plain = whole.View();
  plain.placement = nullptr;
  ASSERT_TRUE(agent_->Observe({.name = "plain"}, plain).ok());
  ASSERT_TRUE(agent_->Observe({.name = "whole"}, whole.View()).ok());
  std::uint32_t call = 0;
  for (Shard& shard : zigzag) {
    const Status observed = agent_->Observe({.name = "zigzag", .call = call++}, shard.View());
    ASSERT_TRUE(observed.ok()) << observed.message();
  }
  std::vector<Agent::Item> items;
  for (Shard& shard : flat)
    items.push_back(
        {*agent_->Intern({.name = "flat", .call = static_cast<std::int64_t>(items.size())}),
         shard.View()});
  std::size_t refused = 0;
  ASSERT_TRUE(agent_->ObserveList(items, nullptr, &refused).ok());
  agent_->EndStep();

  const auto session = Close();
  const Totals expected = TotalsOf(session, "plain");
  for (const char* name : {"whole", "zigzag", "flat"}) {
    const Totals found = TotalsOf(session, name);
    EXPECT_EQ(found.hash, expected.hash) << name;
    EXPECT_EQ(found.pos, expected.pos) << name;
    EXPECT_EQ(found.neg, expected.neg) << name;
    EXPECT_THAT(found.sketch, Pointwise(DoubleNear(1e-4), expected.sketch)) << name;
  }
  ASSERT_EQ(session.layouts.size(), 6u);
  EXPECT_EQ(session.layouts[0].placement, std::nullopt);
  EXPECT_EQ(session.layouts[1].placement->boxes, whole.boxes);
  EXPECT_EQ(session.layouts[2].placement->boxes, zigzag[0].boxes);
  EXPECT_EQ(session.layouts[2].placement->global_shape, (Sizes{kRows, kColumns}));
  EXPECT_EQ(session.layouts[2].shape, (Sizes{kRows, 14}));
  EXPECT_EQ(session.layouts[5].placement->ranges, (Sizes{101, 240}));
}

TEST_F(AgentPlacementsTest, PartialSumsAndPiecesArriveAsSaid) {
  Shard whole = Whole();
  TensorView view = whole.View();
  for (std::int64_t call = 0; call < 3; ++call) {
    whole.placement.partial = call == 1;
    whole.placement.piece = call == 2 ? 3 : 0;
    whole.placement.pieces = call == 2 ? 4 : 1;
    ASSERT_TRUE(agent_->Observe({.name = "x", .call = call}, view).ok());
  }
  const auto session = Close();
  ASSERT_EQ(session.layouts.size(), 3u);
  EXPECT_TRUE(session.layouts[1].placement->partial);
  EXPECT_EQ(session.layouts[2].placement->piece, 3u);
  EXPECT_EQ(session.layouts[2].placement->pieces, 4u);
  const auto& stats = session.batches.at(0).stats.stats;
  EXPECT_EQ(stats.at(0).hash, stats.at(2).hash);
}

TEST_F(AgentPlacementsTest, ALayoutIsSentOnceHoweverManyRecordsUseIt) {
  std::vector<Shard> zigzag = Zigzag();
  for (int step = 0; step < 20; ++step) {
    for (std::int64_t call = 0; call < 2; ++call)
      ASSERT_TRUE(
          agent_
              ->Observe({.name = "x", .call = call}, zigzag[static_cast<std::size_t>(call)].View())
              .ok());
    agent_->EndStep();
    if (step % 5 == 0) {
      ASSERT_TRUE(agent_->Flush(std::chrono::seconds(30)).ok());
    }
  }
  const auto session = Close();
  std::size_t defined = 0;
  for (const auto& batch : session.batches) defined += batch.layouts.size();
  EXPECT_GE(session.batches.size(), 4u);
  EXPECT_EQ(defined, 2u);
}

TEST_F(AgentPlacementsTest, APlacementThatDoesNotFitIsRefusedAndNothingIsLost) {
  std::vector<Shard> zigzag = Zigzag();
  zigzag[1].boxes[1] = 20;
  const Status refused = agent_->Observe({.name = "x"}, zigzag[1].View());
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("observe 'x'"));
  EXPECT_THAT(refused.message(), HasSubstr("global shape (6, 40)"));
  EXPECT_THAT(refused.message(),
              HasSubstr("the box at (0, 20) of size (6, 26) extends beyond dimension 1"));
  EXPECT_EQ(agent_->counters().produced, 0u);
  std::vector<Agent::Item> items;
  for (const char* name : {"a", "b", "c"}) {
    const auto handle = agent_->Intern({.name = name, .call = 0});
    ASSERT_TRUE(handle.ok()) << handle.status().message();
    items.push_back({*handle, zigzag[*name == 'b' ? 1 : 0].View()});
  }
  std::size_t count = 0;
  const Status first = agent_->ObserveList(items, nullptr, &count);
  EXPECT_THAT(first.message(), HasSubstr("observe 'b'"));
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(agent_->counters().produced, 2u);
  const auto session = Close();
  EXPECT_EQ(session.layouts.size(), 1u);
}

TEST(TensorPlace, LeavesWholeTensorsToTheEngineAsTheyAre) {
  std::vector<Shard> zigzag = Zigzag();
  Shard whole = Whole();
  TensorView view = whole.View();
  whole.placement.pieces = 4;
  EXPECT_NE(TensorPlace(view).recorded(), nullptr);
  EXPECT_EQ(TensorPlace(view).computed(), nullptr);
  const TensorView part = zigzag[0].View();
  EXPECT_NE(TensorPlace(part).computed(), nullptr);
  view.placement = nullptr;
  EXPECT_EQ(TensorPlace(view).recorded(), nullptr);
}

statagent_tensor ToC(const TensorView& view, const statagent_placement* placement) {
  return {.struct_size = sizeof(statagent_tensor),
          .dtype = static_cast<std::uint32_t>(view.dtype),
          .data = view.data,
          .shape = view.shape.data(),
          .strides = nullptr,
          .ndim = static_cast<std::uint32_t>(view.shape.size()),
          .device = 0,
          .device_index = 0,
          .placement = placement};
}

// What the C interface hands on, of a structure of this size.
statcollect::Layout ObservedThroughC(std::uint32_t placement_size) {
  MemoryStore store;
  FakeCollector server(&store);
  const std::string address = server.address();
  statagent_options options{};
  options.struct_size = sizeof options;
  options.run = "c";
  options.collector = address.c_str();
  options.required = 1;
  options.rank = options.local_rank = 0;
  options.world_size = 1;
  options.sketch = options.samples = options.buffer_records_max = options.connect_timeout_ms =
      options.threads = -1;
  statagent_agent* agent = nullptr;
  EXPECT_EQ(statagent_start(&options, &agent), 0) << statagent_last_error();
  statagent_identity identity{};
  identity.struct_size = sizeof identity;
  identity.name = "x";
  identity.kind = identity.mode = 1;
  std::uint32_t handle = 0;
  EXPECT_EQ(statagent_intern(agent, &identity, &handle), 0) << statagent_last_error();
  Shard shard = std::move(Zigzag()[0]);
  const statagent_placement placement{.struct_size = placement_size,
                                      .ndim = 2,
                                      .global_shape = shard.global.data(),
                                      .boxes = shard.boxes.data(),
                                      .ranges = nullptr,
                                      .box_count = 2,
                                      .range_count = 0,
                                      .partial = 1,
                                      .piece = 2,
                                      .pieces = 5,
                                      .unordered = 0};
  const statagent_tensor tensor = ToC(shard.View(), &placement);
  EXPECT_EQ(statagent_observe(agent, handle, &tensor, nullptr), 0) << statagent_last_error();
  statagent_end_step(agent);
  const statagent_tensor* const list[] = {&tensor};
  std::uint64_t refused = 0;
  EXPECT_EQ(statagent_observe_list(agent, 1, &handle, list, nullptr, &refused), 0)
      << statagent_last_error();
  EXPECT_EQ(statagent_close(agent, 30000), 0) << statagent_last_error();
  statagent_free(agent);
  const auto session = store.Only();
  EXPECT_EQ(session.layouts.size(), 1u);
  return session.layouts.at(0);
}

TEST(AgentPlacementsInC, AreReadAsFarAsTheStructureGoes) {
  const statcollect::Layout now = ObservedThroughC(sizeof(statagent_placement));
  ASSERT_TRUE(now.placement);
  EXPECT_EQ(now.placement->boxes, Zigzag()[0].boxes);
  EXPECT_TRUE(now.placement->partial);
  EXPECT_EQ(now.placement->piece, 2u);
  EXPECT_EQ(now.placement->pieces, 5u);
  const statcollect::Layout before = ObservedThroughC(offsetof(statagent_placement, partial));
  EXPECT_EQ(before.placement->boxes, Zigzag()[0].boxes);
  EXPECT_FALSE(before.placement->partial);
  EXPECT_EQ(before.placement->pieces, 1u);
}

}  // namespace
}  // namespace statagent
