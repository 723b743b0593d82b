// A diff that compares blocks as columns answers as one that compares records. The random models of
// diff_random_test.cc say that both are right.
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <memory>
#include <random>
#include <sstream>

#include "server/query/query.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"
#include "tests/support/forwarding_store.h"

namespace statcollect::query {
namespace {

using testing::FakeStore;
using testing::Key;
using testing::RunWriter;
using testing::Tensor;

// Counts the blocks that are read as columns, or has none.
class ColumnStore final : public testing::ForwardingStore {
 public:
  ColumnStore(Store& store, bool has_columns)
      : ForwardingStore(store), store_(store), has_columns_(has_columns) {}
  std::unique_ptr<StatScan> ScanStats(AttemptId attempt, std::uint32_t rank,
                                      StepBounds steps) override {
    return std::make_unique<Scan>(store_.ScanStats(attempt, rank, steps), has_columns_, read_);
  }
  int read() const { return read_; }

 private:
  class Scan final : public StatScan {
   public:
    Scan(std::unique_ptr<StatScan> scan, bool has_columns, std::atomic<int>& read)
        : scan_(std::move(scan)), has_columns_(has_columns), read_(read) {}
    bool NextHead() override { return scan_->NextHead(); }
    const BlockHead& head() const override { return scan_->head(); }
    bool Load(bool sketches, StatColumns* columns) override {
      return scan_->Load(sketches, columns);
    }
    bool LoadHashes(HashColumns* columns) override { return scan_->LoadHashes(columns); }
    const NumberColumns* Columns() override {
      read_ += has_columns_ ? 1 : 0;
      return has_columns_ ? scan_->Columns() : nullptr;
    }
    const Status& status() const override { return scan_->status(); }
    std::uint64_t bytes_read() const override { return scan_->bytes_read(); }

   private:
    const std::unique_ptr<StatScan> scan_;
    const bool has_columns_;
    std::atomic<int>& read_;
  };

  Store& store_;
  const bool has_columns_;
  std::atomic<int> read_{0};
};

struct Model {
  std::vector<std::pair<TensorKey, DType>> tensors;
  std::uint64_t steps = 0;
  double odds = 0;  // that a tensor differs in a step
};

Model RandomModel(std::mt19937_64& rng) {
  constexpr std::array kKinds = {Kind::kOutput, Kind::kOutput, Kind::kGradOutput, Kind::kWeightGrad,
                                 Kind::kWeight, Kind::kBatch,  Kind::kBuffer};
  constexpr std::array kDTypes = {DType::kF32, DType::kF32, DType::kBf16,
                                  DType::kF64, DType::kI64, DType::kC64};
  Model model{
      .tensors = {}, .steps = 3 + rng() % 12, .odds = std::array{0.0, 0.1, 0.5, 1.0}[rng() % 4]};
  for (std::uint32_t i = 0; i < 4 + rng() % 8; ++i) {
    const Kind kind = kKinds[rng() % kKinds.size()];
    const Mode mode = kind == Kind::kWeight && rng() % 2 == 0 ? Mode::kInit : Mode::kTrain;
    model.tensors.emplace_back(Key("t" + std::to_string(i), kind, "", 0, 0, mode),
                               kDTypes[rng() % 6]);
  }
  return model;
}

void Change(Tensor& tensor, std::mt19937_64& rng) {
  const std::uint64_t how = rng() % 12;
  if (how == 0) tensor.values[0] = std::numeric_limits<double>::quiet_NaN();
  if (how == 1) tensor.values.push_back(1);
  if (how == 2) tensor.dtype = DType::kF16;
  if (how == 3) tensor.values.assign(tensor.values.size(), 0);
  if (how == 4) tensor.values[0] *= 1e200;
  if (how == 5) std::ranges::reverse(tensor.values);  // the same in all but hash and sketch
  if (how > 5) tensor.values[0] *= 1 + std::array{1e-9, 1e-3, 0.5}[how % 3];
}

// `changes`: the seed of what differs from the run of seed 0.
void Write(Store& store, const std::string& run, const Model& model, std::uint64_t seed,
           std::uint64_t changes) {
  std::mt19937_64 rng(seed), other(changes);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> unit;
  RunWriter writer(store, run, 2, changes % 5 == 1 ? 32 : seed % 2 == 0 ? 0 : 16);
  for (std::uint64_t step = 0; step < model.steps; ++step) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      for (std::size_t at = 0; at < model.tensors.size(); ++at) {
        const bool moved =
            changes != 0 && changes % 4 == 0 && step % 3 == 2 && (at ^ 1) < model.tensors.size();
        const auto& [key, dtype] = model.tensors[moved ? at ^ 1 : at];
        Tensor tensor{.values = std::vector<double>(8), .dtype = dtype};
        for (double& x : tensor.values) x = dtype == DType::kI64 ? double(rng() % 9) : normal(rng);
        const bool differs = changes != 0 && unit(other) < model.odds;
        if (differs && rank == 0 && other() % 40 == 0) continue;
        if (differs) Change(tensor, other);
        writer.Observe(rank, step, key, tensor);
      }
      writer.Scalar(rank, step, "loss", 1);
    }
  }
  writer.Commit();
}

std::string TextOf(const std::optional<double>& value) {
  std::ostringstream out;
  out.precision(17);
  if (value) out << *value;
  return out.str();
}

std::string TextOf(const DiffReport& report) {
  std::ostringstream out;
  const auto row = [&](const Divergence& d) {
    out << d.step << ' ' << d.rank << ' ' << d.activation << ' ' << static_cast<int>(d.kind) << ' '
        << static_cast<int>(d.reason) << ' ' << TextOf(d.distance) << ' ' << TextOf(d.distance_low)
        << ' ' << TextOf(d.tolerance) << ' ' << TextOf(d.times_noise) << ' ' << d.origin << '\n';
  };
  const Compared& c = report.compared;
  out << static_cast<int>(report.verdict) << ' ' << c.records << ' ' << c.identical << ' '
      << c.within_tolerance << ' ' << c.diverged << ' ' << report.inputs.weights << ' '
      << report.inputs.batches << ' ' << report.without_hash << ' ' << report.explained_by_rounding
      << '\n';
  for (const Divergence& d : report.diverged) row(d);
  if (report.first) row(*report.first);
  if (report.first_bitwise) row(*report.first_bitwise);
  if (report.root) row(report.root->at);
  for (const GrowthPoint& p : report.growth.points)
    out << p.step << ' ' << p.diverged << ' ' << TextOf(p.distance) << ' ' << TextOf(p.distance_max)
        << '\n';
  out << TextOf(report.growth.factor_per_step) << ' ' << report.spread.activations << ' '
      << report.spread.activations_total << ' ' << report.spread.steps << '\n';
  for (const std::string& name : report.unmatched.only_a) out << name << '\n';
  for (const std::string& name : report.unmatched.only_b) out << name << '\n';
  for (const std::string& note : report.notes) out << note << '\n';
  for (const char cell : report.heat_map ? report.heat_map->cells : "")
    out << int{static_cast<unsigned char>(cell)} << ' ';
  return out.str();
}

int CheckSeed(std::uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 rng(seed);
  const Model model = RandomModel(rng);
  FakeStore store;
  Write(store, "a", model, seed, 0);
  Write(store, "b", model, seed, seed + 1);
  if (seed % 3 == 0) Write(store, "a-again", model, seed, seed + 1000);
  DiffRequest request{.run_a = "a", .run_b = "b", .exact = rng() % 4 == 0};
  if (rng() % 4 == 0) request.tolerance = std::array{0.0, 1e-6, 0.1}[rng() % 3];
  if (rng() % 3 == 0) request.heat_map_columns = kHeatMapWhole;
  if (rng() % 3 == 0) request.top = 2;
  if (rng() % 4 == 0) request.all = true;
  if (seed % 3 == 0) request.noise = {"a-again"};
  EXPECT_EQ(store.violation(), "");
  ColumnStore columns(store, true), records(store, false);
  const auto by_columns = QueryEngine(columns).Diff(request),
             by_records = QueryEngine(records).Diff(request);
  EXPECT_TRUE(by_columns.ok() && by_records.ok()) << by_columns.status().message();
  if (by_columns.ok() && by_records.ok()) {
    EXPECT_EQ(TextOf(*by_columns), TextOf(*by_records));
  }
  return columns.read();
}

TEST(ColumnDiff, AnswersAreThoseOfRecords) {
  int read = 0;
  for (std::uint64_t seed = 1; seed <= 500 && !::testing::Test::HasFailure(); ++seed)
    read += CheckSeed(seed);
  EXPECT_GT(read, 500 * 40);
}

}  // namespace
}  // namespace statcollect::query
