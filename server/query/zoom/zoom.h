// Answers a zoom: the calls of modules of which both runs have recorded the operators, compared.
#ifndef STATCOLLECT_SERVER_QUERY_ZOOM_ZOOM_H_
#define STATCOLLECT_SERVER_QUERY_ZOOM_ZOOM_H_

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "common/status.h"
#include "server/query/run_view.h"
#include "server/query/zoom/compare_calls.h"

namespace statcollect::query {

struct ZoomRequest {
  std::string run_a, run_b;
  std::string module;                // empty: every one that both have zoomed
  std::string steps;                 // as for StepSet::Parse
  std::vector<std::uint32_t> ranks;  // empty: all
};

struct ZoomCallReport {
  std::string module, class_name, pass;
  std::uint64_t step = 0;
  std::uint32_t rank = 0, micro_batch = 0, call = 0;
  std::uint64_t operators_a = 0, operators_b = 0, left_out_a = 0, left_out_b = 0;
  ZoomOutcome outcome = ZoomOutcome::kUnspecified;
  std::vector<ZoomOperator> a, b;  // as in ZoomComparison
  ZoomComparison comparison;       // without the operators
};

struct ZoomReport {
  std::string run_a, run_b;
  bool zoomed_a = false, zoomed_b = false;  // the run has zoomed calls at all
  std::vector<ZoomCallReport> calls;        // by step, rank, module, pass, micro-batch, call
  std::vector<std::string> notes;
};

// Reads the steps in which both have zoomed something; calls is empty if there is none.
Result<ZoomReport> CompareZooms(RunView& a, RunView& b, const ZoomRequest& request,
                                const std::stop_token& stop);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ZOOM_ZOOM_H_
