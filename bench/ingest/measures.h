// The results of the subcommands, as JSON.
#ifndef STATCOLLECT_BENCH_INGEST_MEASURES_H_
#define STATCOLLECT_BENCH_INGEST_MEASURES_H_

#include <cstdint>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/ingest/daemon.h"
#include "bench/ingest/sender.h"
#include "common/status.h"

namespace statcollect::bench {

// A quantile of sorted values; 0 if there are none.
double Quantile(const std::vector<float>& sorted, double quantile);
double Median(std::vector<double> values);

// cpu_seconds, cpu_ns_per_record, rss_peak_bytes.
nlohmann::json UseJson(const ProcessUse& before, const ProcessUse& after, std::uint64_t records);
// Sizes now; bytes_per_record: of what came since `before`.
nlohmann::json StoredJson(const StoredBytes& before, const StoredBytes& now, std::uint64_t records);
nlohmann::json SendJson(const SendResult& sent);

// Prints `problem` as ours; the exit code of a measurement that failed.
int Fail(const Status& problem);

}  // namespace statcollect::bench

#endif  // STATCOLLECT_BENCH_INGEST_MEASURES_H_
