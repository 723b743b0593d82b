// Measures, stores and loads the noise of runs.
#ifndef STATCOLLECT_SERVER_QUERY_NOISE_NOISE_STORE_H_
#define STATCOLLECT_SERVER_QUERY_NOISE_NOISE_STORE_H_

#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "common/status.h"
#include "server/query/compare/noise.h"
#include "server/query/noise/noise_profile.h"
#include "server/query/noise/noise_repeats.h"
#include "server/query/pairs/twins.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"
#include "server/query/types.h"
#include "server/store/document_store.h"

namespace statcollect::query {

struct KnownNoise {
  std::unique_ptr<NoiseFloor> floor;  // null: unknown
  std::unique_ptr<Twins> twins;       // null: none
  std::optional<NoiseSource> source;
  std::vector<std::string> notes;  // on twins that could not be used
};

// From the runs that a diff names, otherwise from A's twins, otherwise as stored for A. Twins take
// the place of a floor. Both borrow the view. `open`: opens a repeat as `a` was opened: as its
// ranks recorded it, or as one model. The stored noise, which is the largest over ranks, holds for
// whole tensors, too: relative to its size, a whole is never further apart than its furthest part.
// `fold`: micro-batches are one batch, whose noise is the largest of theirs.
Result<KnownNoise> OpenNoise(RecordReader& store, RunView& a, const DiffRequest& request,
                             const RepeatNoise::OpenRun& open, bool fold);

// See QueryEngine. `open`: as above.
Result<NoiseProfile> SaveNoiseOf(DocumentStore& store, RunView& a, const SaveNoiseRequest& request,
                                 const RepeatNoise::OpenRun& open, const OnProgress& progress,
                                 const std::stop_token& stop);
// kNotFound: no such run, or no noise is stored.
Result<NoiseProfile> StoredNoise(RecordReader& store, const std::string& run);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_NOISE_NOISE_STORE_H_
