#include "server/api/convert.h"

#include "common/names.h"
#include "server/api/convert/parts.h"

namespace statcollect::api {

Result<query::SaveNoiseRequest> FromWire(const v1::SaveNoiseRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  STATCOLLECT_ASSIGN_OR_RETURN(auto repeats, RunsFromWire("repeats", request.repeats()));
  return query::SaveNoiseRequest{.run = request.run(), .repeats = std::move(repeats)};
}

}  // namespace statcollect::api
