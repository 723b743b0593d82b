#include "bench/ingest/repeated_runs.h"

#include <algorithm>

#include "bench/ingest/record_maker.h"

namespace statcollect::bench {
namespace {

constexpr std::uint32_t kBlockRecords = 256;
constexpr AttemptId kFirstAttempt = 1;

StatColumns ToColumns(const Network& network, const MadeColumns& made, std::uint32_t first,
                      std::uint32_t k) {
  StatColumns columns;
  columns.sketch_width = k;
  for (std::uint32_t i = 0; i < made.size(); ++i) {
    const std::uint32_t id = first + i;
    columns.activation.push_back(id);
    columns.layout.push_back(network.layout_of()[id]);
    columns.step.push_back(0);
    columns.order.push_back(id);
    columns.sample_count.push_back(0);
    columns.stats.push_back({.numel = network.profiles()[id].numel,
                             .zero = made.zero[i],
                             .neg = made.neg[i],
                             .pos = made.pos[i],
                             .has_finite = true,
                             .min = made.min[i],
                             .max = made.max[i],
                             .mean = made.mean[i],
                             .std = made.std[i],
                             .l1 = made.l1[i],
                             .l2 = made.l2[i],
                             .hash = made.hash[i]});
  }
  columns.sketch.assign(made.sketch.begin(), made.sketch.end());
  return columns;
}

RepeatedRuns::Step MakeStep(const Network& network, const RecordMaker& maker, std::uint64_t step,
                            std::uint8_t content) {
  RepeatedRuns::Step blocks;
  for (std::uint32_t first = 0; first < network.size(); first += kBlockRecords) {
    const std::uint32_t count = std::min(kBlockRecords, network.size() - first);
    MadeColumns made;
    made.Resize(count, maker.sketch());
    maker.Make(/*rank=*/0, step, first, count, 0, &made);
    RepeatedRuns::Block& block = blocks.emplace_back();
    block.columns = ToColumns(network, made, first, maker.sketch());
    block.head = {.step = 0, .activation = first, .records = count, .digest = {}};
    block.head.digest[0] = content;
    block.head.digest[1] = static_cast<std::uint8_t>(blocks.size());
  }
  return blocks;
}

class RepeatedScan final : public StatScan {
 public:
  RepeatedScan(const RepeatedRuns& runs, AttemptId attempt, StepBounds steps)
      : runs_(runs), attempt_(attempt), step_(steps.first), end_(steps.last + 1) {}

  bool NextHead() override {
    if (started_) ++index_;
    started_ = true;
    if (step_ < end_ && index_ == runs_.StepOf(attempt_, step_).size()) {
      index_ = 0;
      ++step_;
    }
    if (step_ >= end_) return false;
    head_ = runs_.StepOf(attempt_, step_)[index_].head;
    head_.step = step_;
    return true;
  }
  const BlockHead& head() const override { return head_; }
  bool Load(bool sketches, StatColumns* columns) override {
    *columns = runs_.StepOf(attempt_, step_)[index_].columns;
    std::fill(columns->step.begin(), columns->step.end(), step_);
    if (!sketches) columns->sketch_width = 0;
    if (!sketches) columns->sketch.clear();
    return true;
  }
  bool LoadHashes(HashColumns* columns) override {
    *columns = HashesOf(runs_.StepOf(attempt_, step_)[index_].columns);
    return true;
  }
  const Status& status() const override { return status_; }
  std::uint64_t bytes_read() const override { return 0; }

 private:
  const RepeatedRuns& runs_;
  const AttemptId attempt_;
  std::uint64_t step_;
  const std::uint64_t end_;
  std::size_t index_ = 0;
  bool started_ = false;
  BlockHead head_;
  Status status_;
};

// Steps of both.
StepBounds Within(StepBounds steps, std::uint64_t count) {
  return {.first = steps.first, .last = std::min(steps.last, count - 1)};
}

}  // namespace

RepeatedRuns::RepeatedRuns(DocumentStore& behind, const Network& network,
                           const RepeatedOptions& options)
    : behind_(behind), network_(network), options_(options) {
  for (std::size_t run = 0; run < variants_.size(); ++run) {
    MakerOptions maker_options{.sketch = options.sketch};
    if (run == 1 && !options.identical) maker_options.differ_from = 0;
    const RecordMaker maker(network, maker_options);
    for (std::size_t i = 0; i < kVariants; ++i) {
      const std::size_t content = options.identical ? i : run * kVariants + i;
      variants_[run][i] = MakeStep(network, maker, i, static_cast<std::uint8_t>(content));
    }
  }
}

const RepeatedRuns::Step& RepeatedRuns::StepOf(AttemptId attempt, std::uint64_t step) const {
  return variants_[attempt - kFirstAttempt][step % kVariants];
}

Result<std::vector<AttemptMeta>> RepeatedRuns::Attempts(const std::string& run) {
  if (run != kA && run != kB) return std::vector<AttemptMeta>();
  return std::vector<AttemptMeta>{{.id = kFirstAttempt + (run == kB ? 1 : 0),
                                   .number = 1,
                                   .run = run,
                                   .launch = run,
                                   .world_size = options_.ranks}};
}

Result<std::map<std::uint32_t, RankMeta>> RepeatedRuns::Ranks(AttemptId attempt) {
  std::map<std::uint32_t, RankMeta> ranks;
  for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) {
    RankMeta& meta = ranks[rank];
    meta.info.run = attempt == kFirstAttempt ? kA : kB;
    meta.info.rank = rank;
    meta.info.world_size = options_.ranks;
    meta.stat_records = options_.steps * network_.size();
    meta.records = meta.stat_records + 2 * options_.steps;
    meta.durable_seq = meta.records;
    meta.steps = options_.steps;
    meta.first_step = 0;
    meta.last_step = options_.steps - 1;
    meta.finished = true;
  }
  return ranks;
}

std::unique_ptr<StatScan> RepeatedRuns::ScanStats(AttemptId attempt, std::uint32_t,
                                                  StepBounds steps) {
  return std::make_unique<RepeatedScan>(*this, attempt, Within(steps, options_.steps));
}

Status RepeatedRuns::VisitSeries(AttemptId attempt, std::uint32_t, std::uint32_t activation,
                                 StepBounds steps, const Visitor<StatPoint>& visitor) {
  const StepBounds there = Within(steps, options_.steps);
  for (std::uint64_t step = there.first; step <= there.last; ++step) {
    const StatColumns& columns = StepOf(attempt, step)[activation / kBlockRecords].columns;
    const std::size_t i = activation % kBlockRecords;
    STATCOLLECT_RETURN_IF_ERROR(visitor.take({.step = step,
                                              .layout = columns.layout[i],
                                              .order = columns.order[i],
                                              .stats = columns.stats[i]}));
  }
  return Status::Ok();
}

Status RepeatedRuns::VisitStatSteps(AttemptId, std::uint32_t, StepBounds steps,
                                    const Visitor<std::uint64_t>& visitor) {
  const StepBounds there = Within(steps, options_.steps);
  for (std::uint64_t step = there.first; step <= there.last; ++step)
    STATCOLLECT_RETURN_IF_ERROR(visitor.take(step));
  return Status::Ok();
}

Status RepeatedRuns::VisitRecords(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                                  RecordVisitor visitor) {
  const auto* const* scalars = std::get_if<const Visitor<ScalarRecord>*>(&visitor);
  const auto* const* ends = std::get_if<const Visitor<StepRecord>*>(&visitor);
  if (scalars == nullptr && ends == nullptr)
    return behind_.VisitRecords(attempt, rank, steps, visitor);
  const StepBounds there = Within(steps, options_.steps);
  for (std::uint64_t step = there.first; step <= there.last; ++step) {
    const double loss = 1.0 + 1.0 / static_cast<double>(step + 1);
    STATCOLLECT_RETURN_IF_ERROR(
        ends != nullptr
            ? (*ends)->take({.step = step, .unix_nanos = 0, .micro_batches = 1})
            : (*scalars)->take({.name = "loss", .step = step, .micro_batch = 0, .value = loss}));
  }
  return Status::Ok();
}

}  // namespace statcollect::bench
