#include "server/api/convert/parts.h"

namespace statcollect::api {

void ToWire(const query::Compared& compared, v1::Compared& out) {
  out.set_records(compared.records);
  out.set_identical(compared.identical);
  out.set_within_tolerance(compared.within_tolerance);
  out.set_diverged(compared.diverged);
}

}  // namespace statcollect::api
