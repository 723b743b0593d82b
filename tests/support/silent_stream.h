// A stream that nothing reaches, for tests of whoever opens one.
#ifndef STATCOLLECT_TESTS_SUPPORT_SILENT_STREAM_H_
#define STATCOLLECT_TESTS_SUPPORT_SILENT_STREAM_H_

#include <string>

#include "server/ingest/registry.h"

namespace statcollect::testing {

struct SilentStream final : OpenStream {
  void EndStream(const Status&) override {}
  void RecordSteps(const std::string&) override {}
  void Capture(const CaptureRequest&) override {}
  void RecordFull(const FullSteps&) override {}
};

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_SUPPORT_SILENT_STREAM_H_
