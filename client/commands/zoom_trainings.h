// Two trainings again, each up to a step in which the operators of one module are recorded.
#ifndef STATCOLLECT_CLIENT_COMMANDS_ZOOM_TRAININGS_H_
#define STATCOLLECT_CLIENT_COMMANDS_ZOOM_TRAININGS_H_

#include <string>

#include "client/commands/session.h"
#include "client/commands/training.h"
#include "client/render/page.h"
#include "common/status.h"
#include "proto/text/zoom_place.h"

namespace statcollect::client {

struct ZoomTrainings {
  Training a, b;  // as they were recorded, under the names of the runs
  ZoomPlace place;
  bool no_stop = false;  // train to the end
  bool reuse = false;    // recordings of last time, if nothing has changed
  bool show = false;     // the output of the trainings
};

// "base.zoom": the run into which a run's zoom is recorded.
std::string ZoomRunName(const std::string& run);

// Records both under these names, which are replaced, and compares their operators. Where what goes
// into the module differs already, again with the module around it, which computes that. kNotFound:
// they have recorded none; says what the agent says.
Result<v1::GetZoomResponse> TrainZoomed(Session& session, const ZoomTrainings& trainings);

// Whether the difference is made in this call; rounding and inputs are not of this module.
bool NamesOperators(const v1::ZoomCall& call);
// Whether it only hands on what comes from outside.
bool IsOfInputs(const v1::ZoomCall& call);
// The comparison for people. `quiet`: only what differs by more than rounding.
Page ZoomPage(const v1::GetZoomResponse& response, bool quiet);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_ZOOM_TRAININGS_H_
