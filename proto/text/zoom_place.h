// Where in two runs a zoom begins (docs/zoom.md).
#ifndef STATCOLLECT_PROTO_TEXT_ZOOM_PLACE_H_
#define STATCOLLECT_PROTO_TEXT_ZOOM_PLACE_H_

#include <cstdint>
#include <string>

#include "common/status.h"
#include "statcollect/v1/query.pb.h"

namespace statcollect {

// A module in one step, whose operators STATAGENT_ZOOM records.
struct ZoomPlace {
  std::string module;
  std::uint64_t step = 0;

  // "blocks.1.ln2@3", as STATAGENT_ZOOM takes it.
  std::string ToText() const;
};

// The module whose forward pass computes the root, or without one the first divergence, in both
// runs. kNotFound: there is none; says why, and what was expected.
Result<ZoomPlace> PlaceToZoom(const v1::DiffReport& report);

}  // namespace statcollect

#endif  // STATCOLLECT_PROTO_TEXT_ZOOM_PLACE_H_
