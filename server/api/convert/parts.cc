#include "server/api/convert/parts.h"

#include <string>

#include "common/names.h"

namespace statcollect::api {

void ToWire(const query::Compared& compared, v1::Compared& out) {
  out.set_records(compared.records);
  out.set_identical(compared.identical);
  out.set_within_tolerance(compared.within_tolerance);
  out.set_diverged(compared.diverged);
}

void ToWire(const query::HeatMapRow& row, v1::HeatMapRow& out) {
  out.set_stage(static_cast<v1::Stage>(row.stage));
  out.set_kind(static_cast<v1::Kind>(row.kind));
  out.set_activation(row.activation);
  out.set_output_path(row.output_path);
  out.set_activation_b(row.activation_b);
  out.set_mode(std::string(Name(row.mode)));
  out.set_tensors(row.tensors);
}

}  // namespace statcollect::api
