#include "server/query/records/records_reader.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "common/step_set.h"
#include "common/text.h"
#include "server/query/logical/one_run.h"
#include "server/query/rows.h"
#include "server/query/run_view.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kPartBytesMax = 512u << 10;  // of statistics, about; definitions likewise
constexpr std::size_t kDefinitionsMax = 2048;      // in a part

// A record's place in the blocks of its step.
struct Entry {
  std::uint32_t order = 0;
  std::uint32_t index = 0;  // in its block
  const StatColumns* block = nullptr;
  std::size_t sample = 0;  // its first one in the block
};

std::size_t SampleCount(const Entry& entry) {
  return entry.index < entry.block->sample_count.size() ? entry.block->sample_count[entry.index]
                                                        : 0;
}

// Of a definition on the wire, about.
std::size_t BytesOf(const TensorDef& def) {
  return 32 + def.key.name.size() + def.key.output_path.size() + def.parent.size() +
         def.class_name.size();
}

std::size_t BytesOf(const Layout& layout) {
  constexpr std::size_t kNumberBytes = 5;
  std::size_t numbers = layout.shape.size();
  if (layout.placement) {
    const Placement& place = *layout.placement;
    numbers += place.global_shape.size() + place.boxes.size() + place.ranges.size();
  }
  return 32 + kNumberBytes * numbers;
}

class Reader {
 public:
  Reader(RecordReader& store, RunView& view, const RecordsRequest& request, const OnRecords& take)
      : store_(store), view_(view), request_(request), take_(take) {}

  // Before Run: whole tensors come first in each step; of the ranks' own, those of unknown place
  // remain.
  Status PutTogether(LogicalRun& run);
  Status Run(const std::stop_token& stop);

 private:
  // What has been sent of one rank of one attempt: definitions and events.
  struct RankState {
    std::size_t activations = 0, layouts = 0;
    std::optional<std::vector<EventRecord>> events;  // by step
    std::vector<std::vector<std::uint32_t>>
        holders;  // of whole tensors, by activation; empty: not looked up yet
  };

  Status CheckRanks() const;
  Result<std::map<std::uint64_t, std::size_t>> Steps();
  // The steps of a rank's records of one kind.
  template <typename Record>
  Status AddSteps(std::size_t attempt, std::uint32_t rank, StepBounds bounds,
                  std::map<std::uint64_t, std::size_t>* steps) {
    Visitor<Record> visitor;
    visitor.take = [&](const Record& record) {
      (*steps)[record.step] = attempt;
      return Status::Ok();
    };
    return store_.Visit(view_.attempts()[attempt].id, rank, bounds, visitor);
  }
  Status ReadStep(std::uint64_t step, std::size_t attempt, Progress* progress,
                  const std::stop_token& stop);
  Status ReadWholeStep(std::uint64_t step, std::size_t attempt);
  Status ReadRankStep(std::uint64_t step, std::size_t attempt, std::uint32_t rank);
  Status SendStatsOf(RunView& view, std::uint64_t step, std::size_t attempt, std::uint32_t rank,
                     RankState& state);
  std::vector<std::uint32_t> RanksOf(std::size_t attempt) const;
  bool IsWantedKey(const TensorKey& key) const;
  std::vector<Entry> Wanted(const StepData& data, const RankCatalogue& catalogue) const;
  Status SendDefinitions(const RankCatalogue& catalogue, RankState& state);
  Status SendStats(const std::vector<Entry>& entries, std::size_t attempt,
                   const RankCatalogue& catalogue, RankState& state);
  const std::vector<std::uint32_t>& HoldersOf(std::uint32_t activation, std::size_t attempt,
                                              const RankCatalogue& catalogue,
                                              RankState& state) const;
  void Append(const Entry& entry, StatColumns& out) const;
  Status AddOthers(std::uint64_t step, std::size_t attempt, std::uint32_t rank);
  Result<const std::vector<EventRecord>*> Events(std::size_t attempt, std::uint32_t rank);
  Status Send();

  RecordReader& store_;
  RunView& view_;
  const RecordsRequest& request_;
  const OnRecords& take_;
  std::map<std::pair<std::size_t, std::uint32_t>, RankState> states_;
  std::optional<RunView> whole_;                    // the same run as one rank
  const LogicalRun* whole_run_ = nullptr;           // that it reads
  const std::set<TensorName>* unplaced_ = nullptr;  // tensors that it lacks
  std::map<std::size_t, RankState> whole_states_;   // by attempt
  RecordsPart part_;                                // being filled
};

Status Reader::CheckRanks() const {
  const std::vector<std::uint32_t> there = view_.AllRanks();
  if (request_.ranks.empty() || std::any_of(there.begin(), there.end(), [&](std::uint32_t rank) {
        return IsWanted(request_.ranks, rank);
      }))
    return Status::Ok();
  const std::span first(there.data(), std::min<std::size_t>(there.size(), 20));
  return {Code::kNotFound, "records of run '" + view_.run() +
                               "': it has none of the requested ranks; it has " + Joined(first) +
                               (there.size() > first.size() ? " and more" : "")};
}

// Steps of the run's view; then those that have no tensors or scalars but something else, of the
// newest attempt.
Result<std::map<std::uint64_t, std::size_t>> Reader::Steps() {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto wanted, StepSet::Parse(request_.steps));
  auto steps = view_.Steps(wanted);
  if (!steps.ok() || !request_.kinds.empty()) return steps;
  std::map<std::uint64_t, std::size_t> others;
  for (std::size_t attempt = 0; attempt < view_.attempts().size(); ++attempt) {
    for (const auto& [rank, meta] : view_.ranks(attempt)) {
      const StepBounds bounds{.first = wanted.first(), .last = wanted.last()};
      STATCOLLECT_RETURN_IF_ERROR(AddSteps<StepRecord>(attempt, rank, bounds, &others));
      STATCOLLECT_RETURN_IF_ERROR(AddSteps<MemoryRecord>(attempt, rank, bounds, &others));
      STATCOLLECT_RETURN_IF_ERROR(AddSteps<DensityRecord>(attempt, rank, bounds, &others));
      STATCOLLECT_ASSIGN_OR_RETURN(const auto events, Events(attempt, rank));
      for (const EventRecord& event : *events) others[event.step] = attempt;
    }
  }
  std::erase_if(others, [&](const auto& entry) { return !wanted.Contains(entry.first); });
  steps->merge(others);
  return steps;
}

Status Reader::PutTogether(LogicalRun& run) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto view, RunView::Open(run, view_.run()));
  whole_.emplace(std::move(view));
  whole_run_ = &run;
  unplaced_ = &run.cut().unknown;
  return Status::Ok();
}

std::vector<std::uint32_t> Reader::RanksOf(std::size_t attempt) const {
  std::vector<std::uint32_t> ranks;
  for (const auto& [rank, meta] : view_.ranks(attempt)) {
    if (IsWanted(request_.ranks, rank)) ranks.push_back(rank);
  }
  return ranks;
}

Status Reader::Run(const std::stop_token& stop) {
  STATCOLLECT_RETURN_IF_ERROR(CheckRanks());
  STATCOLLECT_ASSIGN_OR_RETURN(const auto steps, Steps());
  Progress progress;
  for (const auto& [step, attempt] : steps) progress.total += RanksOf(attempt).size();
  for (const auto& [step, attempt] : steps)
    STATCOLLECT_RETURN_IF_ERROR(ReadStep(step, attempt, &progress, stop));
  return Status::Ok();
}

Status Reader::ReadStep(std::uint64_t step, std::size_t attempt, Progress* progress,
                        const std::stop_token& stop) {
  const std::uint32_t number = view_.attempts()[attempt].number;
  if (whole_) {
    if (stop.stop_requested()) return {Code::kCancelled, "records: cancelled"};
    part_ = {.attempt = number, .progress = *progress};
    for (const auto& [rank, meta] : view_.ranks(attempt)) part_.ranks.push_back(rank);
    STATCOLLECT_RETURN_IF_ERROR(ReadWholeStep(step, attempt));
  }
  for (const std::uint32_t rank : RanksOf(attempt)) {
    if (stop.stop_requested()) return {Code::kCancelled, "records: cancelled"};
    ++progress->done;
    part_ = {.attempt = number, .rank = rank, .progress = *progress};
    STATCOLLECT_RETURN_IF_ERROR(ReadRankStep(step, attempt, rank));
  }
  return Status::Ok();
}

Status Reader::ReadWholeStep(std::uint64_t step, std::size_t attempt) {
  STATCOLLECT_RETURN_IF_ERROR(SendStatsOf(*whole_, step, attempt, 0, whole_states_[attempt]));
  return Send();
}

Status Reader::ReadRankStep(std::uint64_t step, std::size_t attempt, std::uint32_t rank) {
  if (unplaced_ == nullptr || !unplaced_->empty())
    STATCOLLECT_RETURN_IF_ERROR(SendStatsOf(view_, step, attempt, rank, states_[{attempt, rank}]));
  if (request_.kinds.empty()) STATCOLLECT_RETURN_IF_ERROR(AddOthers(step, attempt, rank));
  return Send();
}

// The last of them stay in part_.
Status Reader::SendStatsOf(RunView& view, std::uint64_t step, std::size_t attempt,
                           std::uint32_t rank, RankState& state) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto data, view.Read(attempt, rank, step));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto catalogue, view.Catalogue(attempt, rank));
  part_.layouts = catalogue->layouts;
  const std::vector<Entry> entries = Wanted(data, *catalogue);
  if (entries.empty()) return Status::Ok();
  STATCOLLECT_RETURN_IF_ERROR(SendDefinitions(*catalogue, state));
  return SendStats(entries, attempt, *catalogue, state);
}

bool Reader::IsWantedKey(const TensorKey& key) const {
  if (!IsWanted(request_.kinds, key.kind)) return false;
  return unplaced_ == nullptr || !part_.ranks.empty() ||
         unplaced_->contains({key.kind, key.name, key.output_path});
}

std::vector<Entry> Reader::Wanted(const StepData& data, const RankCatalogue& catalogue) const {
  std::vector<Entry> entries;
  for (const StatColumns& block : data.blocks) {
    Entry entry{.block = &block};
    for (; entry.index < block.size(); ++entry.index) {
      entry.order = block.order[entry.index];
      if (IsWantedKey(catalogue.activations[block.activation[entry.index]].key))
        entries.push_back(entry);
      entry.sample += SampleCount(entry);
    }
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.order < b.order; });
  return entries;
}

Status Reader::SendDefinitions(const RankCatalogue& catalogue, RankState& state) {
  std::size_t in_part = 0, bytes = 0;
  const auto add = [&](const auto& from, std::size_t& sent, auto& to) -> Status {
    for (; sent < from.size(); ++sent) {
      if (in_part++ == kDefinitionsMax || bytes >= kPartBytesMax) {
        STATCOLLECT_RETURN_IF_ERROR(Send());
        in_part = 1;
        bytes = 0;
      }
      bytes += BytesOf(from[sent]);
      to.push_back(from[sent]);
    }
    return Status::Ok();
  };
  STATCOLLECT_RETURN_IF_ERROR(
      add(catalogue.activations, state.activations, part_.records.activations));
  return add(catalogue.layouts, state.layouts, part_.records.layouts);
}

void Reader::Append(const Entry& entry, StatColumns& out) const {
  const StatColumns& block = *entry.block;
  const std::size_t i = entry.index;
  out.activation.push_back(block.activation[i]);
  out.layout.push_back(block.layout[i]);
  out.step.push_back(block.step[i]);
  out.order.push_back(block.order[i]);
  out.stats.push_back(block.stats[i]);
  if (request_.sketches) {
    const auto sketch = block.SketchOf(i);
    out.sketch.insert(out.sketch.end(), sketch.begin(), sketch.end());
  }
  const std::size_t samples = request_.samples ? SampleCount(entry) : 0;
  out.sample_count.push_back(static_cast<std::uint32_t>(samples));
  const auto first =
      block.samples.begin() + static_cast<std::ptrdiff_t>(samples > 0 ? entry.sample : 0);
  out.samples.insert(out.samples.end(), first, first + static_cast<std::ptrdiff_t>(samples));
}

const std::vector<std::uint32_t>& Reader::HoldersOf(std::uint32_t activation, std::size_t attempt,
                                                    const RankCatalogue& catalogue,
                                                    RankState& state) const {
  if (state.holders.size() <= activation) state.holders.resize(activation + 1);
  std::vector<std::uint32_t>& holders = state.holders[activation];
  if (!holders.empty()) return holders;
  const TensorKey& key = catalogue.activations[activation].key;
  holders =
      whole_run_->RanksOf(view_.attempts()[attempt].id, {key.kind, key.name, key.output_path});
  if (holders.empty()) holders = part_.ranks;
  return holders;
}

// All records of a message have sketches of one width, and those of whole tensors are of the same
// ranks.
Status Reader::SendStats(const std::vector<Entry>& entries, std::size_t attempt,
                         const RankCatalogue& catalogue, RankState& state) {
  constexpr std::size_t kRecordBytes = 120;  // on the wire, about
  const bool whole = !part_.ranks.empty();
  std::size_t bytes = 0;
  for (const Entry& entry : entries) {
    StatColumns& out = part_.records.stats;
    const std::uint32_t width = request_.sketches ? entry.block->sketch_width : 0;
    const std::vector<std::uint32_t>* const holders =
        whole ? &HoldersOf(entry.block->activation[entry.index], attempt, catalogue, state)
              : nullptr;
    const bool others = whole && *holders != part_.ranks;
    if (!out.empty() && (bytes >= kPartBytesMax || out.sketch_width != width || others)) {
      STATCOLLECT_RETURN_IF_ERROR(Send());
      bytes = 0;
    }
    if (others) part_.ranks = *holders;
    out.sketch_width = width;
    Append(entry, out);
    bytes += kRecordBytes + 8 * (width + out.sample_count.back());
  }
  return Status::Ok();
}

Result<const std::vector<EventRecord>*> Reader::Events(std::size_t attempt, std::uint32_t rank) {
  auto& events = states_[{attempt, rank}].events;
  if (!events) {
    STATCOLLECT_ASSIGN_OR_RETURN(events, store_.Events(view_.attempts()[attempt].id, rank));
  }
  return static_cast<const std::vector<EventRecord>*>(&*events);
}

Status Reader::AddOthers(std::uint64_t step, std::size_t attempt, std::uint32_t rank) {
  const StepBounds only{.first = step, .last = step};
  STATCOLLECT_ASSIGN_OR_RETURN(auto scalars, view_.Scalars(attempt, rank, only));
  STATCOLLECT_ASSIGN_OR_RETURN(auto ends,
                               store_.StepEnds(view_.attempts()[attempt].id, rank, only));
  STATCOLLECT_ASSIGN_OR_RETURN(auto memory,
                               store_.Memory(view_.attempts()[attempt].id, rank, only));
  STATCOLLECT_ASSIGN_OR_RETURN(auto densities,
                               store_.Densities(view_.attempts()[attempt].id, rank, only));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto events, Events(attempt, rank));
  struct ByStep {
    bool operator()(const EventRecord& event, std::uint64_t of) const { return event.step < of; }
    bool operator()(std::uint64_t of, const EventRecord& event) const { return of < event.step; }
  };
  const auto [first, last] = std::equal_range(events->begin(), events->end(), step, ByStep());
  part_.records.scalars = std::move(scalars);
  part_.records.events.assign(first, last);
  part_.records.memory = std::move(memory);
  part_.records.densities = std::move(densities);
  part_.records.steps = std::move(ends);
  return Status::Ok();
}

Status Reader::Send() {
  RecordsPart part{.attempt = part_.attempt,
                   .rank = part_.rank,
                   .ranks = part_.ranks,
                   .records = std::exchange(part_.records, RecordBatch()),
                   .layouts = part_.layouts,
                   .progress = part_.progress};
  return take_(std::move(part));
}

}  // namespace

Status ReadRecords(RecordReader& store, const RecordsRequest& request, const OnRecords& take,
                   const std::stop_token& stop) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto view, RunView::Open(store, request.run));
  Reader reader(store, view, request, take);
  std::unique_ptr<LogicalRun> whole;
  if (request.whole) {
    STATCOLLECT_ASSIGN_OR_RETURN(whole, OpenIfCut(store, view));
    if (whole) STATCOLLECT_RETURN_IF_ERROR(reader.PutTogether(*whole));
  }
  return reader.Run(stop);
}

}  // namespace statcollect::query
