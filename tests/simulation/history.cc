#include "tests/simulation/history.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace statcollect::simulation {
namespace {

std::uint64_t HashOf(const SessionId& id, std::uint64_t seq) {
  std::uint64_t seed = 0;
  std::memcpy(&seed, id.data(), sizeof seed);
  return seed ^ (seq * 0x9e3779b97f4a7c15u);
}

std::string Number(std::uint64_t n) { return std::to_string(n); }

}  // namespace

RecordBatch History::MakeBatch(const SessionId& id, std::uint64_t step, std::uint64_t first_seq,
                               std::uint32_t tensors, std::uint32_t scalars) {
  RecordBatch batch;
  batch.first_seq = first_seq;
  std::uint64_t seq = first_seq;
  for (std::uint32_t i = 0; i < tensors; ++i, ++seq) {
    batch.stats.activation.push_back(i);
    batch.stats.layout.push_back(0);
    batch.stats.step.push_back(step);
    batch.stats.order.push_back(i);
    batch.stats.stats.push_back({.numel = 2,
                                 .pos = 2,
                                 .has_finite = true,
                                 .min = 1,
                                 .max = double(seq),
                                 .hash = HashOf(id, seq)});
    batch.stats.sample_count.push_back(0);
  }
  for (std::uint32_t i = 0; i < scalars; ++i, ++seq)
    batch.scalars.push_back(
        {.name = "s" + Number(i), .step = step, .value = static_cast<double>(seq)});
  batch.steps.push_back({.step = step, .unix_nanos = static_cast<std::int64_t>(seq)});
  return batch;
}

void History::CheckItem(Store& store, const AppendItem& item, const RecordBatch& batch) {
  const auto ranks = store.Ranks(item.attempt);
  if (!ranks.ok()) return;  // the write will say so, too
  const std::string place = "attempt " + Number(item.attempt) + ", rank " + Number(item.rank);
  const auto rank = ranks->find(item.rank);
  if (rank == ranks->end()) return Fail(place + ": a write to a rank that is not there");
  const SessionId& id = item.meta->info.session;
  SessionHistory& session = Of(id);
  if (rank->second.info.session != id)
    return Fail(place + ": a write of " + session.name + ", which was fenced");
  CheckNewest(store, item, session);
  if (batch.records() == 0) return;
  if (batch.first_seq != rank->second.durable_seq + 1) {
    return Fail(session.name + ": a write of " + Number(batch.first_seq) + ".." +
                Number(batch.last_seq()) + " behind " + Number(rank->second.durable_seq));
  }
  CheckBatch(item, batch);
}

// Once a newer launch has the run's name and the rank, nothing more comes of an older one, unless
// its file is imported.
void History::CheckNewest(Store& store, const AppendItem& item, const SessionHistory& session) {
  if (session.late) return;
  const auto attempts = store.Attempts(item.meta->info.run);
  for (std::size_t i = 0; attempts.ok() && i < attempts->size(); ++i) {
    if ((*attempts)[i].id <= item.attempt) continue;
    const auto ranks = store.Ranks((*attempts)[i].id);
    if (ranks.ok() && ranks->contains(item.rank))
      Fail(session.name + ": a write to attempt " + Number(item.attempt) + ", which was fenced");
  }
}

void History::CheckBatch(const AppendItem& item, const RecordBatch& batch) {
  if (batch.records() == 0) return;
  const SessionId& id = item.meta->info.session;
  SessionHistory& session = Of(id);
  if (item.meta->durable_seq != batch.last_seq())
    return Fail(session.name + ": a watermark that is not the batch's end");
  session.attempted = std::max(session.attempted, batch.last_seq());
  if (session.removed) return;
  if (batch.last_seq() > session.submitted)
    return Fail(session.name + ": records that nobody sent");
  std::uint64_t seq = batch.first_seq;
  bool right = true;
  for (const TensorStats& stats : batch.stats.stats)
    right = right && stats.hash == HashOf(id, seq++);
  for (const ScalarRecord& scalar : batch.scalars)
    right = right && scalar.value == static_cast<double>(seq++);
  for (const StepRecord& step : batch.steps)
    right = right && step.unix_nanos == static_cast<std::int64_t>(seq++);
  if (!right) Fail(session.name + ": records in a write that are not those of their numbers");
}

void History::Written(const AppendItem& item) {
  SessionHistory& session = Of(item.meta->info.session);
  if (item.meta->durable_seq > session.written)
    records_written_ += item.meta->durable_seq - session.written;
  session.written = std::max(session.written, item.meta->durable_seq);
}

void History::Removing(Store& store, std::span<const AttemptId> ids) {
  for (const AttemptId id : ids) {
    const auto ranks = store.Ranks(id);
    if (!ranks.ok()) continue;
    for (const auto& [rank, meta] : *ranks) Of(meta.info.session).removed = true;
  }
}

void History::CheckTold(const SessionId& id, std::uint64_t durable_seq) {
  const SessionHistory& session = Of(id);
  if (durable_seq <= session.written) return;
  Fail(session.name + ": the collector says that it has " + Number(durable_seq) +
       "; the store has " + Number(session.written));
}

void History::CheckAgent(const SessionId& id, const AgentCounters& counters) {
  SessionHistory& session = Of(id);
  if (counters.produced != counters.acked + counters.dropped() + counters.pending) {
    Fail(session.name + ": produced " + Number(counters.produced) + ", acked " +
         Number(counters.acked) + ", dropped " + Number(counters.dropped()) + ", pending " +
         Number(counters.pending));
  }
  session.acked = std::max(session.acked, counters.acked);
  if (counters.acked > session.written) {
    Fail(session.name + ": counts " + Number(counters.acked) +
         " records as acknowledged; the store has " + Number(session.written));
  }
}

void History::CheckStore(Store& store) {
  const auto census = store.Census();
  if (!census.ok()) return Fail("census: " + census.status().message());
  std::map<SessionId, std::uint64_t> found;
  for (const AttemptTally& tally : *census) {
    const auto ranks = store.Ranks(tally.meta.id);
    if (!ranks.ok()) return Fail("ranks: " + ranks.status().message());
    for (const auto& [rank, meta] : *ranks) {
      found[meta.info.session] = meta.durable_seq;
      CheckRank(store, tally.meta.id, rank, meta);
    }
  }
  for (auto& [id, session] : sessions_) {
    const auto at = found.find(id);
    const std::uint64_t there = at == found.end() ? 0 : at->second;
    if (session.removed) continue;
    if (there < session.written) {
      Fail(session.name + ": lost: " + Number(session.written) +
           " records were acknowledged, and the store has " + Number(there));
    }
    if (there > session.attempted) Fail(session.name + ": more records than were ever written");
    session.written = std::max(session.written, there);
  }
}

void History::CheckRank(Store& store, AttemptId attempt, std::uint32_t rank, const RankMeta& meta) {
  const SessionId& id = meta.info.session;
  const SessionHistory& session = Of(id);
  if (session.removed) return;  // may hold records of other numbers
  std::vector<std::uint64_t> numbers;
  bool right = true;
  const auto scan = store.ScanStats(attempt, rank, {});
  while (scan->Next()) {
    for (const TensorStats& stats : scan->block().columns.stats) {
      const auto seq = static_cast<std::uint64_t>(stats.max);
      right = right && stats.hash == HashOf(id, seq);
      numbers.push_back(seq);
    }
  }
  const auto scalars = store.Scalars(attempt, rank, {});
  const auto ends = store.StepEnds(attempt, rank, {});
  if (!scan->status().ok() || !scalars.ok() || !ends.ok())
    return Fail(session.name + ": cannot be read");
  for (const ScalarRecord& scalar : *scalars)
    numbers.push_back(static_cast<std::uint64_t>(scalar.value));
  for (const StepRecord& end : *ends) numbers.push_back(static_cast<std::uint64_t>(end.unix_nanos));
  std::sort(numbers.begin(), numbers.end());
  for (std::size_t i = 0; i < numbers.size(); ++i) right = right && numbers[i] == i + 1;
  if (!right || numbers.size() != meta.durable_seq) {
    Fail(session.name + ": the store has " + Number(numbers.size()) +
         " records and the watermark " + Number(meta.durable_seq) +
         "; expected each number up to it once");
  }
}

}  // namespace statcollect::simulation
