// Statistics logs of TransformerEngine's debug features (nvdlfw_inspect): text with a line for each
// statistic.
#ifndef STATCOLLECT_CLIENT_FORMATS_TRANSFORMER_ENGINE_LOG_H_
#define STATCOLLECT_CLIENT_FORMATS_TRANSFORMER_ENGINE_LOG_H_

#include "client/formats/observation.h"
#include "client/formats/source.h"
#include "common/status.h"
#include "common/step_set.h"

namespace statcollect::client::formats {

// Hands on what one rank's log has of the steps, and their ends. Statistics that records do not
// have become scalars. A last line that was cut is counted. kInvalidArgument, with file and line:
// not such a log, or the logs of two trainings in one file.
Status ReadTransformerEngineLog(ByteSource& file, const StepSet& steps, Tally* tally,
                                ObservationSink& sink);

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_CLIENT_FORMATS_TRANSFORMER_ENGINE_LOG_H_
