// The statistics of one activation over the steps of a run.
#ifndef STATCOLLECT_SERVER_QUERY_ANSWERS_SERIES_H_
#define STATCOLLECT_SERVER_QUERY_ANSWERS_SERIES_H_

#include "server/query/answers/leaf.h"

namespace statcollect::query {

struct SeriesRequest {
  std::string run;
  std::string activation;                  // exact name
  Kind kind = Kind::kUnspecified;          // unspecified: all
  std::vector<std::uint32_t> ranks;        // empty: all
  std::string steps;                       // as for StepSet::Parse
  std::optional<std::string> output_path;  // absent: all
  bool by_rank = false;                    // the parts of tensors that are cut over ranks
};

Result<SeriesRequest> FromWire(const v1::GetSeriesRequest& request);

// Sorted by kind, output path, rank, step, micro-batch, call. Whole tensors where the run has cut
// them over its ranks, unless ranks are asked for. kNotFound: no such activation (gives the closest
// names).
Status GetSeries(const Context& context, const SeriesRequest& request, v1::GetSeriesResponse& out);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ANSWERS_SERIES_H_
