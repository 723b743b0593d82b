// Logs of PyTorch's DebugMode with hashes of tensors, as DebugMode.save_logs writes them, or as the
// text of debug_string().
#ifndef STATCOLLECT_CLIENT_FORMATS_DEBUG_MODE_LOG_H_
#define STATCOLLECT_CLIENT_FORMATS_DEBUG_MODE_LOG_H_

#include <cstdint>
#include <functional>
#include <string_view>

#include "client/formats/observation.h"
#include "client/formats/source.h"
#include "common/status.h"

namespace statcollect::client::formats {

// Whether a file of that name may be one.
inline bool MayBeDebugModeLog(std::string_view name) {
  return name.ends_with(".json") || name.ends_with(".txt") || name.ends_with(".log");
}
// Whether the file says that it is such a log; reads its beginning.
Result<bool> IsDebugModeLog(ByteSource& file);

// Calls `take` for each tensor that has a hash, as an observation of step 0, in the order of the
// file, and counts calls without one. kInvalidArgument, with file and line: not such a log. Memory:
// that of the largest call.
Status ReadDebugModeLog(ByteSource& file, Tally* tally,
                        const std::function<Status(Observation)>& take);

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_CLIENT_FORMATS_DEBUG_MODE_LOG_H_
