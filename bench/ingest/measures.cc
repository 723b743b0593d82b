#include "bench/ingest/measures.h"

#include <algorithm>
#include <iostream>

namespace statcollect::bench {

using nlohmann::json;

double Quantile(const std::vector<float>& sorted, double quantile) {
  if (sorted.empty()) return 0;
  const auto last = static_cast<double>(sorted.size() - 1);
  return static_cast<double>(sorted[static_cast<std::size_t>(quantile * last)]);
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

json UseJson(const ProcessUse& before, const ProcessUse& after, std::uint64_t records) {
  const double cpu = after.cpu_seconds - before.cpu_seconds;
  return {{"cpu_seconds", cpu},
          {"cpu_ns_per_record", records > 0 ? 1e9 * cpu / static_cast<double>(records) : 0},
          {"rss_peak_bytes", after.rss_peak_bytes}};
}

json StoredJson(const StoredBytes& before, const StoredBytes& now, std::uint64_t records) {
  const double added = static_cast<double>(now.total()) - static_cast<double>(before.total());
  return {{"bytes", now.total()},
          {"tables", now.tables},
          {"log", now.log},
          {"other", now.other},
          {"bytes_per_record", records > 0 ? added / static_cast<double>(records) : 0}};
}

json SendJson(const SendResult& sent) {
  double first = sent.seconds, last = 0;
  for (const StreamResult& stream : sent.streams) {
    first = std::min(first, stream.done_seconds);
    last = std::max(last, stream.done_seconds);
  }
  const auto [fewest, most] = std::minmax_element(
      sent.streams.begin(), sent.streams.end(),
      [](const StreamResult& a, const StreamResult& b) { return a.stat_records < b.stat_records; });
  return {{"seconds", sent.seconds},
          {"records", sent.records},
          {"stat_records", sent.stat_records},
          {"records_per_second", static_cast<double>(sent.stat_records) / sent.seconds},
          {"batches", sent.batches},
          {"wire_bytes", sent.bytes},
          {"wire_bytes_per_record",
           static_cast<double>(sent.bytes) / static_cast<double>(sent.stat_records)},
          {"fsync", sent.fsync},
          {"ack_ms",
           {{"p50", 1e3 * Quantile(sent.ack_seconds, 0.5)},
            {"p99", 1e3 * Quantile(sent.ack_seconds, 0.99)},
            {"max", 1e3 * Quantile(sent.ack_seconds, 1)}}},
          {"streams",
           {{"first_done_seconds", first},
            {"last_done_seconds", last},
            {"fewest_records", fewest->stat_records},
            {"most_records", most->stat_records}}}};
}

int Fail(const Status& problem) {
  std::cerr << "statcollect-bench: " << problem.message() << '\n';
  return 1;
}

}  // namespace statcollect::bench
