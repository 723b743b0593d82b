// Logs of PyTorch's DebugMode with hashes of tensors, as DebugMode.save_logs writes them.
#ifndef STATCOLLECT_CLIENT_FORMATS_DEBUG_MODE_LOG_H_
#define STATCOLLECT_CLIENT_FORMATS_DEBUG_MODE_LOG_H_

#include <cstdint>
#include <functional>

#include "client/formats/observation.h"
#include "client/formats/source.h"
#include "common/status.h"

namespace statcollect::client::formats {

// Whether the file says that it is such a log; reads its beginning.
Result<bool> IsDebugModeLog(ByteSource& file);

// Calls `take` for each tensor that has a hash, as an observation of step 0, in the order of the
// file, and counts calls without one. kInvalidArgument, with file and line: not such a log. Memory:
// that of the largest call.
Status ReadDebugModeLog(ByteSource& file, Tally* tally,
                        const std::function<Status(Observation)>& take);

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_CLIENT_FORMATS_DEBUG_MODE_LOG_H_
