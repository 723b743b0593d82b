#include "server/ingest/session.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/byte_size.h"
#include "common/decoded_bytes.h"
#include "common/names.h"
#include "common/overloaded.h"
#include "common/parse.h"
#include "common/saturating.h"
#include "server/ingest/trim.h"
#include "server/store/newest_step.h"

namespace statcollect {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kCausesMax = 32;
constexpr std::size_t kCauseBytesMax = 64;

Status Invalid(std::string message) {
  return Status(Code::kInvalidArgument, "batch: " + std::move(message));
}

std::string DefPlace(const char* field, std::uint32_t id) {
  return std::string(field) + " of id " + std::to_string(id);
}

// Definitions of one sort: dense over the session; a repeated one is the same.
template <typename Def>
Status CheckDefs(const char* field, const std::vector<Def>& known, const std::vector<Def>& found) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::uint32_t id = found[i].id;
    const std::size_t next =
        std::max<std::size_t>(known.size(), i == 0 ? 0 : std::size_t{found[i - 1].id} + 1);
    if (id > next) {
      return Invalid(DefPlace(field, id) + "; expected id " + std::to_string(next) +
                     " (ids are dense over the session)");
    }
    if (id < known.size()) {
      if (known[id] == found[i]) continue;
      return Invalid("a different definition of " + DefPlace(field, id) +
                     "; expected the one that the session gave before");
    }
    if (id < next) return Invalid("two definitions of " + DefPlace(field, id) + "; expected one");
    if (id >= kDefinitionsMax) {
      return Status(Code::kFailedPrecondition,
                    "batch: found " + DefPlace(field, id) + "; a session may define " +
                        std::to_string(kDefinitionsMax) +
                        "; observe tensors under names that repeat from step to step");
    }
  }
  return Status::Ok();
}

// How many are defined once a batch's own are added.
template <typename Def>
std::size_t DefinedBy(std::size_t known, const std::vector<Def>& own) {
  return std::max<std::size_t>(known, own.empty() ? 0 : std::size_t{own.back().id} + 1);
}

// Causes come from outside and are kept with every rank: a few, short, or "other".
std::string CauseKey(const std::map<std::string, std::uint64_t>& tallies,
                     const std::string& cause) {
  const bool fits =
      cause.size() <= kCauseBytesMax && (tallies.size() < kCausesMax || tallies.contains(cause));
  return fits && ValidateTensorName("cause", cause).ok() ? cause : "other";
}

void Add(std::map<std::string, std::uint64_t>* tallies, const std::string& cause,
         std::uint64_t count) {
  std::uint64_t& tally = (*tallies)[CauseKey(*tallies, cause)];
  tally = SaturatingAdd(tally, count);
}

std::optional<std::uint64_t> ParseCount(const EventRecord& event) {
  const auto count = event.fields.find("count");
  if (count == event.fields.end()) return std::nullopt;
  return ParseNumber<std::uint64_t>(count->second);
}

void Extend(RankMeta* meta, std::uint64_t step) {
  meta->first_step = std::min(meta->first_step.value_or(step), step);
  meta->last_step = std::max(meta->last_step.value_or(step), step);
}

// The last step with statistics.
Result<std::optional<std::uint64_t>> FindLastStatStep(RunReader& store, AttemptId attempt,
                                                      const RankMeta& meta) {
  return NewestStep(meta.last_step.value_or(kMax), [&](StepBounds steps) {
    return store.FirstStatStep(attempt, meta.info.rank, steps);
  });
}

}  // namespace

std::uint64_t CountDropEvents(std::span<const EventRecord> events,
                              std::map<std::string, std::uint64_t>* dropped) {
  std::uint64_t sum = 0;
  for (const EventRecord& event : events) {
    if (event.kind != "records_dropped") continue;
    const auto cause = event.fields.find("cause");
    const auto count = ParseCount(event);
    if (cause == event.fields.end() || !count) continue;
    Add(dropped, cause->second, *count);
    sum = SaturatingAdd(sum, *count);
  }
  return sum;
}

Result<std::unique_ptr<IngestSession>> IngestSession::Load(RunReader& store, AttemptId attempt,
                                                           const RankMeta& meta,
                                                           DefinitionBudget& budget) {
  std::unique_ptr<IngestSession> session(new IngestSession(meta, budget));
  if (meta.durable_seq > 0) STATCOLLECT_RETURN_IF_ERROR(session->Reload(store, attempt));
  return session;
}

IngestSession::~IngestSession() { budget_.GiveBack(definition_bytes_); }

Status IngestSession::Reload(RunReader& store, AttemptId attempt) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto read, store.Definitions(attempt, meta_.info.rank));
  std::size_t bytes = 0;
  for (const TensorDef& def : read->activations) bytes += DecodedBytes(def);
  for (const Layout& layout : read->layouts) bytes += DecodedBytes(layout);
  STATCOLLECT_RETURN_IF_ERROR(Reserve(bytes));
  activations_ = read->activations;
  layouts_ = read->layouts;
  for (const TensorDef& def : activations_) by_key_.insert(def.id);
  return meta_.stat_records > 0 ? ReloadLastStep(store, attempt) : Status::Ok();
}

Status IngestSession::ReloadLastStep(RunReader& store, AttemptId attempt) {
  STATCOLLECT_ASSIGN_OR_RETURN(stat_step_, FindLastStatStep(store, attempt, meta_));
  if (!stat_step_) return Status::Ok();
  const auto scan =
      store.ScanStats(attempt, meta_.info.rank, {.first = *stat_step_, .last = *stat_step_});
  while (scan->Next()) {
    const StatColumns& columns = scan->block().columns;
    for (const std::uint32_t activation : columns.activation) seen_.Insert(activation);
  }
  return scan->status();
}

Result<IngestSession::Accepted> IngestSession::Accept(RecordBatch batch, std::int64_t unix_nanos) {
  STATCOLLECT_RETURN_IF_ERROR(CheckOrder(batch));
  STATCOLLECT_RETURN_IF_ERROR(CheckActivations(batch));
  STATCOLLECT_RETURN_IF_ERROR(CheckLayouts(batch));
  Accepted accepted;
  if (batch.last_seq() <= received()) {
    accepted.duplicates = batch.records();
    accepted.meta = Tallies();
    return accepted;
  }
  accepted.duplicates = received() + 1 - std::min(batch.first_seq, received() + 1);
  TrimFront(&batch, accepted.duplicates);
  STATCOLLECT_RETURN_IF_ERROR(CheckStats(batch));
  STATCOLLECT_RETURN_IF_ERROR(CheckDefined("captures", batch.captures, batch));
  STATCOLLECT_RETURN_IF_ERROR(CheckDefined("exponents", batch.exponents, batch));
  STATCOLLECT_RETURN_IF_ERROR(CheckSettings(batch));
  STATCOLLECT_RETURN_IF_ERROR(ReserveDefinitions(batch));

  AddDefinitions(batch);
  AddStats(batch.stats);
  AddTallies(batch);
  accepted.dropped = CountDropEvents(batch.events, &meta_.dropped);
  meta_.durable_seq = batch.last_seq();
  meta_.last_write_unix_nanos = unix_nanos;
  meta_.finished = false;
  accepted.meta = Tallies();
  accepted.batch = std::move(batch);
  return accepted;
}

IngestSession::Accepted IngestSession::Finish(const AgentCounters& counters,
                                              std::int64_t unix_nanos) {
  Accepted accepted;
  std::map<std::string, std::uint64_t> totals;
  for (const auto& [cause, count] : counters.dropped_by_cause) {
    if (count > 0) Add(&totals, cause, count);
  }
  for (const auto& [cause, count] : totals) {
    std::uint64_t& tally = meta_.dropped[CauseKey(meta_.dropped, cause)];
    if (count <= tally) continue;
    accepted.dropped = SaturatingAdd(accepted.dropped, count - tally);
    tally = count;
  }
  meta_.last_write_unix_nanos = unix_nanos;
  meta_.finished = true;
  accepted.meta = Tallies();
  return accepted;
}

RankMeta IngestSession::Tallies() {
  // A copy of thousands of settings with every batch would cost more than the batch.
  auto config = std::exchange(meta_.info.config, {});
  RankMeta copy = meta_;
  meta_.info.config = std::move(config);
  return copy;
}

Status IngestSession::CheckOrder(const RecordBatch& batch) const {
  if (batch.records() == 0 || batch.first_seq == 0) {
    return Invalid("first_seq " + std::to_string(batch.first_seq) + " with " +
                   std::to_string(batch.records()) +
                   " records; expected numbers from 1 and at least one record");
  }
  if (batch.first_seq - std::min(batch.skipped, batch.first_seq) <= received() + 1)
    return Status::Ok();
  return Status(Code::kOutOfRange, "batch: starts at record " + std::to_string(batch.first_seq) +
                                       "; expected " + std::to_string(received() + 1) +
                                       " (records are numbered without gaps, but for those that "
                                       "`skipped` counts); connect again and resume from there");
}

Status IngestSession::CheckActivations(const RecordBatch& batch) const {
  STATCOLLECT_RETURN_IF_ERROR(CheckDefs("activation", activations_, batch.activations));
  std::set<TensorKey> own;
  for (const TensorDef& def : batch.activations) {
    if (def.id < activations_.size()) continue;
    const auto known = by_key_.find(def.key);
    if (known == by_key_.end() && own.insert(def.key).second) continue;
    return Invalid(DefPlace("activation", def.id) + " has the identity of " +
                   (known == by_key_.end() ? "another activation in the batch"
                                           : "id " + std::to_string(*known)) +
                   " ('" + Printable(def.key.name) + "'); expected one id per identity");
  }
  return Status::Ok();
}

Status IngestSession::CheckLayouts(const RecordBatch& batch) const {
  return CheckDefs("layout", layouts_, batch.layouts);
}

Status IngestSession::CheckStats(const RecordBatch& batch) const {
  const StatColumns& stats = batch.stats;
  const std::size_t activations = DefinedBy(activations_.size(), batch.activations);
  const std::size_t layouts = DefinedBy(layouts_.size(), batch.layouts);
  std::optional<std::uint64_t> step = stat_step_;
  in_batch_.Clear();
  for (std::size_t i = 0; i < stats.size(); ++i) {
    const std::string place = "[" + std::to_string(i) + "] ";
    if (stats.activation[i] >= activations || stats.layout[i] >= layouts) {
      const bool activation = stats.activation[i] >= activations;
      return Invalid((activation ? "stats.activation" : "stats.layout") + place + "is " +
                     std::to_string(activation ? stats.activation[i] : stats.layout[i]) +
                     "; expected an id that the session has defined (below " +
                     std::to_string(activation ? activations : layouts) + ")");
    }
    if (step && stats.step[i] < *step) {
      return Invalid("stats.step" + place + "is " + std::to_string(stats.step[i]) +
                     "; expected at least " + std::to_string(*step) +
                     " (steps do not decrease within a session)");
    }
    if (stats.step[i] != step) in_batch_.Clear();
    step = stats.step[i];
    const bool before = step == stat_step_ && seen_.Contains(stats.activation[i]);
    if (before || !in_batch_.Insert(stats.activation[i])) {
      return Invalid("stats.activation" + place + "is " + std::to_string(stats.activation[i]) +
                     " again in step " + std::to_string(*step) +
                     "; expected an activation at most once a step");
    }
  }
  return Status::Ok();
}

// Their layouts and sizes were checked by FromWire.
template <typename Record>
Status IngestSession::CheckDefined(const std::string& field, const std::vector<Record>& records,
                                   const RecordBatch& batch) const {
  const std::size_t defined = DefinedBy(activations_.size(), batch.activations);
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (records[i].activation < defined) continue;
    return Invalid(field + ".activation[" + std::to_string(i) + "] is " +
                   std::to_string(records[i].activation) +
                   "; expected an id that the session has defined (below " +
                   std::to_string(defined) + ")");
  }
  return Status::Ok();
}

Status IngestSession::CheckSettings(const RecordBatch& batch) const {
  const auto& known = meta_.info.config;
  const auto more = std::count_if(batch.settings.begin(), batch.settings.end(),
                                  [&](const SettingRecord& s) { return !known.contains(s.name); });
  if (known.size() + static_cast<std::size_t>(more) <= kSettingsMax) return Status::Ok();
  return Status(Code::kResourceExhausted,
                "batch: settings would make " +
                    std::to_string(known.size() + static_cast<std::size_t>(more)) +
                    " of the rank's configuration; at most " + std::to_string(kSettingsMax) +
                    " are accepted");
}

Status IngestSession::ReserveDefinitions(const RecordBatch& batch) {
  std::size_t bytes = 0;
  for (const TensorDef& def : batch.activations)
    bytes += def.id < activations_.size() ? 0 : DecodedBytes(def);
  for (const Layout& layout : batch.layouts)
    bytes += layout.id < layouts_.size() ? 0 : DecodedBytes(layout);
  if (definition_bytes_ + bytes > budget_.session_bytes_max()) {
    return {Code::kFailedPrecondition,
            "batch: found definitions of " + Mebibytes(definition_bytes_ + bytes) +
                " with those that the session gave before; a session may have " +
                Mebibytes(budget_.session_bytes_max()) +
                "; observe tensors under shorter names that repeat from step to step"};
  }
  return Reserve(bytes);
}

Status IngestSession::Reserve(std::size_t bytes) {
  if (!budget_.Take(bytes)) {
    return {Code::kResourceExhausted,
            "session: found " + Mebibytes(budget_.bytes()) +
                " of definitions of connected ranks; the collector has room for " +
                Mebibytes(budget_.bytes_max()) +
                "; the agent tries again, and continues when other ranks have ended"};
  }
  definition_bytes_ += bytes;
  return Status::Ok();
}

void IngestSession::AddDefinitions(const RecordBatch& batch) {
  for (const TensorDef& def : batch.activations) {
    if (def.id < activations_.size()) continue;
    activations_.push_back(def);
    by_key_.insert(def.id);
  }
  for (const Layout& layout : batch.layouts) {
    if (layout.id >= layouts_.size()) layouts_.push_back(layout);
  }
}

void IngestSession::AddStats(const StatColumns& stats) {
  for (std::size_t i = 0; i < stats.size(); ++i) {
    if (stats.step[i] != stat_step_) {
      stat_step_ = stats.step[i];
      seen_.Clear();
      ++meta_.steps;
      Extend(&meta_, *stat_step_);
    }
    seen_.Insert(stats.activation[i]);
  }
  meta_.stat_records += stats.size();
}

void IngestSession::AddTallies(const RecordBatch& batch) {
  ForEachKind(batch, Overloaded{[](const StatColumns&) {},  // AddStats
                                [](const std::vector<EventRecord>&) {},
                                [&](const std::vector<SettingRecord>& settings) {
                                  for (const SettingRecord& setting : settings)
                                    meta_.info.config[setting.name] = setting.value;
                                },
                                [&](const auto& records) {
                                  for (const auto& record : records) Extend(&meta_, record.step);
                                }});
  meta_.records += batch.records();
}

}  // namespace statcollect
