#include "server/query/answers/message_parts.h"

#include <cmath>

namespace statcollect::query {
namespace {

constexpr int kRanksMax = 1 << 20;
constexpr std::size_t kStepsTextBytesMax = 64 * 1024;
constexpr int kRepeatsMax = 64;

static_assert(kKindCount == v1::Kind_ARRAYSIZE);

}  // namespace

Result<std::vector<std::uint32_t>> RanksFromWire(
    const google::protobuf::RepeatedField<std::uint32_t>& ranks) {
  if (ranks.size() > kRanksMax) {
    return Invalid("query: " + std::to_string(ranks.size()) + " ranks named; expected at most " +
                   std::to_string(kRanksMax) + "; name none to mean all");
  }
  return std::vector<std::uint32_t>(ranks.begin(), ranks.end());
}

Result<Kind> KindFromWire(int kind) {
  if (kind < 0 || kind >= kKindCount) {
    return Invalid("query: kind " + std::to_string(kind) +
                   " is unknown to this collector; expected 1.." + std::to_string(kKindCount - 1) +
                   " or 0 for all; upgrade statcollectord");
  }
  return static_cast<Kind>(kind);
}

Result<std::vector<Kind>> KindsFromWire(const google::protobuf::RepeatedField<int>& kinds) {
  std::vector<Kind> wanted;
  for (const int kind : kinds) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto known, KindFromWire(kind));
    if (known != Kind::kUnspecified) wanted.push_back(known);
  }
  return wanted;
}

Status CheckStepsFromWire(const std::string& steps) {
  if (steps.size() <= kStepsTextBytesMax) return Status::Ok();
  return Invalid("query: the set of steps takes " + std::to_string(steps.size()) +
                 " bytes; expected at most " + std::to_string(kStepsTextBytesMax) +
                 "; use ranges such as 0-99,every=10");
}

Result<std::vector<std::string>> RunsFromWire(
    const char* field, const google::protobuf::RepeatedPtrField<std::string>& runs) {
  if (runs.size() > kRepeatsMax) {
    return Invalid(std::string(field) + ": found " + std::to_string(runs.size()) +
                   " runs; expected at most " + std::to_string(kRepeatsMax));
  }
  for (const std::string& run : runs) STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(run));
  return std::vector<std::string>(runs.begin(), runs.end());
}

Status CheckTolerance(const std::string& query, double tolerance, const std::string& example) {
  if (std::isfinite(tolerance) && tolerance >= 0) return Status::Ok();
  return Invalid(query + ": tolerance is " + std::to_string(tolerance) +
                 "; expected a finite number of at least 0, a relative L2 distance such as " +
                 example);
}

Status CheckMapSide(const std::string& query, const char* field, std::uint32_t side) {
  if (side <= kHeatMapSideMax) return Status::Ok();
  return Invalid(query + ": " + field + " is " + std::to_string(side) + "; expected at most " +
                 std::to_string(kHeatMapSideMax) + "; narrow steps or kinds to see more");
}

void ToWire(const ObservationSide& side, v1::ObservationSide& out) {
  Copy(side.min, [&](double value) { out.set_min(value); });
  Copy(side.max, [&](double value) { out.set_max(value); });
  Copy(side.mean, [&](double value) { out.set_mean(value); });
  Copy(side.std, [&](double value) { out.set_std(value); });
  Copy(side.l1, [&](double value) { out.set_l1(value); });
  Copy(side.l2, [&](double value) { out.set_l2(value); });
  Copy(side.nan, [&](std::uint64_t value) { out.set_nan(value); });
  Copy(side.pos_inf, [&](std::uint64_t value) { out.set_pos_inf(value); });
  Copy(side.neg_inf, [&](std::uint64_t value) { out.set_neg_inf(value); });
  Copy(side.inf, [&](std::uint64_t value) { out.set_inf(value); });
  Copy(side.zero, [&](std::uint64_t value) { out.set_zero(value); });
  Copy(side.neg, [&](std::uint64_t value) { out.set_neg(value); });
  Copy(side.pos, [&](std::uint64_t value) { out.set_pos(value); });
  Copy(side.numel, [&](std::uint64_t value) { out.set_numel(value); });
  Copy(side.hash, [&](std::uint64_t value) { out.set_hash(value); });
  Copy(side.value, [&](double value) { out.set_value(value); });
  out.set_dtype(side.dtype);
  out.mutable_shape()->Add(side.shape.begin(), side.shape.end());
  out.set_hash_kind(side.hash_kind);
  out.mutable_untrusted()->Add(side.untrusted.begin(), side.untrusted.end());
  out.set_place(side.place);
}

void ToWire(const HeatMapRow& row, v1::HeatMapRow& out) {
  out.set_stage(static_cast<v1::Stage>(row.stage));
  out.set_kind(static_cast<v1::Kind>(row.kind));
  out.set_activation(row.activation);
  out.set_output_path(row.output_path);
  out.set_activation_b(row.activation_b);
  out.set_mode(std::string(Name(row.mode)));
  out.set_tensors(row.tensors);
}

void ToWire(const Compared& compared, v1::Compared& out) {
  out.set_records(compared.records);
  out.set_identical(compared.identical);
  out.set_within_tolerance(compared.within_tolerance);
  out.set_diverged(compared.diverged);
}

}  // namespace statcollect::query
