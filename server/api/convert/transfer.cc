#include "server/api/convert/transfer.h"

#include <algorithm>
#include <utility>

#include "common/names.h"
#include "proto/convert.h"
#include "proto/convert/checks.h"
#include "server/store/tally.h"
#include "statcollect/v1/stats.pb.h"

namespace statcollect::api {
namespace {

// Of a collector's own events; above them are numbers that the store uses itself.
constexpr std::uint64_t kEventNumberMax = (std::uint64_t{1} << 63) - 1;
constexpr std::uint64_t kCausesMax = 64;

Status CheckConfig(const v1::CopiedRank& rank) {
  if (rank.config_size() > static_cast<int>(kSettingsMax)) {
    return convert::Invalid("rank: config has " + std::to_string(rank.config_size()) +
                            " entries; expected at most " + std::to_string(kSettingsMax));
  }
  for (const auto& [name, value] : rank.config()) {
    STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("configuration key", name));
    STATCOLLECT_RETURN_IF_ERROR(convert::CheckText("value", value));
  }
  return Status::Ok();
}

Status CheckDropped(const v1::CopiedRank& rank) {
  if (rank.dropped_size() > static_cast<int>(kCausesMax)) {
    return convert::Invalid("rank: dropped has " + std::to_string(rank.dropped_size()) +
                            " causes; expected at most " + std::to_string(kCausesMax));
  }
  for (const auto& [cause, count] : rank.dropped())
    STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("cause", cause));
  return Status::Ok();
}

}  // namespace

void ToWire(const AttemptMeta& attempt, v1::CopiedAttempt& out) {
  out.set_attempt(attempt.number);
  out.set_launch(attempt.launch);
  out.set_world_size(attempt.world_size);
  out.set_start_unix_nanos(attempt.start_unix_nanos);
}

void ToWire(const std::string& run, std::uint32_t number, const RankMeta& meta,
            v1::CopiedRank& out) {
  out.set_attempt(number);
  SessionInfo info = meta.info;
  info.run = run;
  info.config.clear();
  *out.mutable_hello() = statcollect::ToWire(info, 1);
  out.mutable_config()->insert(meta.info.config.begin(), meta.info.config.end());
  out.set_durable_seq(meta.durable_seq);
  out.set_records(meta.records);
  out.set_stat_records(meta.stat_records);
  out.set_steps(meta.steps);
  if (meta.first_step) out.set_first_step(*meta.first_step);
  if (meta.last_step) out.set_last_step(*meta.last_step);
  out.mutable_dropped()->insert(meta.dropped.begin(), meta.dropped.end());
  out.set_last_write_unix_nanos(meta.last_write_unix_nanos);
  out.set_finished(meta.finished);
}

void ToWire(std::uint32_t number, const CollectorEvent& event, v1::CollectorEvent& out) {
  out.set_attempt(number);
  out.set_rank(event.rank);
  out.set_number(event.number);
  RecordBatch batch;
  batch.events.push_back(event.event);
  v1::Records records;
  statcollect::ToWire(batch, {}, &records);
  *out.mutable_event() = std::move(*records.mutable_events(0));
}

void ToWire(const transfer::StepDigest& digest, v1::StepDigest& out) {
  out.set_what(digest.what);
  out.set_step(digest.step);
  out.set_records(digest.records);
  out.set_low(digest.low);
  out.set_high(digest.high);
}

Result<std::vector<AttemptMeta>> FromWire(const v1::BeginCopyRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  std::vector<AttemptMeta> attempts;
  for (const v1::CopiedAttempt& from : request.attempts()) {
    STATCOLLECT_RETURN_IF_ERROR(convert::CheckOptionalName("launch", from.launch()));
    attempts.push_back({.number = from.attempt(),
                        .launch = from.launch(),
                        .world_size = from.world_size(),
                        .start_unix_nanos = from.start_unix_nanos()});
  }
  return attempts;
}

Result<RankMeta> FromWire(const v1::CopiedRank& rank) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto info, statcollect::FromWire(rank.hello()));
  STATCOLLECT_RETURN_IF_ERROR(CheckConfig(rank));
  STATCOLLECT_RETURN_IF_ERROR(CheckDropped(rank));
  if (rank.steps() > rank.stat_records()) {
    return convert::Invalid("rank: steps is " + std::to_string(rank.steps()) +
                            "; expected at most " + std::to_string(rank.stat_records()) +
                            ", its records of statistics");
  }
  RankMeta meta{.info = std::move(info)};
  meta.info.config = {rank.config().begin(), rank.config().end()};
  meta.ranks_expected = RanksExpected(meta.info);
  meta.durable_seq = rank.durable_seq();
  meta.records = rank.records();
  meta.stat_records = rank.stat_records();
  meta.steps = rank.steps();
  if (rank.has_first_step()) meta.first_step = rank.first_step();
  if (rank.has_last_step()) meta.last_step = rank.last_step();
  meta.dropped = {rank.dropped().begin(), rank.dropped().end()};
  meta.last_write_unix_nanos = rank.last_write_unix_nanos();
  meta.finished = rank.finished();
  return meta;
}

Result<CollectorEvent> FromWire(const v1::CollectorEvent& event) {
  if (event.number() == 0 || event.number() > kEventNumberMax)
    return convert::Invalid("event: number is " + std::to_string(event.number()) +
                            "; expected 1..2^63-1");
  v1::Records records;
  *records.add_events() = event.event();
  STATCOLLECT_ASSIGN_OR_RETURN(auto batch, statcollect::FromWire(records, {}));
  return CollectorEvent{
      .rank = event.rank(), .number = event.number(), .event = std::move(batch.events.front())};
}

}  // namespace statcollect::api
