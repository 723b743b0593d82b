#include "server/query/compare/fused_pair.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>

#include "server/query/compare/distance.h"
#include "tests/server/query/run_writer.h"

namespace statcollect::query {
namespace {

using testing::SketchOf;
using testing::StatsOf;
using testing::Tensor;

constexpr std::uint32_t kSums = 16;

// Observations of tensors, with what they point to.
class Sides {
 public:
  Observation Of(const Tensor& tensor) {
    Layout& layout = layouts_.emplace_back(Layout{.dtype = tensor.dtype, .shape = tensor.Shape()});
    TensorStats& stats = stats_.emplace_back(StatsOf(tensor));
    return {.def = &def_,
            .layout = &layout,
            .stats = &stats,
            .sketch = sketches_.emplace_back(SketchOf(tensor, kSums))};
  }

 private:
  TensorDef def_;
  std::deque<Layout> layouts_;
  std::deque<TensorStats> stats_;
  std::deque<std::vector<double>> sketches_;
};

Tensor Wave(std::vector<std::int64_t> shape, double phase = 0) {
  Tensor tensor{.values = {}, .shape = shape};
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  for (std::int64_t i = 0; i < count; ++i)
    tensor.values.push_back(std::sin(1.0 + static_cast<double>(i) + phase));
  return tensor;
}

Tensor Transposed(const Tensor& tensor) {  // of the first two dimensions
  const auto rows = static_cast<std::size_t>(tensor.shape[0]),
             columns = static_cast<std::size_t>(tensor.shape[1]);
  const std::size_t rest = tensor.values.size() / rows / columns;
  Tensor out = tensor;
  std::swap(out.shape[0], out.shape[1]);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) {
      for (std::size_t i = 0; i < rest; ++i)
        out.values[(c * rows + r) * rest + i] = tensor.values[(r * columns + c) * rest + i];
    }
  }
  return out;
}

Tensor Joined(const Tensor& a, const Tensor& b) {
  Tensor out = a;
  out.values.insert(out.values.end(), b.values.begin(), b.values.end());
  out.shape[0] += b.shape[0];
  return out;
}

class Fused : public ::testing::Test {
 protected:
  Comparison Judge(const NameRelation& relation, const std::vector<Tensor>& a,
                   const std::vector<Tensor>& b) {
    std::vector<Observation> of_a, of_b;
    for (const Tensor& tensor : a) of_a.push_back(sides_.Of(tensor));
    for (const Tensor& tensor : b) of_b.push_back(sides_.Of(tensor));
    pair_ = Fuse(relation, of_a, of_b);
    return Compare(pair_.a.observation(0), pair_.b.observation(0), std::nullopt, /*exact=*/false);
  }
  bool HasPlaces() const { return !pair_.a.sketch.empty() && pair_.a.layout.Has(Statistic::kHash); }

  Sides sides_;
  FusedPair pair_;
};

constexpr NameRelation kAnyOrder{.any_order = true}, kSequenceFirst{.sequence_first = true},
    kPadded{.padded = true};

TEST_F(Fused, PartsAndTheWholeAgreeInWhateverOrderItHasThem) {
  const Tensor q = Wave({8, 6}), k = Wave({4, 6}, 3), v = Wave({4, 6}, 5);
  for (const Tensor& whole : {Joined(Joined(q, k), v), Joined(Joined(v, q), k)}) {
    EXPECT_NE(Judge({}, {q, k, v}, {whole}).agreement, Agreement::kDiverged);
    EXPECT_NE(Judge({}, {whole}, {q, k, v}).agreement, Agreement::kDiverged);
    EXPECT_EQ(pair_.b.layout.shape, whole.shape);
    EXPECT_FALSE(HasPlaces());
  }
}

TEST_F(Fused, APartThatDiffersDiverges) {
  const Tensor gate = Wave({4, 6}), up = Wave({4, 6}, 3);
  EXPECT_EQ(Judge({}, {gate, up}, {Joined(gate, gate)}).agreement, Agreement::kDiverged);
  EXPECT_EQ(Judge({}, {gate, up}, {gate}).reason, Reason::kShape);
}

TEST_F(Fused, TheOptimizersCountOfStepsIsThatOfEachPart) {
  const Tensor three{.values = {3}}, four{.values = {4}};
  EXPECT_EQ(Judge({}, {three, three, three}, {three}).agreement, Agreement::kIdentical);
  EXPECT_EQ(Judge({}, {three, three, four}, {three}).agreement, Agreement::kDiverged);
  EXPECT_EQ(Judge({}, {three}, {four, three}).agreement, Agreement::kDiverged);
}

TEST_F(Fused, ABatchOfOneSequenceIsComparedByHashAndSketch) {
  const Tensor batch_first = Wave({1, 5, 6});
  EXPECT_EQ(Judge(kSequenceFirst, {batch_first}, {Transposed(batch_first)}).agreement,
            Agreement::kIdentical);
  EXPECT_TRUE(HasPlaces());
  Tensor other = Transposed(batch_first);
  std::swap(other.values[0], other.values[20]);
  EXPECT_EQ(Judge(kSequenceFirst, {batch_first}, {other}).agreement, Agreement::kDiverged);
}

TEST_F(Fused, ABatchOfSeveralSequencesIsComparedByStatistics) {
  const Tensor batch_first = Wave({3, 5, 6});
  EXPECT_NE(Judge(kSequenceFirst, {batch_first}, {Transposed(batch_first)}).agreement,
            Agreement::kDiverged);
  EXPECT_FALSE(HasPlaces());
  EXPECT_EQ(Judge(kSequenceFirst, {batch_first}, {Transposed(Wave({3, 5, 6}, 1))}).agreement,
            Agreement::kDiverged);
  // Not exchanged after all.
  EXPECT_EQ(Judge(kSequenceFirst, {batch_first}, {batch_first}).agreement, Agreement::kIdentical);
  EXPECT_TRUE(HasPlaces());
}

TEST_F(Fused, AsManySequencesAsTokensMayBeInEitherOrder) {
  const Tensor square = Wave({4, 4, 6});
  EXPECT_NE(Judge(kSequenceFirst, {square}, {Transposed(square)}).agreement, Agreement::kDiverged);
  EXPECT_FALSE(HasPlaces());
}

TEST_F(Fused, AnotherShapeIsNotAnotherOrder) {
  EXPECT_EQ(Judge(kAnyOrder, {Wave({4, 6})}, {Wave({3, 8})}).reason, Reason::kShape);
  EXPECT_EQ(Judge(kSequenceFirst, {Wave({4, 6, 2})}, {Wave({4, 6, 3})}).reason, Reason::kShape);
  EXPECT_NE(Judge(kAnyOrder, {Wave({4, 6})}, {Transposed(Wave({4, 6}))}).agreement,
            Agreement::kDiverged);
}

TEST_F(Fused, RowsOfZerosBeyondTheVocabularyAreLeftOut) {
  const Tensor real = Wave({5, 16}), zeros{.values = std::vector<double>(48, 0), .shape = {3, 16}};
  EXPECT_NE(Judge(kPadded, {real}, {Joined(real, zeros)}).agreement, Agreement::kDiverged);
  EXPECT_FALSE(pair_.b.sketch.empty());
  EXPECT_EQ(pair_.b.layout.shape, real.shape);
  EXPECT_NEAR(pair_.b.stats.std, StatsOf(real).std, 1e-12);
  EXPECT_NEAR(pair_.b.stats.mean, StatsOf(real).mean, 1e-12);
  EXPECT_NE(Judge(kPadded, {Joined(real, zeros)}, {real}).agreement, Agreement::kDiverged);
  // Rows off by one: every statistic agrees, the sketch does not.
  Tensor rolled = real;
  std::rotate(rolled.values.begin(), rolled.values.begin() + 16, rolled.values.end());
  EXPECT_EQ(Judge(kPadded, {real}, {Joined(rolled, zeros)}).agreement, Agreement::kDiverged);
}

TEST_F(Fused, PaddingThatIsNotZeroIsNotCompared) {
  const Tensor real = Wave({5, 16}), padding = Wave({3, 16}, 9);
  EXPECT_EQ(Judge(kPadded, {real}, {Joined(real, padding)}).agreement, Agreement::kIncomparable);
  EXPECT_EQ(Judge({.sequence_first = true, .padded = true}, {Wave({2, 3, 5})}, {Wave({3, 2, 8})})
                .agreement,
            Agreement::kIncomparable);
  // Fewer rows in something that is not padded.
  EXPECT_EQ(Judge({}, {real}, {Joined(real, padding)}).reason, Reason::kShape);
  EXPECT_EQ(Judge(kPadded, {Wave({5, 4})}, {Wave({8, 6})}).reason, Reason::kShape);
}

TEST_F(Fused, NotANumberIsSeenInAnyOrder) {
  Tensor bad = Transposed(Wave({3, 5, 6}));
  bad.values[4] = std::nan("");
  EXPECT_EQ(Judge(kSequenceFirst, {Wave({3, 5, 6})}, {bad}).reason, Reason::kNonfinite);
}

}  // namespace
}  // namespace statcollect::query
