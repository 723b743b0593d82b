#include "server/query/answers/scalars.h"

#include <tuple>

#include "server/query/answers/message_parts.h"
#include "server/query/each_record.h"
#include "server/query/logical/whole_grad_norm.h"

namespace statcollect::query {
namespace {

// False: each rank's own is that of the whole model, or nothing better is known.
Result<bool> AddGradNormOfWhole(const Context& context, const ScalarsRequest& request,
                                v1::ListScalarsResponse& out) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto view, RunView::Open(context.store, request.run));
  STATCOLLECT_ASSIGN_OR_RETURN(auto steps, StepSet::Parse(request.steps));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto norms,
                               WholeGradNorm(context.store, view, steps, context.stop));
  if (!norms) return false;
  for (const WholeNorm& norm : *norms) {
    v1::ScalarRow& row = *out.add_records();
    row.set_run(request.run);
    row.set_rank(norm.ranks.front());
    row.set_step(norm.step);
    row.set_name(std::string(kGradNorm));
    row.set_value(norm.value);
    row.mutable_ranks()->Assign(norm.ranks.begin(), norm.ranks.end());
  }
  return true;
}

}  // namespace

Result<ScalarsRequest> FromWire(const v1::ListScalarsRequest& request) {
  auto wanted = SelectionFromWire<ScalarsRequest>(request);
  if (!wanted.ok()) return wanted;
  if (!request.name().empty())
    STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("scalar", request.name()));
  wanted->name = request.name();
  wanted->by_rank = request.by_rank();
  return wanted;
}

Status ListScalars(const Context& context, const ScalarsRequest& request,
                   v1::ListScalarsResponse& out) {
  if (request.name == kGradNorm && !request.by_rank && request.ranks.empty()) {
    STATCOLLECT_ASSIGN_OR_RETURN(const auto whole, AddGradNormOfWhole(context, request, out));
    if (whole) return Status::Ok();
  }
  const auto take = [&](std::uint32_t rank, ScalarRecord& scalar) {
    if (!request.name.empty() && scalar.name != request.name) return Status::Ok();
    if (IsFull(out.records())) return TooManyRows("scalars");
    v1::ScalarRow& row = *out.add_records();
    row.set_run(request.run);
    row.set_rank(rank);
    row.set_step(scalar.step);
    row.set_micro_batch(scalar.micro_batch);
    row.set_name(std::move(scalar.name));
    row.set_value(scalar.value);
    return Status::Ok();
  };
  STATCOLLECT_RETURN_IF_ERROR(ForEachRecord<ScalarRecord>(context.store, request, take));
  if (out.records().empty() && !request.name.empty())
    return NothingNamed(context.store, request, "scalars", "scalar", request.name,
                        &ScalarRecord::name);
  SortBy(*out.mutable_records(), [](const v1::ScalarRow& row) {
    return std::tuple<const std::string&, std::uint32_t, std::uint64_t, std::uint32_t>(
        row.name(), row.rank(), row.step(), row.micro_batch());
  });
  return Status::Ok();
}

}  // namespace statcollect::query
