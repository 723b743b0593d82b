// Runs in a store in memory, as the bytes of QueryInput say: records that a collector accepts, at
// any step, rank, call, micro-batch and launch.
#ifndef STATCOLLECT_TESTS_FUZZ_QUERY_WORLD_H_
#define STATCOLLECT_TESTS_FUZZ_QUERY_WORLD_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/names.h"
#include "server/store/capture_requests.h"
#include "tests/fuzz/query_input.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/append_batch.h"
#include "tests/support/fake_store.h"

namespace statcollect::fuzz {

class QueryWorld {
 public:
  testing::FakeStore& store() { return store_; }

  // Carries an operation out, other than kAsk.
  void Do(Op op, QueryInput& in) {
    if (op == Op::kLaunch) return Launch(in);
    if (launches_.empty()) Launch(in);
    Launched& launch = *launches_.back();
    const std::uint32_t rank = in.Small();
    if (op == Op::kSetting) return Set(launch, rank, in);
    const std::uint64_t step = in.Number();
    changed_ = true;
    switch (op) {
      case Op::kObserve:
      case Op::kPart:
        return Observe(launch, rank, step, in, op == Op::kPart);
      case Op::kScalar: {
        const std::string name(in.OneOf(kScalars));
        const double value = in.Real();
        launch.writer.Scalar(rank, step, name, value, in.Small());
        return;
      }
      case Op::kMemory: {
        MemoryRecord record{
            .step = step, .micro_batch = in.Small(), .phase = MemoryPhase::kPostForward};
        if (in.Flag()) record.module = "layer.1";
        record.present =
            in.Small() & (BitOf(static_cast<MemoryQuantity>(kMemoryQuantityCount)) - 1);
        launch.writer.Memory(rank, std::move(record));
        return;
      }
      case Op::kDensity:
        launch.writer.Density(rank, {.step = step,
                                     .micro_batch = in.Small(),
                                     .input = "ids",
                                     .type = DensityType::kEmbed,
                                     .valid = 1,
                                     .total = 2});
        return;
      case Op::kExponents: {
        const TensorKey key = Key(in);
        if (launch.exponents.insert({rank, step, key}).second)
          launch.writer.Exponents(rank, step, key, Plain(),
                                  static_cast<std::int32_t>(in.Byte() % 64) - 32, {3});
        return;
      }
      case Op::kEvent:
        return Tell(launch, rank, step, in);
      default:
        return Capture(launch, rank, step, in);
    }
  }

  // Writes what was collected. Before a question.
  void Commit() {
    if (!std::exchange(changed_, false)) return;
    for (const auto& launch : launches_) launch->writer.Commit();
  }

 private:
  using Observed = std::tuple<std::uint32_t, std::uint64_t, TensorKey>;
  struct Launched {
    Launched(Store& store, const std::string& run, std::uint32_t world_size)
        : writer(store, run, world_size), run(run) {}
    testing::RunWriter writer;
    const std::string run;
    AttemptId id = 0;
    std::set<Observed> observed, exponents;  // a rank has each at most once
    std::map<std::uint32_t, std::map<std::string, std::string>> settings;
  };
  static constexpr std::size_t kLaunchesMax = 8;

  void Launch(QueryInput& in) {
    const std::string run(kRuns[in.Byte() % 3]);
    const std::uint32_t world_size = std::max<std::uint32_t>(1, in.Small());
    if (launches_.size() >= kLaunchesMax) return;
    launches_.push_back(std::make_unique<Launched>(store_, run, world_size));
    launches_.back()->id = launches_.back()->writer.Commit();
  }

  static testing::Tensor Plain() { return {.values = {1, 2}}; }

  static TensorKey Key(QueryInput& in) {
    TensorKey key;
    key.name = in.OneOf(kTensors);
    key.kind = static_cast<Kind>(1 + in.Byte() % (kKindCount - 1));
    key.mode = static_cast<Mode>(1 + in.Byte() % (kModeCount - 1));
    const std::uint8_t more = in.Byte();
    if ((more & 1) != 0) key.output_path = "0";
    if ((more & 2) != 0) key.micro_batch = in.Small();
    if ((more & 4) != 0) key.call = in.Small();
    return key;
  }

  void Observe(Launched& launch, std::uint32_t rank, std::uint64_t step, QueryInput& in,
               bool part) {
    TensorKey key = Key(in);
    testing::Tensor tensor;
    for (int size = 1 + in.Byte() % 3; size > 0; --size) tensor.values.push_back(in.Real());
    if (in.Flag()) tensor.dtype = DType::kI64;
    if (!launch.observed.insert({rank, step, key}).second) return;
    if (!part) {
      launch.writer.Observe(rank, step, key, tensor);
      return;
    }
    const auto size = static_cast<std::int64_t>(tensor.values.size());
    Layout layout{.dtype = tensor.dtype, .shape = {size}};
    layout.placement = Placement{.global_shape = {3 * size}, .boxes = {rank % 3 * size, size}};
    layout.placement->partial = in.Flag();
    if (in.Flag()) {
      layout.placement->pieces = std::max<std::uint32_t>(2, in.Small());
      layout.placement->piece = rank % layout.placement->pieces;
    }
    launch.writer.Record(rank, step, key, layout, testing::StatsOf(tensor),
                         testing::SketchOf(tensor, 16));
  }

  void Tell(Launched& launch, std::uint32_t rank, std::uint64_t step, QueryInput& in) {
    static constexpr std::array<std::string_view, 6> kKinds = {
        "setting_changed", "overhead", "nan_first_seen", "capture_missed", "exception", "note"};
    const std::string kind(in.OneOf(kKinds));
    std::map<std::string, std::string> fields;
    if (kind == "setting_changed")
      fields = {{"key", "optimizer.group0.lr"}, {"from", std::to_string(in.Real())}, {"to", "2"}};
    if (kind == "overhead")
      fields = {{"announce", "1"},
                {"first", std::to_string(in.Number())},
                {"last", std::to_string(in.Number())}};
    launch.writer.Event(rank, step, kind, "text", std::move(fields));
  }

  void Set(Launched& launch, std::uint32_t rank, QueryInput& in) {
    static constexpr std::array<std::string_view, 8> kKeys = {
        "recording.full_steps", "recording.agent_steps", "recording.watch.steps",
        "optimizer.group0.lr",  "model.layer.1.eps",     "model.tied.x",
        "recording.overhead",   "parallel.tensor"};
    auto& settings = launch.settings[rank];
    const std::string key(in.OneOf(kKeys));
    settings[key] = key == "recording.full_steps"
                        ? std::to_string(in.Number()) + "-" + std::to_string(in.Number()) + "/" +
                              std::to_string(in.Number())
                        : in.Steps();
    launch.writer.Config(rank, settings);
    changed_ = true;
  }

  // Values of a tensor, some of them, and a request for it.
  void Capture(Launched& launch, std::uint32_t rank, std::uint64_t step, QueryInput& in) {
    const TensorKey key = Key(in);
    if (!launch.observed.insert({rank, step, key}).second) return;
    launch.writer.Observe(rank, step, key, Plain());
    Commit();
    const auto defined = *store_.Definitions(launch.id, rank);
    const auto& defs = defined->activations;
    const auto def = std::find_if(defs.begin(), defs.end(),
                                  [&](const TensorDef& each) { return each.key == key; });
    if (in.Flag()) Ask(launch, rank, step, key);
    RecordBatch batch;
    batch.captures.push_back({.step = step,
                              .activation = def->id,
                              .layout = 0,
                              .elements = 2,
                              .offset = 0,
                              .data = in.Flag() ? "12345678" : "1234"});
    // Not through the writer, which has none; its next batch takes the number, which nothing here
    // depends on.
    RankMeta meta = store_.Ranks(launch.id)->at(rank);
    batch.first_seq = meta.durable_seq + 1;
    (void)AppendBatch(store_, launch.id, rank, batch, meta);
  }

  void Ask(const Launched& launch, std::uint32_t rank, std::uint64_t step, const TensorKey& key) {
    auto requests = *ReadCaptureRequests(store_, launch.run);
    auto spec = CaptureSpec::Parse(key.name + "@" + std::to_string(step));
    if (!spec.ok() || requests.size() > 4) return;
    requests.push_back({.id = requests.size() + 1,
                        .attempt = launch.id,
                        .ranks = {rank},
                        .asked_unix_nanos = 5,
                        .spec = *std::move(spec)});
    (void)WriteCaptureRequests(store_, launch.run, requests);
  }

  testing::FakeStore store_;
  std::vector<std::unique_ptr<Launched>> launches_;
  bool changed_ = false;
};

}  // namespace statcollect::fuzz

#endif  // STATCOLLECT_TESTS_FUZZ_QUERY_WORLD_H_
