// Parts of questions and answers that several messages share: what clients send is checked here.
#ifndef STATCOLLECT_SERVER_QUERY_ANSWERS_MESSAGE_PARTS_H_
#define STATCOLLECT_SERVER_QUERY_ANSWERS_MESSAGE_PARTS_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <google/protobuf/repeated_field.h>

#include "common/names.h"
#include "common/records.h"
#include "common/status.h"
#include "server/query/reports.h"
#include "statcollect/v1/query.pb.h"

namespace statcollect::query {

inline Status Invalid(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }

// All are kInvalidArgument.
// More ranks than a run can have.
Result<std::vector<std::uint32_t>> RanksFromWire(
    const google::protobuf::RepeatedField<std::uint32_t>& ranks);
// Kinds that this build does not know. KindsFromWire leaves out the unspecified kind.
Result<Kind> KindFromWire(int kind);
Result<std::vector<Kind>> KindsFromWire(const google::protobuf::RepeatedField<int>& kinds);
// A text that is too long to be parsed.
Status CheckStepsFromWire(const std::string& steps);
// Too many runs, or names that no run can have. `field`: of the question.
Result<std::vector<std::string>> RunsFromWire(
    const char* field, const google::protobuf::RepeatedPtrField<std::string>& runs);

// Not finite, or below 0. `example`: of a distance.
Status CheckTolerance(const std::string& query, double tolerance, const std::string& example);
// More than kHeatMapSideMax. `field`: columns or rows.
Status CheckMapSide(const std::string& query, const char* field, std::uint32_t side);

// What a question selects, as far as `Wanted` has it: the run or two of them, steps, ranks, kinds,
// and an `activation` that may be empty.
template <typename Wanted, typename Request>
Result<Wanted> SelectionFromWire(const Request& request) {
  Wanted wanted;
  if constexpr (requires { wanted.run; }) {
    STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
    wanted.run = request.run();
  } else {
    STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run_a()));
    STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run_b()));
    wanted.run_a = request.run_a();
    wanted.run_b = request.run_b();
  }
  if constexpr (requires { wanted.activation; }) {
    if (!request.activation().empty())
      STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("activation", request.activation()));
    wanted.activation = request.activation();
  }
  if constexpr (requires { wanted.steps; }) {
    STATCOLLECT_RETURN_IF_ERROR(CheckStepsFromWire(request.steps()));
    wanted.steps = request.steps();
  }
  if constexpr (requires { wanted.ranks; }) {
    STATCOLLECT_ASSIGN_OR_RETURN(wanted.ranks, RanksFromWire(request.ranks()));
  }
  if constexpr (requires { wanted.kinds = std::vector<Kind>(); }) {
    STATCOLLECT_ASSIGN_OR_RETURN(wanted.kinds, KindsFromWire(request.kinds()));
  }
  return wanted;
}

// Which tensor of a step a row is about. Row: v1::SeriesPoint or another message with these fields.
template <typename Row>
void FillKey(const TensorKey& key, Row& out) {
  out.set_micro_batch(key.micro_batch);
  out.set_kind(static_cast<v1::Kind>(key.kind));
  out.set_activation(key.name);
  out.set_output_path(key.output_path);
  out.set_call(key.call);
  out.set_mode(std::string(Name(key.mode)));
}

// What rows about one tensor of one step share. From: has run, rank, def, layout and attempt, like
// CaptureRow. To: v1::CaptureRow or another message with its fields.
template <typename From, typename To>
void FillTensor(const From& from, std::uint64_t step, To& to) {
  to.set_run(from.run);
  to.set_rank(from.rank);
  to.set_step(step);
  FillKey(from.def.key, to);
  to.set_dtype(std::string(Name(from.layout.dtype)));
  to.mutable_shape()->Assign(from.layout.shape.begin(), from.layout.shape.end());
  to.set_attempt(from.attempt);
  to.set_class_name(from.def.class_name);
}

// Calls `set` where there is a value.
template <typename T, typename Set>
void Copy(const std::optional<T>& value, Set&& set) {
  if (value) set(*value);
}

template <typename Row>
bool IsFull(const google::protobuf::RepeatedPtrField<Row>& rows) {
  return static_cast<std::uint64_t>(rows.size()) >= kRowsMax;
}

// Stable. `key` may return references to the row's fields.
template <typename Row, typename Key>
void SortBy(google::protobuf::RepeatedPtrField<Row>& rows, const Key& key) {
  const auto before = [&](const Row* x, const Row* y) { return key(*x) < key(*y); };
  if (!std::is_sorted(rows.pointer_begin(), rows.pointer_end(), before))
    std::stable_sort(rows.pointer_begin(), rows.pointer_end(), before);
}
// Rows that came from several attempts.
template <typename Row>
void SortByStep(google::protobuf::RepeatedPtrField<Row>& rows) {
  SortBy(rows, [](const Row& row) { return std::pair(row.rank(), row.step()); });
}

void ToWire(const ObservationSide& side, v1::ObservationSide& out);
void ToWire(const HeatMapRow& row, v1::HeatMapRow& out);
void ToWire(const Compared& compared, v1::Compared& out);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ANSWERS_MESSAGE_PARTS_H_
