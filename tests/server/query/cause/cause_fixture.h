// Asks for the cause of a root that the test names, of two runs that it writes.
#ifndef STATCOLLECT_TESTS_SERVER_QUERY_CAUSE_CAUSE_FIXTURE_H_
#define STATCOLLECT_TESTS_SERVER_QUERY_CAUSE_CAUSE_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/query/cause/cause.h"
#include "server/query/compare/name_map.h"
#include "server/query/compare/step_order.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {

using testing::FakeStore;
using ::testing::HasSubstr;
using testing::Key;
using testing::RunWriter;
using testing::Tensor;

// Normally distributed values, rounded to float; another seed, other values.
inline Tensor Noise(std::uint64_t seed, std::size_t n = 256, double scale = 1) {
  Tensor tensor;
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  for (std::size_t i = 0; i < n; ++i)
    tensor.values.push_back(static_cast<float>(scale * normal(generator)));
  return tensor;
}

inline Tensor Changed(Tensor tensor, const std::function<double(double)>& change) {
  for (double& x : tensor.values) x = static_cast<float>(change(x));
  return tensor;
}
inline Tensor Times(const Tensor& tensor, double factor) {
  return Changed(tensor, [=](double x) { return factor * x; });
}
inline Tensor Sum(Tensor x, const Tensor& y) {
  for (std::size_t i = 0; i < x.values.size(); ++i)
    x.values[i] = static_cast<float>(x.values[i] + y.values[i]);
  return x;
}

class CauseTest : public ::testing::Test {
 protected:
  using Config = std::map<std::string, std::string>;

  CauseTest() { Reset(); }
  void Reset(std::uint32_t world_size = 1) {
    store_ = std::make_unique<FakeStore>();
    a_.emplace(*store_, "base", world_size);
    b_.emplace(*store_, "ort", world_size);
    a_->NarrowSketches();
    b_->NarrowSketches();
  }
  // The same in both runs.
  void Both(std::uint64_t step, const TensorKey& key, const Tensor& tensor,
            std::uint32_t rank = 0) {
    Put(step, key, tensor, tensor, rank);
  }
  void Put(std::uint64_t step, const TensorKey& key, const Tensor& a, const Tensor& b,
           std::uint32_t rank = 0) {
    a_->Observe(rank, step, key, a);
    b_->Observe(rank, step, key, b);
  }
  void Scalars(std::uint64_t step, const std::string& name, double a, double b) {
    a_->Scalar(0, step, name, a);
    b_->Scalar(0, step, name, b);
  }
  void Configure(Config a, Config b) {
    a_->Config(0, std::move(a));
    b_->Config(0, std::move(b));
  }

  static Divergence Root(std::uint64_t step, const TensorKey& key,
                         Reason reason = Reason::kNumeric) {
    TensorDef def;
    def.key = key;
    def.class_name = "Module";
    Divergence root = MakeRow(def, step, /*rank=*/0);
    root.reason = reason;
    return root;
  }

  std::vector<Cause> AskAll(const Divergence& root) {
    a_->Commit();
    b_->Commit();
    EXPECT_EQ(store_->violation(), "");
    auto a = RunView::Open(*store_, "base"), b = RunView::Open(*store_, "ort");
    EXPECT_TRUE(a.ok() && b.ok());
    const auto all = StepSet::Parse("");
    const auto steps_a = a->Steps(*all), steps_b = b->Steps(*all);
    StepAttempts steps;
    for (const auto& [step, attempt] : *steps_a) {
      if (const auto found = steps_b->find(step); found != steps_b->end())
        steps[step] = {attempt, found->second};
    }
    Alignment::Options options;
    options.wanted.fill(true);
    const auto names = NameMap::Parse(map_);
    options.names = &*names;
    Aligner aligner(options);
    const CauseQuestion question{.a = *a,
                                 .b = *b,
                                 .root = root,
                                 .steps = steps,
                                 .aligner = aligner,
                                 .place = 0,
                                 .ranks = {.a = root.rank, .b = root.rank}};
    auto causes = FindCauses(question, {});
    EXPECT_TRUE(causes.ok()) << causes.status().message();
    return causes.ok() ? *causes : std::vector<Cause>();
  }
  // The first of them.
  std::optional<Cause> Ask(const Divergence& root) {
    const auto causes = AskAll(root);
    return causes.empty() ? std::nullopt : std::optional(causes.front());
  }
  // "rule: text", or "nothing".
  std::string Say(const Divergence& root) {
    const auto cause = Ask(root);
    return cause ? cause->rule + ": " + cause->text : "nothing";
  }

  std::unique_ptr<FakeStore> store_;
  std::optional<RunWriter> a_, b_;
  std::string map_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_TESTS_SERVER_QUERY_CAUSE_CAUSE_FIXTURE_H_
