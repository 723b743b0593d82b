// Two runs of any length through the interface of the store: a few steps of real records, handed
// out again and again. So a query meets more records than a disk would hold, and what it keeps of
// them shows.
#ifndef STATCOLLECT_BENCH_INGEST_REPEATED_RUNS_H_
#define STATCOLLECT_BENCH_INGEST_REPEATED_RUNS_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/ingest/network.h"
#include "server/store/document_store.h"

namespace statcollect::bench {

struct RepeatedOptions {
  std::uint32_t ranks = 8;
  std::uint64_t steps = 1000;
  std::uint32_t sketch = 16;
  bool identical = false;  // both runs have the same blocks; otherwise every record differs
};

// Immutable, so any thread may read. What it does not simulate comes from the store behind it.
class RepeatedRuns final : public DocumentStore {
 public:
  static constexpr char kA[] = "repeated-a", kB[] = "repeated-b";

  // Borrows both.
  RepeatedRuns(DocumentStore& behind, const Network& network, const RepeatedOptions& options);

  Result<std::vector<std::string>> ListRuns() override { return std::vector<std::string>{kA, kB}; }
  Result<std::vector<AttemptMeta>> Attempts(const std::string& run) override;
  Result<std::map<std::uint32_t, RankMeta>> Ranks(AttemptId attempt) override;
  Result<SharedDefinitions> Definitions(AttemptId, std::uint32_t) override {
    return std::make_shared<const RankDefinitions>(
        RankDefinitions{network_.activations(), network_.layouts()});
  }
  std::unique_ptr<StatScan> ScanStats(AttemptId attempt, std::uint32_t rank,
                                      StepBounds steps) override;
  Status VisitSeries(AttemptId attempt, std::uint32_t rank, std::uint32_t activation,
                     StepBounds steps, const Visitor<StatPoint>& visitor) override;
  Status VisitStatSteps(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                        const Visitor<std::uint64_t>& visitor) override;
  Status VisitRecords(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                      RecordVisitor visitor) override;
  Result<std::string> CaptureChunkAt(AttemptId attempt, std::uint32_t rank, std::uint64_t step,
                                     std::uint32_t activation, std::uint32_t offset) override {
    return behind_.CaptureChunkAt(attempt, rank, step, activation, offset);
  }
  Result<std::optional<std::string>> Document(const std::string& run,
                                              const std::string& name) override {
    return behind_.Document(run, name);
  }
  Status PutDocument(const std::string& run, const std::string& name,
                     const std::optional<std::string>& content) override {
    return behind_.PutDocument(run, name, content);
  }

  struct Block {
    BlockHead head;
    StatColumns columns;
  };
  using Step = std::vector<Block>;
  // The blocks of a step, apart from its number.
  const Step& StepOf(AttemptId attempt, std::uint64_t step) const;
  std::uint64_t steps() const { return options_.steps; }

 private:
  static constexpr std::size_t kVariants = 4;

  DocumentStore& behind_;
  const Network& network_;
  const RepeatedOptions options_;
  std::array<std::array<Step, kVariants>, 2> variants_;  // by run
};

}  // namespace statcollect::bench

#endif  // STATCOLLECT_BENCH_INGEST_REPEATED_RUNS_H_
