// Experts whose rows are spread over ranks, compared with one rank that has them all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <span>

#include "server/query/place_text.h"
#include "server/query/query.h"
#include "tests/server/query/ask.h"
#include "tests/server/query/logical/cut_tensor.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace statcollect::testing;  // NOLINT: the helpers

constexpr std::int64_t kRows = 9, kColumns = 12;

class RowSets : public ::testing::Test {
 protected:
  static Whole Of(const std::string& name, std::uint64_t step) {
    Random random(std::hash<std::string>()(name) + step);
    return RandomTensor(random, {kRows, kColumns});
  }
  static void Write(RunWriter& run, std::uint32_t rank, std::uint64_t step, const std::string& name,
                    const Computed& computed) {
    run.Record(rank, step, Key(name), computed.layout, computed.stats, computed.sketch);
  }
  // Everything on one rank.
  void WriteWhole(const std::string& name) {
    RunWriter run(store_, name, 1);
    for (std::uint64_t step = 0; step < 3; ++step) {
      Record(run, step, Key("embed"), Of("embed", step), {{0, AllOf({kRows, kColumns})}});
      for (const std::string expert : {"experts.0", "experts.1"})
        Write(run, 0, step, expert, SomeRows(Of(expert, step), Numbered(kRows), 0, kColumns, 0, 1));
      Record(run, step, Key("head"), Of("head", step), {{0, AllOf({kRows, kColumns})}});
    }
    run.Commit();
  }
  // Rows of expert 0 are on both ranks, those of expert 1 on the second one, in any order; expert 2
  // has none. `wrong`: in step 1, one value of expert 1 is another. `fewer`: so is the number of
  // its rows.
  void WriteSpread(const std::string& name, bool wrong = false, bool fewer = false) {
    RunWriter run(store_, name, 2);
    Random random(17);
    for (std::uint64_t step = 0; step < 3; ++step) {
      Sizes order = Numbered(kRows);
      std::shuffle(order.begin(), order.end(), random);
      const std::span<const std::int64_t> rows = order;
      Whole second = Of("experts.1", step);
      if (wrong && step == 1) second.values[3 * kColumns + 2] += 1;
      for (std::uint32_t rank = 0; rank < 2; ++rank) {
        Record(run, step, Key("embed"), Of("embed", step), {{rank, AllOf({kRows, kColumns})}});
        const auto part = rank == 0 ? rows.first(4) : rows.subspan(4);
        Write(run, rank, step, "experts.0",
              SomeRows(Of("experts.0", step), part, 0, kColumns, rank, 2));
        if (rank == 1) {
          const std::size_t count = kRows - (fewer && step == 1 ? 1 : 0);
          Write(run, rank, step, "experts.1",
                SomeRows(second, rows.first(count), 0, kColumns, rank, 2));
          Write(run, rank, step, "experts.2",
                SomeRows(second, rows.first(0), 0, kColumns, rank, 2));
        }
        Record(run, step, Key("head"), Of("head", step), {{rank, AllOf({kRows, kColumns})}});
      }
    }
    run.Commit();
  }
  DiffReport Ask() {
    auto report = QueryEngine(store_).Diff({.run_a = "a", .run_b = "b"});
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? *report : DiffReport();
  }

  FakeStore store_;
};

TEST_F(RowSets, AreIdenticalHoweverTheyAreSpread) {
  WriteWhole("a");
  WriteSpread("b");
  const DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kIdentical) << ::testing::PrintToString(r.notes);
  EXPECT_EQ(r.compared.records, 3u * 4);
  EXPECT_THAT(r.notes, Not(Contains(HasSubstr("layout not known"))));
}

TEST_F(RowSets, AWrongValueIsFoundAtItsExpert) {
  WriteWhole("a");
  WriteSpread("b", /*wrong=*/true);
  const DiffReport r = Ask();
  ASSERT_TRUE(r.first);
  EXPECT_EQ(r.first->activation, "experts.1");
  EXPECT_EQ(r.first->step, 1u);
  EXPECT_EQ(r.first->ranks_b, std::vector<std::uint32_t>{1});
}

TEST_F(RowSets, ARowThatIsMissingIsFoundAtItsExpert) {
  WriteWhole("a");
  WriteSpread("b", /*wrong=*/false, /*fewer=*/true);
  const DiffReport r = Ask();
  ASSERT_TRUE(r.first);
  EXPECT_EQ(r.first->activation, "experts.1");
  EXPECT_EQ(r.first->reason, Reason::kShape);
  EXPECT_EQ(r.first->step, 1u);
}

// Rows have no place; parts of them do.
TEST(PlaceText, OfRowsInAnyOrderSaysWhichColumns) {
  Placement place{.global_shape = {1, 8}, .boxes = {0, 0, 1, 8}, .unordered = 1};
  EXPECT_EQ(PlaceText(place), "");
  place.boxes = {0, 4, 1, 4};
  EXPECT_EQ(PlaceText(place), "[0:1, 4:8] of (1, 8)");
}

}  // namespace
}  // namespace statcollect::query
