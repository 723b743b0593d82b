#include "server/api/convert.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "common/names.h"
#include "server/api/convert/parts.h"
#include "server/query/parallel.h"

namespace statcollect::api {
namespace {

using MemoryFields = std::array<const google::protobuf::FieldDescriptor*, kMemoryQuantityCount>;

// The fields of a row, by quantity: they have its name.
const MemoryFields& FieldsOfMemory() {
  static const MemoryFields fields = [] {
    MemoryFields found{};
    for (int i = 0; i < kMemoryQuantityCount; ++i) {
      const std::string name(Name(static_cast<MemoryQuantity>(i)));
      found[static_cast<std::size_t>(i)] = v1::MemoryRow::descriptor()->FindFieldByName(name);
    }
    return found;
  }();
  return fields;
}

// A thread is started in the time of some dozens.
constexpr std::size_t kPointsOfAThread = 1000;

}  // namespace

Result<query::SeriesRequest> FromWire(const v1::GetSeriesRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("activation", request.activation()));
  STATCOLLECT_RETURN_IF_ERROR(CheckStepsFromWire(request.steps()));
  STATCOLLECT_ASSIGN_OR_RETURN(auto ranks, RanksFromWire(request.ranks()));
  STATCOLLECT_ASSIGN_OR_RETURN(auto kind, KindFromWire(request.kind()));
  query::SeriesRequest wanted{.run = request.run(), .activation = request.activation(), .kind = kind};
  wanted.ranks = std::move(ranks);
  wanted.steps = request.steps();
  wanted.by_rank = request.by_rank();
  if (!request.output_path().empty()) wanted.output_path = request.output_path();
  return wanted;
}

Result<query::ScalarsRequest> FromWire(const v1::ListScalarsRequest& request) {
  auto wanted = SelectionFromWire<query::ScalarsRequest>(request);
  if (!wanted.ok()) return wanted;
  if (!request.name().empty()) STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("scalar", request.name()));
  wanted->name = request.name();
  wanted->by_rank = request.by_rank();
  return wanted;
}

Result<query::MemoryRequest> FromWire(const v1::ListMemoryRequest& request) {
  auto wanted = SelectionFromWire<query::MemoryRequest>(request);
  if (wanted.ok()) wanted->modules = request.modules();
  return wanted;
}

Result<query::DensityRequest> FromWire(const v1::ListDensityRequest& request) {
  auto wanted = SelectionFromWire<query::DensityRequest>(request);
  if (!wanted.ok()) return wanted;
  if (!request.input().empty()) STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("input", request.input()));
  wanted->input = request.input();
  return wanted;
}

void ToWire(const query::SeriesPoint& point, v1::SeriesPoint& out) {
  out.set_run(point.run);
  out.set_rank(point.rank);
  out.set_step(point.step);
  out.set_micro_batch(point.micro_batch);
  out.set_kind(static_cast<v1::Kind>(point.kind));
  out.set_activation(point.activation);
  out.set_output_path(point.output_path);
  out.set_call(point.call);
  out.set_mode(point.mode);
  ToWire(point.stats, *out.mutable_stats());
  out.mutable_ranks()->Add(point.ranks.begin(), point.ranks.end());
}

void ToWire(const std::vector<query::SeriesPoint>& points, v1::GetSeriesResponse& out) {
  auto& records = *out.mutable_records();
  records.Reserve(static_cast<int>(points.size()));
  for (std::size_t i = 0; i < points.size(); ++i) records.Add();
  const std::size_t parts = (points.size() + kPointsOfAThread - 1) / kPointsOfAThread;
  query::InParallel(parts, [&](std::size_t part) {
    const std::size_t end = std::min(points.size(), (part + 1) * kPointsOfAThread);
    for (std::size_t i = part * kPointsOfAThread; i < end; ++i)
      ToWire(points[i], records[static_cast<int>(i)]);
  });
}

void ToWire(const std::vector<query::ScalarRow>& rows, v1::ListScalarsResponse& out) {
  for (const query::ScalarRow& row : rows) {
    v1::ScalarRow& added = *out.add_records();
    added.set_run(row.run);
    added.set_rank(row.rank);
    added.set_step(row.step);
    added.set_micro_batch(row.micro_batch);
    added.set_name(row.name);
    added.set_value(row.value);
    added.mutable_ranks()->Assign(row.ranks.begin(), row.ranks.end());
  }
}

void ToWire(const std::vector<query::MemoryRow>& rows, v1::ListMemoryResponse& out) {
  const MemoryFields& fields = FieldsOfMemory();
  const auto& reflection = *v1::MemoryRow::GetReflection();
  for (const query::MemoryRow& row : rows) {
    const MemoryRecord& record = row.record;
    v1::MemoryRow& added = *out.add_records();
    added.set_run(row.run);
    added.set_rank(row.rank);
    added.set_step(record.step);
    added.set_micro_batch(record.micro_batch);
    added.set_phase(std::string(Name(record.phase)));
    added.set_device(record.device);
    added.set_module(record.module);
    for (int i = 0; i < kMemoryQuantityCount; ++i) {
      const auto quantity = static_cast<MemoryQuantity>(i);
      if (record.Has(quantity))
        reflection.SetInt64(&added, fields[static_cast<std::size_t>(i)], record.Of(quantity));
    }
  }
}

void ToWire(const std::vector<query::DensityRow>& rows, v1::ListDensityResponse& out) {
  for (const query::DensityRow& row : rows) {
    const DensityRecord& record = row.record;
    v1::DensityRow& added = *out.add_records();
    added.set_run(row.run);
    added.set_rank(row.rank);
    added.set_step(record.step);
    added.set_micro_batch(record.micro_batch);
    added.set_input(record.input);
    added.set_type(std::string(Name(record.type)));
    added.set_pad_index(record.pad_index);
    added.set_valid(record.valid);
    added.set_total(record.total);
    added.mutable_valid_per_sample()->Assign(record.valid_per_sample.begin(), record.valid_per_sample.end());
  }
}

}  // namespace statcollect::api
