#include "server/api/convert_checks.h"

#include "common/choice.h"
#include "common/names.h"
#include "proto/json.h"
#include "server/api/convert/parts.h"
#include "server/query/answers/tensor_row.h"

namespace statcollect::api {
namespace {

void Fill(const query::FormatLoss& from, std::uint64_t components, v1::FormatLoss& to) {
  to.set_dtype(std::string(Name(from.format)));
  to.set_to_zero(from.to_zero);
  to.set_subnormal(from.subnormal);
  to.set_overflow(from.overflow);
  to.set_lost(components == 0 ? 0.0 : static_cast<double>(from.lost()) / static_cast<double>(components));
}

void Fill(const query::ExponentRow& from, v1::ExponentRow& to) {
  query::FillTensor(from, from.record.step, to);
  to.set_lowest(from.record.lowest);
  to.mutable_counts()->Assign(from.record.counts.begin(), from.record.counts.end());
  to.set_components(from.components);
  for (const query::FormatLoss& loss : from.formats) Fill(loss, from.components, *to.add_formats());
  to.set_steps(from.steps);
  if (from.since_step) to.set_since_step(*from.since_step);
  to.set_last_step(from.last_step);
}

bool IsNarrowFloat(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBf16 || dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2;
}

}  // namespace

Result<query::ExponentsRequest> FromWire(const v1::ListExponentsRequest& request) {
  auto wanted = SelectionFromWire<query::ExponentsRequest>(request);
  if (!wanted.ok()) return wanted;
  const auto format = static_cast<DType>(request.format());
  if (request.format() != v1::DTYPE_UNSPECIFIED &&
      (request.format() < 0 || request.format() >= kDTypeCount || !IsNarrowFloat(format))) {
    return Status(Code::kInvalidArgument,
                  "exponents: format: " + NotOneOf(EnumText(*v1::DType_descriptor(), request.format()),
                                                   {"f16", "bf16", "f8e4m3", "f8e5m2"}));
  }
  if (!(request.lost_min() >= 0 && request.lost_min() <= 1)) {
    return Status(Code::kInvalidArgument, "exponents: lost_min is " + std::to_string(request.lost_min()) +
                                              "; expected a share of 0..1");
  }
  wanted->format = format;
  wanted->summary = request.summary();
  if (request.lost_min() > 0) wanted->lost_min = request.lost_min();
  return wanted;
}

void ToWire(const std::vector<query::ExponentRow>& rows, v1::ListExponentsResponse& out) {
  for (const query::ExponentRow& row : rows) Fill(row, *out.add_records());
}

}  // namespace statcollect::api
