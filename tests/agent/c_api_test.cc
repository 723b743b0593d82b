#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <cstddef>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "statagent/statagent.h"
#include "statagent/types.h"

namespace {

using ::testing::HasSubstr;

constexpr int kInvalidArgument = 3;
constexpr std::uint32_t kF32 = static_cast<std::uint32_t>(statcollect::DType::kF32);

struct Tensor {
  std::vector<float> values = {1, 2, 3, -4, 0, NAN};
  std::vector<std::int64_t> shape = {2, 3};
  statagent_tensor Get() {
    return {.struct_size = sizeof(statagent_tensor),
            .dtype = kF32,
            .data = values.data(),
            .shape = shape.data(),
            .strides = nullptr,
            .ndim = static_cast<std::uint32_t>(shape.size()),
            .device = 0,
            .device_index = 0,
            .placement = nullptr};
  }
};

statagent_statistics Statistics() {
  statagent_statistics s{};
  s.struct_size = sizeof s;
  return s;
}

// An agent whose collector does not exist.
statagent_options Options() {
  statagent_options o{};
  o.struct_size = sizeof o;
  o.run = "c";
  o.collector = "127.0.0.1:1";
  o.required = 0;
  o.rank = 0;
  o.local_rank = o.world_size = o.sketch = o.samples = o.buffer_records_max = o.connect_timeout_ms =
      o.threads = -1;
  o.world_size = 1;
  return o;
}

class AgentHandle {
 public:
  AgentHandle() {
    const statagent_options options = Options();
    EXPECT_EQ(statagent_start(&options, &agent), 0) << statagent_last_error();
  }
  ~AgentHandle() {
    statagent_close(agent, 0);
    statagent_free(agent);
  }
  statagent_agent* agent = nullptr;
};

TEST(CApi, AProgramOfBeforeTheNewestOptionStarts) {
  statagent_options options = Options();
  options.struct_size = offsetof(statagent_options, project);
  options.project = "not/read";
  statagent_agent* agent = nullptr;
  EXPECT_EQ(statagent_start(&options, &agent), 0) << statagent_last_error();
  statagent_close(agent, 0);
  statagent_free(agent);
  options.struct_size = sizeof options;
  EXPECT_NE(statagent_start(&options, &agent), 0);
  EXPECT_THAT(statagent_last_error(), HasSubstr("project 'not/read'"));
}

TEST(CApi, AnAgentOfARankThatDoesNotRecordDoesNothing) {
  statagent_options options = Options();
  options.world_size = 4;
  options.ranks = "1,3";
  std::uint32_t number = 9, count = 9;
  options.rank = 2;
  statagent_agent* agent = nullptr;
  ASSERT_EQ(statagent_start(&options, &agent), 0) << statagent_last_error();
  EXPECT_EQ(statagent_records(agent, &number, &count), 0);
  EXPECT_EQ(statagent_rank(agent), 2u);
  EXPECT_EQ(statagent_world_size(agent), 4u);
  EXPECT_EQ(statagent_step_wanted(agent), 0);
  EXPECT_EQ(statagent_log_scalar(agent, "loss", 1.0, 0), 0);
  statagent_counts counts{.struct_size = sizeof counts};
  EXPECT_EQ(statagent_counters(agent, &counts), 0);
  EXPECT_EQ(counts.produced, 0u);
  EXPECT_EQ(statagent_close_unused(agent, 0), 0);
  statagent_free(agent);
  options.rank = 3;
  ASSERT_EQ(statagent_start(&options, &agent), 0) << statagent_last_error();
  EXPECT_EQ(statagent_records(agent, &number, &count), 1);
  EXPECT_EQ(number, 1u);
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(statagent_records(nullptr, nullptr, nullptr), 0);
  statagent_free(agent);
  for (const char* wrong : {"4", "x", "3-", ","}) {
    options.ranks = wrong;
    agent = nullptr;
    EXPECT_EQ(statagent_start(&options, &agent), kInvalidArgument) << wrong;
    EXPECT_NE(std::string(statagent_last_error()).find("start the agent: read ranks"),
              std::string::npos);
  }
  options.ranks = nullptr;
  options.log = "loud";
  EXPECT_EQ(statagent_start(&options, &agent), kInvalidArgument);
  EXPECT_EQ(std::string(statagent_last_error()),
            "start the agent: log is 'loud'; expected 'off', 'error', 'warning' or 'info'");
}

TEST(CApi, ComputesStatistics) {
  Tensor tensor;
  const statagent_tensor view = tensor.Get();
  statagent_statistics s = Statistics();
  std::vector<double> sketch(16), samples(4);
  ASSERT_EQ(statagent_compute(&view, 16, 4, &s, sketch.data(), samples.data()), 0)
      << statagent_last_error();
  EXPECT_EQ(s.numel, 6u);
  EXPECT_EQ(s.nan, 1u);
  EXPECT_EQ(s.zero, 1u);
  EXPECT_EQ(s.pos, 3u);
  EXPECT_EQ(s.neg, 1u);
  EXPECT_EQ(s.has_finite, 1u);
  EXPECT_EQ(s.min, -4);
  EXPECT_EQ(s.l1, 10);
  EXPECT_EQ(s.sketch_count, 16u);
  EXPECT_EQ(s.sample_count, 4u);
  EXPECT_EQ(samples, (std::vector<double>{1, 2, 3, -4}));
}

TEST(CApi, ComputesShardsThatAddUp) {
  Tensor whole;
  const statagent_tensor view = whole.Get();
  statagent_statistics all = Statistics();
  ASSERT_EQ(statagent_compute(&view, 0, 0, &all, nullptr, nullptr), 0);
  std::uint64_t hash = 0;
  const auto add = [&](const float* data, std::vector<std::int64_t> shape,
                       std::vector<std::int64_t> strides, std::vector<std::int64_t> boxes,
                       std::vector<std::int64_t> ranges) {
    const statagent_placement placement{.struct_size = sizeof(statagent_placement),
                                        .ndim = 2,
                                        .global_shape = whole.shape.data(),
                                        .boxes = boxes.data(),
                                        .ranges = ranges.data(),
                                        .box_count = boxes.size() / 4,
                                        .range_count = ranges.size() / 2};
    statagent_tensor part = whole.Get();
    part.data = data;
    part.ndim = static_cast<std::uint32_t>(shape.size());
    part.shape = shape.data();
    part.strides = strides.data();
    part.placement = &placement;
    statagent_statistics s = Statistics();
    ASSERT_EQ(statagent_compute(&part, 0, 0, &s, nullptr, nullptr), 0) << statagent_last_error();
    hash += s.hash;
  };
  add(whole.values.data(), {2, 1}, {3, 1}, {0, 0, 2, 1}, {});
  add(whole.values.data() + 1, {2, 2}, {3, 1}, {0, 1, 2, 2}, {});
  EXPECT_EQ(hash, all.hash);
  hash = 0;
  add(whole.values.data(), {4}, {1}, {}, {0, 4});
  add(whole.values.data() + 4, {2}, {1}, {}, {4, 6});
  EXPECT_EQ(hash, all.hash);
}

TEST(CApi, RefusesPlacementsThatMakeNoSense) {
  Tensor tensor;
  const std::vector<std::int64_t> box = {1, 0, 2, 3};
  statagent_statistics s = Statistics();
  const auto refusal = [&](auto change) {
    statagent_placement placement{.struct_size = sizeof(statagent_placement),
                                  .ndim = 2,
                                  .global_shape = tensor.shape.data(),
                                  .boxes = box.data(),
                                  .ranges = nullptr,
                                  .box_count = 1,
                                  .range_count = 0};
    change(placement);
    statagent_tensor view = tensor.Get();
    view.placement = &placement;
    EXPECT_EQ(statagent_compute(&view, 0, 0, &s, nullptr, nullptr), kInvalidArgument);
    return std::string(statagent_last_error());
  };
  EXPECT_THAT(refusal([](auto&) {}), HasSubstr("extends beyond dimension 0"));
  EXPECT_THAT(refusal([](auto& p) { p.struct_size = 4; }), HasSubstr("struct_size is 4"));
  EXPECT_THAT(refusal([](auto& p) { p.global_shape = nullptr; }),
              HasSubstr("global_shape is null"));
  EXPECT_THAT(refusal([](auto& p) { p.boxes = nullptr; }), HasSubstr("boxes is null"));
  EXPECT_THAT(refusal([](auto& p) { p.range_count = 1; }), HasSubstr("ranges is null"));
  EXPECT_THAT(refusal([](auto& p) { p.box_count = 1ull << 60; }), HasSubstr("boxes"));
  // A structure from before there were placements: what lies behind it is not read.
  statagent_tensor old = tensor.Get();
  old.struct_size = offsetof(statagent_tensor, placement);
  old.placement = reinterpret_cast<const statagent_placement*>(1);
  EXPECT_EQ(statagent_compute(&old, 0, 0, &s, nullptr, nullptr), 0) << statagent_last_error();
}

TEST(CApi, ShowsATextAsItIsStored) {
  std::vector<char> to(64);
  std::uint64_t bytes = to.size();
  EXPECT_EQ(statagent_redact("note", "--token abc --lr 1", to.data(), &bytes), 0)
      << statagent_last_error();
  EXPECT_STREQ(to.data(), "--token (redacted) --lr 1");
  EXPECT_EQ(bytes, 25u);
  EXPECT_EQ(statagent_redact("password", "abc", to.data(), &(bytes = 11)), 0);
  EXPECT_STREQ(to.data(), "(redacted)");
  EXPECT_NE(statagent_redact("password", "abc", to.data(), &(bytes = 10)), 0)
      << "no room for the terminating null";
  EXPECT_EQ(bytes, 10u);
  EXPECT_EQ(statagent_redact(nullptr, nullptr, to.data(), &(bytes = 1)), 0);
  EXPECT_EQ(statagent_redact("a", "b", nullptr, &bytes), kInvalidArgument);
  EXPECT_EQ(statagent_redact("a", "b", to.data(), nullptr), kInvalidArgument);
}

TEST(CApi, RefusesMisuseOfCompute) {
  Tensor tensor;
  const statagent_tensor good = tensor.Get();
  statagent_statistics s = Statistics();
  std::vector<double> out(64);
  EXPECT_EQ(statagent_compute(nullptr, 0, 0, &s, nullptr, nullptr), kInvalidArgument);
  EXPECT_EQ(statagent_compute(&good, 0, 0, nullptr, nullptr, nullptr), kInvalidArgument);
  EXPECT_EQ(statagent_compute(&good, 16, 0, &s, nullptr, nullptr), kInvalidArgument);
  EXPECT_THAT(statagent_last_error(), HasSubstr("sketch_out is null"));
  EXPECT_EQ(statagent_compute(&good, 0, 4, &s, nullptr, nullptr), kInvalidArgument);
  EXPECT_EQ(statagent_compute(&good, 5, 0, &s, out.data(), nullptr), kInvalidArgument);
  EXPECT_EQ(statagent_compute(&good, 0, 4000, &s, nullptr, out.data()), kInvalidArgument);
  s.struct_size = 8;
  EXPECT_EQ(statagent_compute(&good, 0, 0, &s, nullptr, nullptr), kInvalidArgument);
  EXPECT_THAT(statagent_last_error(), HasSubstr("struct_size is 8"));
}

TEST(CApi, RefusesTensorsThatMakeNoSense) {
  Tensor tensor;
  statagent_statistics s = Statistics();
  const auto code_of = [&](auto change) {
    statagent_tensor view = tensor.Get();
    change(view);
    return statagent_compute(&view, 0, 0, &s, nullptr, nullptr);
  };
  EXPECT_EQ(code_of([](auto&) {}), 0);
  EXPECT_EQ(code_of([](auto& v) { v.struct_size = 0; }), kInvalidArgument);
  EXPECT_EQ(code_of([](auto& v) { v.dtype = 0; }), kInvalidArgument);
  EXPECT_EQ(code_of([](auto& v) { v.dtype = 18; }), kInvalidArgument);
  EXPECT_THAT(statagent_last_error(), HasSubstr("dtype is 18"));
  EXPECT_EQ(code_of([](auto& v) { v.dtype = 258; }), kInvalidArgument) << "not taken modulo 256";
  EXPECT_EQ(code_of([](auto& v) { v.data = nullptr; }), kInvalidArgument);
  EXPECT_EQ(code_of([](auto& v) { v.shape = nullptr; }), kInvalidArgument);
  EXPECT_EQ(code_of([](auto& v) { v.ndim = 1000; }), kInvalidArgument);
  EXPECT_EQ(code_of([](auto& v) { v.device = 7; }), kInvalidArgument);
  EXPECT_NE(code_of([](auto& v) { v.device = 1; }), 0) << "host memory";
  EXPECT_THAT(statagent_last_error(), HasSubstr("CUDA tensor"));
  tensor.shape = {2, -3};
  EXPECT_EQ(code_of([](auto&) {}), kInvalidArgument);
}

TEST(CApi, TakesStructuresOfLaterVersions) {
  struct {
    statagent_tensor tensor;
    char later[64];
  } bigger = {};
  Tensor tensor;
  bigger.tensor = tensor.Get();
  bigger.tensor.struct_size = sizeof bigger;
  statagent_statistics s = Statistics();
  EXPECT_EQ(statagent_compute(&bigger.tensor, 0, 0, &s, nullptr, nullptr), 0);
}

TEST(CApi, ToleratesNullEverywhere) {
  statagent_agent* agent = nullptr;
  const statagent_options options = Options();
  statagent_counts counts{.struct_size = sizeof counts};
  EXPECT_EQ(statagent_start(nullptr, &agent), kInvalidArgument);
  EXPECT_EQ(statagent_start(&options, nullptr), kInvalidArgument);
  EXPECT_EQ(statagent_close(nullptr, 0), kInvalidArgument);
  EXPECT_EQ(statagent_intern(nullptr, nullptr, nullptr), kInvalidArgument);
  EXPECT_EQ(statagent_observe(nullptr, 0, nullptr, nullptr), kInvalidArgument);
  EXPECT_EQ(statagent_log_scalar(nullptr, "x", 1, 0), kInvalidArgument);
  EXPECT_EQ(statagent_log_event(nullptr, "x", "y", nullptr, nullptr, 0), kInvalidArgument);
  EXPECT_EQ(statagent_set_step(nullptr, 1), kInvalidArgument);
  EXPECT_EQ(statagent_flush(nullptr, 0), kInvalidArgument);
  EXPECT_EQ(statagent_counters(nullptr, &counts), kInvalidArgument);
  EXPECT_EQ(statagent_dropped(nullptr, nullptr, nullptr), kInvalidArgument);
  EXPECT_EQ(statagent_step(nullptr), 0u);
  EXPECT_EQ(statagent_step_wanted(nullptr), 0);
  EXPECT_EQ(statagent_world_size(nullptr), 1u);
  statagent_end_step(nullptr);
  statagent_free(nullptr);
  statagent_steps_free(nullptr);
  EXPECT_STRNE(statagent_last_error(), "");
}

TEST(CApi, StartNamesTheBadOption) {
  statagent_agent* agent = nullptr;
  statagent_options options = Options();
  options.run = "no/slashes";
  EXPECT_EQ(statagent_start(&options, &agent), kInvalidArgument);
  options = Options();
  options.rank = std::int64_t{1} << 40;
  EXPECT_EQ(statagent_start(&options, &agent), kInvalidArgument);
  EXPECT_THAT(statagent_last_error(), HasSubstr("rank is 1099511627776"));
  options = Options();
  options.config_count = 1;
  EXPECT_EQ(statagent_start(&options, &agent), kInvalidArgument);
  options = Options();
  options.struct_size = 4;
  EXPECT_EQ(statagent_start(&options, &agent), kInvalidArgument);
  EXPECT_EQ(agent, nullptr);
}

TEST(CApi, RecordsCountsAndCloses) {
  AgentHandle handle;
  statagent_identity identity{};
  identity.struct_size = sizeof identity;
  identity.name = "fc1";
  identity.kind = 1;
  identity.mode = 1;
  std::uint32_t fc1 = 99, again = 98;
  ASSERT_EQ(statagent_intern(handle.agent, &identity, &fc1), 0) << statagent_last_error();
  ASSERT_EQ(statagent_intern(handle.agent, &identity, &again), 0);
  EXPECT_EQ(fc1, again);
  identity.kind = 257;
  EXPECT_EQ(statagent_intern(handle.agent, &identity, &again), kInvalidArgument)
      << "not taken modulo 256";
  identity.name = nullptr;
  EXPECT_EQ(statagent_intern(handle.agent, &identity, &again), kInvalidArgument);

  Tensor tensor;
  const statagent_tensor view = tensor.Get();
  EXPECT_EQ(statagent_observe(handle.agent, fc1, &view, nullptr), 0);
  EXPECT_EQ(statagent_observe(handle.agent, fc1, &view, nullptr), kInvalidArgument)
      << "twice in a step";
  EXPECT_EQ(statagent_observe(handle.agent, 12345, &view, nullptr), kInvalidArgument);
  const std::uint32_t handles[] = {fc1, 12345};
  const statagent_tensor* const tensors[] = {&view, nullptr};
  std::uint64_t refused = 0;
  EXPECT_EQ(statagent_observe_list(handle.agent, 2, handles, tensors, nullptr, &refused),
            kInvalidArgument);
  EXPECT_EQ(refused, 2u) << "one twice in a step, one without a tensor";
  EXPECT_EQ(statagent_observe_list(handle.agent, 2, handles, nullptr, nullptr, &refused),
            kInvalidArgument);
  EXPECT_EQ(statagent_observe_list(handle.agent, 0, nullptr, nullptr, nullptr, &refused), 0);
  EXPECT_EQ(refused, 0u);
  EXPECT_EQ(statagent_log_scalar(handle.agent, "loss", NAN, 0), 0);
  const char* keys[] = {"k"};
  const char* values[] = {"v"};
  EXPECT_EQ(statagent_log_event(handle.agent, "note", "text", keys, values, 1), 0);
  EXPECT_EQ(statagent_log_event(handle.agent, "note", "text", nullptr, nullptr, 1),
            kInvalidArgument);
  const std::int64_t bytes[] = {10, -3};
  statagent_memory memory{};
  memory.struct_size = sizeof memory;
  memory.phase = 2;
  memory.present = 1u << 0 | 1u << 17;
  memory.device = "cpu";
  memory.bytes = bytes;
  EXPECT_EQ(statagent_log_memory(handle.agent, &memory), 0) << statagent_last_error();
  memory.present |= 1u << 31;
  EXPECT_EQ(statagent_log_memory(handle.agent, &memory), kInvalidArgument);
  memory.bytes = nullptr;
  EXPECT_EQ(statagent_log_memory(handle.agent, &memory), kInvalidArgument);
  const std::uint64_t valid[] = {2, 1};
  statagent_density density{};
  density.struct_size = sizeof density;
  density.type = 1;
  density.input = "ids";
  density.valid = 3;
  density.total = 8;
  density.samples = 2;
  density.valid_per_sample = valid;
  EXPECT_EQ(statagent_log_density(handle.agent, &density, 0), 0) << statagent_last_error();
  EXPECT_EQ(statagent_log_density(handle.agent, &density, 1), kInvalidArgument) << "to come";
  density.type = 9;
  EXPECT_EQ(statagent_log_density(handle.agent, &density, 0), kInvalidArgument);
  EXPECT_EQ(statagent_add_config(handle.agent, keys, values, 1), 0);
  EXPECT_EQ(statagent_add_config(handle.agent, nullptr, values, 1), kInvalidArgument);
  EXPECT_EQ(statagent_log_scalar_at(handle.agent, "loss", 1, 0, 5), kInvalidArgument);
  EXPECT_EQ(statagent_log_event_at(handle.agent, 0, "note", nullptr, keys, values, 1), 0);
  statagent_end_step(handle.agent);
  EXPECT_EQ(statagent_step(handle.agent), 1u);
  EXPECT_EQ(statagent_set_step(handle.agent, 0), kInvalidArgument);
  EXPECT_EQ(statagent_step_wanted(handle.agent), 1);

  statagent_counts counts{};
  counts.struct_size = sizeof counts;
  ASSERT_EQ(statagent_counters(handle.agent, &counts), 0);
  EXPECT_EQ(counts.produced, 8u);
  EXPECT_EQ(counts.pending, 8u);
  EXPECT_EQ(statagent_flush(handle.agent, 10), 4) << "nobody there to make it durable";
  EXPECT_EQ(statagent_close(handle.agent, 10), 4);
  ASSERT_EQ(statagent_counters(handle.agent, &counts), 0);
  EXPECT_EQ(counts.dropped, 8u);
  EXPECT_EQ(counts.pending, 0u);
  std::string causes;
  statagent_dropped(
      handle.agent,
      [](void* context, const char* cause, std::uint64_t n) {
        *static_cast<std::string*>(context) += std::string(cause) + "=" + std::to_string(n);
      },
      &causes);
  EXPECT_EQ(causes, "closed=8");
}

TEST(CApi, ParsesSteps) {
  statagent_steps* steps = nullptr;
  ASSERT_EQ(statagent_steps_parse("0-9,20,100-", &steps), 0);
  EXPECT_EQ(statagent_steps_contains(steps, 9), 1);
  EXPECT_EQ(statagent_steps_contains(steps, 10), 0);
  EXPECT_EQ(statagent_steps_contains(steps, 1000), 1);
  statagent_steps_free(steps);
  EXPECT_EQ(statagent_steps_parse("0-", nullptr), kInvalidArgument);
  EXPECT_EQ(statagent_steps_parse("five", &steps), kInvalidArgument);
  EXPECT_EQ(steps, nullptr);
  EXPECT_EQ(statagent_steps_contains(nullptr, 1), 0);
}

}  // namespace
