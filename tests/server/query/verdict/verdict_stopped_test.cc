// A diff that is cancelled while it reads or judges, or of which a read fails: it says so, wherever
// that was, and names nothing.
#include <atomic>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <utility>
#include <variant>

#include "tests/server/query/verdict/verdict_fixture.h"
#include "tests/support/forwarding_store.h"

namespace statcollect::query {
namespace {

const Status kDamaged(Code::kDataLoss, "a block is damaged");

// One of all reads fails, and those after it do not.
class FailsOnce final : public testing::ForwardingStore {
 public:
  FailsOnce(Store& store, std::uint64_t at) : ForwardingStore(store), at_(at) {}
  std::uint64_t reads() const { return reads_; }

  std::unique_ptr<StatScan> ScanStats(AttemptId attempt, std::uint32_t rank,
                                      StepBounds steps) override {
    return std::make_unique<Scan>(*this, ForwardingStore::ScanStats(attempt, rank, steps));
  }
  Status VisitRecords(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                      RecordVisitor visitor) override {
    return std::visit(
        [&](const auto* of_query) {
          auto failing = *of_query;
          failing.read = [&](std::size_t bytes) {
            return Fails() ? kDamaged : of_query->Read(bytes);
          };
          return ForwardingStore::VisitRecords(attempt, rank, steps, &failing);
        },
        visitor);
  }

 private:
  class Scan final : public StatScan {
   public:
    Scan(FailsOnce& store, std::unique_ptr<StatScan> scan)
        : store_(store), scan_(std::move(scan)) {}
    bool NextHead() override {
      if (status_.ok() && store_.Fails()) status_ = kDamaged;
      return status_.ok() && scan_->NextHead();
    }
    const BlockHead& head() const override { return scan_->head(); }
    bool Load(bool sketches, StatColumns* columns) override {
      return scan_->Load(sketches, columns);
    }
    bool LoadHashes(HashColumns* columns) override { return scan_->LoadHashes(columns); }
    const Status& status() const override { return status_.ok() ? scan_->status() : status_; }
    std::uint64_t bytes_read() const override { return scan_->bytes_read(); }

   private:
    FailsOnce& store_;
    const std::unique_ptr<StatScan> scan_;
    Status status_;
  };

  bool Fails() { return ++reads_ == at_; }

  std::atomic<std::uint64_t> reads_{0};
  const std::uint64_t at_;
};

class VerdictStoppedTest : public VerdictTest {
 protected:
  static constexpr std::uint64_t kPoints = 50;  // of all reads, evenly spread

  VerdictStoppedTest() {
    options_.ranks = 2;
    options_.steps = 2;
    options_.elements = 64;
    before_ = [this](RunWriter& run, bool is_b) {
      for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) {
        run.Config(rank, {{"optimizer.group0.eps", is_b ? "1e-8" : "1e-7"}});
        for (std::uint64_t step = 0; step < options_.steps; ++step)
          run.Scalar(rank, step, "lr/group0", 0.1);
      }
    };
  }
  void WriteRuns(bool twins) {
    store_ = std::make_unique<FakeStore>();
    Write(Sum(RoundingOf(kRounding), BugAt("blocks.2.ln", 1e-2, /*from=*/1)));
    for (const int seed : {1, 2}) {
      if (twins) WriteTwin(1, seed, RoundingOf(kRounding));
    }
  }
  const DiffRequest request_{.run_a = "a", .run_b = "b"};
};

TEST_F(VerdictStoppedTest, IsCancelledWhereverItIs) {
  for (const bool twins : {false, true}) {
    WriteRuns(twins);
    ASSERT_TRUE(QueryEngine(*store_).Diff(request_).ok());
    const std::uint64_t all = store_->reads();
    for (std::uint64_t at = 1; at < all; at += all / kPoints) {
      std::stop_source stop;
      store_->OnRead([&, first = store_->reads()](std::uint64_t reads) {
        if (reads - first == at) stop.request_stop();
      });
      const auto report = QueryEngine(*store_).Diff(request_, {}, stop.get_token());
      EXPECT_EQ(report.status().code(), Code::kCancelled) << "read " << at << " of " << all;
    }
  }
}

TEST_F(VerdictStoppedTest, EndsWithTheErrorOfAReadWhicheverFails) {
  for (const bool twins : {false, true}) {
    WriteRuns(twins);
    FailsOnce whole(*store_, 0);
    ASSERT_TRUE(QueryEngine(whole).Diff(request_).ok());
    for (std::uint64_t at = 1; at < whole.reads(); at += whole.reads() / kPoints) {
      FailsOnce failing(*store_, at);
      const auto report = QueryEngine(failing).Diff(request_);
      EXPECT_EQ(report.status().code(), Code::kDataLoss)
          << "read " << at << " of " << whole.reads();
    }
  }
}

}  // namespace
}  // namespace statcollect::query
