// Raw values that agents captured (docs/capture.md): the captures and the values.
#ifndef STATCOLLECT_SERVER_QUERY_CAPTURES_CAPTURES_H_
#define STATCOLLECT_SERVER_QUERY_CAPTURES_CAPTURES_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "common/capture_spec.h"
#include "common/records.h"
#include "common/status.h"
#include "common/step_set.h"
#include "server/query/run_view.h"
#include "server/store/record_reader.h"

namespace statcollect::query {

struct CaptureRow {
  std::string run;
  std::uint32_t rank = 0;
  std::uint64_t step = 0;
  TensorDef def;
  Layout layout;
  std::uint64_t numel = 0;     // of the tensor
  std::uint64_t elements = 0;  // elements that were kept
  std::uint64_t bytes = 0;     // their size
  std::uint64_t bytes_stored = 0;
  std::uint32_t attempt = 0;  // launch of the run, from 1
  AttemptId attempt_id = 0;
  bool complete() const { return bytes_stored == bytes; }
};

// Selects the capture to read.
struct ReadCaptureRequest {
  std::string run;
  std::uint32_t rank = 0;
  std::uint64_t step = 0;
  std::string activation;
  std::optional<Kind> kind;                // empty: any, if there is only one
  std::optional<std::string> output_path;  // empty: any, if there is only one
  std::uint32_t micro_batch = 0;
  std::uint32_t call = 0;
  Mode mode = Mode::kTrain;
};

// All captures of the run's view, without superseded steps, ordered by step, rank and activation.
// `ranks`: empty: all. Reads no values.
Result<std::vector<CaptureRow>> FindCaptures(RecordReader& store, RunView& view,
                                             const std::vector<std::uint32_t>& ranks,
                                             const StepSet& wanted);

// Calls head once, then data for each part of the values, in order; their errors end the call.
// kNotFound: not captured; lists what is. kInvalidArgument: several match; lists them.
// kFailedPrecondition: not all of it has arrived. kDataLoss: a part is missing or damaged.
Status ReadCapture(RecordReader& store, const ReadCaptureRequest& request,
                   const std::function<Status(const CaptureRow&)>& head,
                   const std::function<Status(std::string)>& data, const std::stop_token& stop);

// Whether a capture request is meaningful: the newest launch has seen such an activation, or
// nothing yet. kNotFound: gives the closest names, or the kinds that the name has.
Status CheckCanBeCaptured(RecordReader& store, const std::string& run, const CaptureSpec& spec);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_CAPTURES_CAPTURES_H_
