#include "server/query/answers/density.h"

#include <utility>

#include "server/query/answers/message_parts.h"
#include "server/query/each_record.h"

namespace statcollect::query {

Result<DensityRequest> FromWire(const v1::ListDensityRequest& request) {
  auto wanted = SelectionFromWire<DensityRequest>(request);
  if (!wanted.ok()) return wanted;
  if (!request.input().empty())
    STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("input", request.input()));
  wanted->input = request.input();
  return wanted;
}

Status ListDensity(const Context& context, const DensityRequest& request,
                   v1::ListDensityResponse& out) {
  const auto take = [&](std::uint32_t rank, DensityRecord& record) {
    if (!request.input.empty() && record.input != request.input) return Status::Ok();
    if (IsFull(out.records())) return TooManyRows("density");
    v1::DensityRow& row = *out.add_records();
    row.set_run(request.run);
    row.set_rank(rank);
    row.set_step(record.step);
    row.set_micro_batch(record.micro_batch);
    row.set_input(std::move(record.input));
    row.set_type(std::string(Name(record.type)));
    row.set_pad_index(record.pad_index);
    row.set_valid(record.valid);
    row.set_total(record.total);
    row.mutable_valid_per_sample()->Assign(record.valid_per_sample.begin(),
                                           record.valid_per_sample.end());
    return Status::Ok();
  };
  STATCOLLECT_RETURN_IF_ERROR(ForEachRecord<DensityRecord>(context.store, request, take));
  if (out.records().empty() && !request.input.empty())
    return NothingNamed(context.store, request, "density", "input", request.input,
                        &DensityRecord::input);
  SortByStep(*out.mutable_records());
  return Status::Ok();
}

}  // namespace statcollect::query
