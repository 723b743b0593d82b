// Runs of a small network whose tensors differ by chosen amounts, for tests of a diff's root.
#ifndef STATCOLLECT_TESTS_SERVER_QUERY_VERDICT_VERDICT_FIXTURE_H_
#define STATCOLLECT_TESTS_SERVER_QUERY_VERDICT_VERDICT_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/query/query.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {

using testing::FakeStore;
using testing::Key;
using testing::RunWriter;
using testing::Tensor;

inline constexpr std::size_t kElements = 2048;
inline constexpr double kRounding = 1e-7;

inline std::uint64_t SeedOf(const TensorKey& key, std::uint64_t step, std::uint64_t salt = 0) {
  std::uint64_t seed = testing::MixBits(step * 64 + salt + 1);
  for (const char c : key.name + key.output_path)
    seed = testing::MixBits(seed + static_cast<unsigned char>(c));
  return testing::MixBits(seed + static_cast<std::uint64_t>(key.kind));
}

// Normally distributed values, rounded to float; another seed, other values.
inline Tensor Noise(std::uint64_t seed, double scale = 1, std::size_t n = kElements) {
  Tensor tensor;
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  for (std::size_t i = 0; i < n; ++i)
    tensor.values.push_back(static_cast<float>(scale * normal(generator)));
  return tensor;
}

inline double ToBf16(double x) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(x));
  return std::bit_cast<float>((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u);
}
inline Tensor AsBf16(Tensor tensor) {
  for (double& x : tensor.values) x = ToBf16(x);
  tensor.dtype = DType::kBf16;
  return tensor;
}

// Each element times 1 + relative * a normally distributed number.
inline Tensor Differing(Tensor tensor, double relative, std::uint64_t seed) {
  std::mt19937_64 generator(testing::MixBits(seed + 99));
  std::normal_distribution<double> normal;
  for (double& x : tensor.values) x = static_cast<float>(x * (1 + relative * normal(generator)));
  return tensor;
}

inline Tensor Scaled(Tensor tensor, double factor) {
  for (double& x : tensor.values) x = static_cast<float>(x * factor);
  return tensor;
}

// Four blocks of a LayerNorm and a linear layer, trained by SGD.
class VerdictTest : public ::testing::Test {
 protected:
  static constexpr int kBlocks = 4;

  // Relative difference that B's tensor gets; of a weight, what its update gets; of a loss, the key
  // is "loss" of kind kUnspecified.
  using Level = std::function<double(std::uint64_t step, const TensorKey& key)>;
  // What B has instead of a tensor; nothing: it lacks it.
  using Edit =
      std::function<std::optional<Tensor>(std::uint64_t step, const TensorKey& key, Tensor)>;

  struct Options {
    std::uint64_t first_step = 0, steps = 3;  // of the first, and behind the last
    bool initial = true;                      // weights as loaded
    std::uint32_t ranks = 1;
    std::uint32_t sketch = 16;
    DType dtype = DType::kF32;
    bool gradients = true, losses = true, order = true;
    bool adam = false;          // records its state
    bool losses_twice = false;  // a second value of that name in each step
    bool lion = false;          // records its state: no second moment
    bool carries = false;       // calls the model again in a step, with a state that it returned
    std::uint64_t empty_step = ~std::uint64_t{0};  // with a scalar only
    std::size_t elements = kElements;
    double update = 0.01;  // of a weight in a step, relative
  };

  static bool IsInitial(const TensorKey& key) { return key.mode == Mode::kInit; }
  // What a run's own rounding touches: all but the weights as loaded, the batch and the first
  // output.
  static Level RoundingOf(double size) {
    return [size](std::uint64_t step, const TensorKey& key) {
      if (IsInitial(key) || key.kind == Kind::kBatch) return 0.0;
      return step == 0 && key.name == "embed" && key.kind == Kind::kOutput ? 0.0 : size;
    };
  }
  static Level Nothing() {
    return [](std::uint64_t, const TensorKey&) { return 0.0; };
  }
  static Level Sum(Level x, Level y) {
    return [x = std::move(x), y = std::move(y)](std::uint64_t step, const TensorKey& key) {
      return std::hypot(x(step, key), y(step, key));
    };
  }
  // A bug in a module's output, carried on: the same relative size in all that is computed after
  // it.
  static Level BugAt(const std::string& module, double size, std::uint64_t from = 0) {
    return [=](std::uint64_t step, const TensorKey& key) {
      if (step < from || IsInitial(key) || key.kind == Kind::kBatch) return 0.0;
      if (step > from || (key.kind != Kind::kOutput && key.kind != Kind::kInspect)) return size;
      return OrderOf(key.name) >= OrderOf(module) ? size : 0.0;
    };
  }

  // The norms as a list of experts: each has as many rows as a router has sent there, `fewer` one
  // less.
  static Edit RowsOfExperts(const std::string& fewer) {
    return [fewer](std::uint64_t, const TensorKey& key, Tensor tensor) -> std::optional<Tensor> {
      if (key.kind != Kind::kOutput || !key.name.ends_with(".ln")) return tensor;
      const std::size_t rows = key.name == fewer ? 7 : key.name == "blocks.2.ln" ? 6 : 8;
      tensor.values.resize(rows * 8);
      tensor.shape = {static_cast<std::int64_t>(rows), 8};
      return tensor;
    };
  }

  static std::vector<std::string> Modules() {
    std::vector<std::string> names = {"embed"};
    for (int i = 0; i < kBlocks; ++i) {
      const std::string block = "blocks." + std::to_string(i);
      names.insert(names.end(), {block + ".ln", block + ".fc", block});
    }
    names.emplace_back("head");
    return names;
  }
  static std::size_t OrderOf(const std::string& module) {
    const auto names = Modules();
    return static_cast<std::size_t>(std::find(names.begin(), names.end(), module) - names.begin());
  }
  static std::vector<std::string> Parameters() {
    std::vector<std::string> names;
    for (const std::string& module : Modules()) {
      if (module.ends_with("ln") || module.ends_with("fc") || module == "head" || module == "embed")
        names.push_back(module + ".weight");
      if (module.ends_with("fc")) names.push_back(module + ".bias");
    }
    return names;
  }

  // Writes "a", and "b" with the differences, on every rank the same.
  void Write(const Level& level, const Edit& edit = {}) {
    for (const bool is_b : {false, true}) {
      RunWriter run(*store_, is_b ? "b" : "a", options_.ranks, options_.sketch);
      run.NarrowSketches();
      if (!options_.order) run.WithoutOrder();
      if (before_) before_(run, is_b);
      is_b_ = is_b;
      for (std::uint32_t rank = 0; rank < options_.ranks; ++rank)
        WriteRank(run, rank, is_b ? level : Nothing(), is_b ? edit : Edit());
      run.Commit();
    }
    ASSERT_EQ(store_->violation(), "");
  }
  // A twin of "a" whose tensors differ by `level`, in its own way.
  void WriteTwin(double ulps, int seed, const Level& level, const Edit& edit = {}) {
    const std::string size = std::to_string(static_cast<int>(ulps));
    RunWriter run(*store_, "a.twin-" + size + "-" + std::to_string(seed), options_.ranks,
                  options_.sketch);
    run.NarrowSketches();
    salt_ =
        testing::MixBits(static_cast<std::uint64_t>(ulps) * 100 + static_cast<std::uint64_t>(seed));
    for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) {
      run.Config(rank, {{"recording.perturb", size},
                        {"recording.perturb_seed", std::to_string(seed)},
                        {"recording.perturb_mode", "leaf"},
                        {"recording.perturb_base", "a"}});
      WriteRank(run, rank, level, edit);
    }
    run.Commit();
    salt_ = 0;
  }
  // The same training once more under another name; its tensors differ by `level`, in their own
  // way.
  void WriteRepeat(const std::string& name, const Level& level) {
    RunWriter run(*store_, name, options_.ranks, options_.sketch);
    run.NarrowSketches();
    salt_ = testing::MixBits(std::hash<std::string>()(name));
    for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) WriteRank(run, rank, level);
    run.Commit();
    salt_ = 0;
  }
  // Two of one unit and a ladder of three, by the noise of one unit.
  void WriteTwins(const std::function<Level(double ulps)>& level) {
    for (const int seed : {1, 2}) WriteTwin(1, seed, level(1));
    for (const double ulps : {32.0, 1024.0, 32768.0}) WriteTwin(ulps, 1, level(ulps));
  }
  void WriteRank(RunWriter& run, std::uint32_t rank, const Level& level, const Edit& edit = {}) {
    weights_.clear();
    for (std::uint64_t step = options_.first_step; step < options_.steps; ++step)
      WriteStep(run, rank, step, level, edit);
  }

  DiffReport Ask(DiffRequest request = {}) {
    request.run_a = "a";
    request.run_b = "b";
    auto report = QueryEngine(*store_).Diff(request);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? *report : DiffReport();
  }
  DiffReport DiffWith(const Level& level, const Edit& edit = {}) {
    Write(level, edit);
    return Ask();
  }

  // "2 forward blocks.1.ln", or "none".
  static std::string Say(const DiffReport& report) {
    if (!report.root) return "none";
    const Divergence& at = report.root->at;
    return std::to_string(at.step) + " " + std::string(Name(at.stage)) + " " + at.activation;
  }
  // What a report is that rounding explains.
  static void ExpectExplained(const DiffReport& report) {
    EXPECT_EQ(Say(report), "none");
    EXPECT_EQ(report.verdict, Verdict::kWithinTolerance);
    EXPECT_TRUE(report.explained_by_rounding);
  }

  std::unique_ptr<FakeStore> store_ = std::make_unique<FakeStore>();
  Options options_;
  std::function<void(RunWriter&, bool is_b)> before_;
  Edit base_;                                                                       // of both runs
  std::function<void(std::uint32_t rank, const TensorKey& key, Tensor&)> of_rank_;  // of B
  std::uint64_t swapped_from_ = ~std::uint64_t{0};  // B runs blocks.2.fc before blocks.2.ln

 private:
  void WriteStep(RunWriter& run, std::uint32_t rank, std::uint64_t step, const Level& level,
                 const Edit& edit) {
    if (step == options_.empty_step) {
      run.Scalar(rank, step, "learning_time", 1);
      return;
    }
    const auto put_as = [&](const TensorKey& key, Tensor tensor) {
      const bool matrix = key.name.ends_with(".weight") && tensor.values.size() % 16 == 0;
      if (matrix) tensor.shape = {16, static_cast<std::int64_t>(tensor.values.size() / 16)};
      if (options_.dtype == DType::kBf16 && key.kind != Kind::kBatch)
        tensor = AsBf16(std::move(tensor));
      if (of_rank_ && is_b_) of_rank_(rank, key, tensor);
      if (edit) {
        auto edited = edit(step, key, std::move(tensor));
        if (!edited) return Tensor();
        tensor = *std::move(edited);
      }
      run.Observe(rank, step, key, tensor);
      return tensor;
    };
    const auto put = [&](const TensorKey& key, Tensor tensor) {
      if (base_) tensor = *base_(step, key, std::move(tensor));
      return put_as(
          key, Differing(std::move(tensor), level(step, key), SeedOf(key, step, 1 + rank + salt_)));
    };
    const auto plain = [&](const std::string& name, Kind kind, std::uint32_t call = 0) {
      const TensorKey key = Key(name, kind, "", 0, call);
      put(key, Noise(SeedOf(key, step), kind == Kind::kOutput ? 1 : 0.01, options_.elements));
    };
    for (const std::string& name : Parameters()) {
      Tensor& weight = weights_[name];
      if (!weight.values.empty()) continue;
      weight = Noise(SeedOf(Key(name, Kind::kWeight), 0), 1, options_.elements);
      if (!options_.initial) continue;
      Tensor loaded = put(Key(name, Kind::kWeight, "", 0, 0, Mode::kInit), weight);
      if (!loaded.values.empty()) weight = std::move(loaded);
    }
    const TensorKey batch = Key("ids", Kind::kBatch);
    put(batch, Noise(SeedOf(batch, step), 1, options_.elements));
    auto modules = Modules();
    if (is_b_ && step >= swapped_from_)
      std::swap(modules[OrderOf("blocks.2.ln")], modules[OrderOf("blocks.2.fc")]);
    for (const std::string& name : modules) plain(name, Kind::kOutput);
    if (options_.carries) {
      plain("state", Kind::kBatch, 1);
      for (const std::string& name : modules) plain(name, Kind::kOutput, 1);
    }
    if (options_.losses)
      run.Scalar(rank, step, "loss", 2.3 * (1 + level(step, Key("loss", Kind::kUnspecified))));
    if (options_.losses_twice)
      run.Scalar(rank, step, "loss", 30 * (1 + level(step, Key("loss", Kind::kUnspecified))));
    if (!options_.gradients) return;
    for (auto it = modules.rbegin(); it != modules.rend(); ++it) plain(*it, Kind::kGradOutput);
    for (const std::string& name : Parameters()) plain(name, Kind::kWeightGrad);
    for (const std::string& name : Parameters()) {
      Tensor& weight = weights_[name];
      const TensorKey key = Key(name, Kind::kWeight);
      const bool linear = !options_.adam && !options_.lion;
      const std::uint64_t source =
          linear ? SeedOf(Key(name, Kind::kWeightGrad), step) : SeedOf(key, step + 1);
      const Tensor update = Differing(Noise(source, options_.update, options_.elements),
                                      level(step, key), SeedOf(key, step, 1 + rank + salt_));
      for (std::size_t i = 0; i < update.values.size(); ++i)
        weight.values[i] = static_cast<float>(weight.values[i] + update.values[i]);
      Tensor updated = put_as(key, weight);
      if (!updated.values.empty()) weight = std::move(updated);
      for (const char* state : {"exp_avg", "exp_avg_sq"}) {
        if (!options_.adam && !(options_.lion && state == std::string_view("exp_avg"))) continue;
        const TensorKey of_state = Key(name, Kind::kOptimizerState, state);
        put(of_state, Noise(SeedOf(of_state, step), 0.01, options_.elements));
      }
    }
  }

  bool is_b_ = false;
  std::uint64_t salt_ = 0;  // of a twin's differences
  std::map<std::string, Tensor> weights_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_TESTS_SERVER_QUERY_VERDICT_VERDICT_FIXTURE_H_
