// Capture requests, stored with the run as a document, so that ranks that connect later and a
// restarted collector still know them.
#ifndef STATCOLLECT_SERVER_STORE_CAPTURE_REQUESTS_H_
#define STATCOLLECT_SERVER_STORE_CAPTURE_REQUESTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/capture_spec.h"
#include "common/status.h"
#include "server/store/document_store.h"

namespace statcollect {

inline constexpr std::size_t kCaptureRequestsMax = kCaptureSpecsMax;  // per run: the newest ones

struct CaptureRequest {
  std::uint64_t id = 0;  // within the run, from 1
  AttemptId attempt = 0;
  std::vector<std::uint32_t> ranks;
  std::int64_t asked_unix_nanos = 0;
  CaptureSpec spec;
};

std::string EncodeCaptureRequests(const std::vector<CaptureRequest>& requests);
// kDataLoss: the bytes are not such a list.
Result<std::vector<CaptureRequest>> DecodeCaptureRequests(std::string_view bytes);

// The requests of all attempts of the run, oldest first.
Result<std::vector<CaptureRequest>> ReadCaptureRequests(RecordReader& store,
                                                        const std::string& run);
// Durable when it returns. Keeps only the newest kCaptureRequestsMax.
Status WriteCaptureRequests(DocumentStore& store, const std::string& run,
                            std::vector<CaptureRequest> requests);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CAPTURE_REQUESTS_H_
