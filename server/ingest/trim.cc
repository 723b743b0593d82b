#include "server/ingest/trim.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <numeric>
#include <vector>

#include "common/overloaded.h"

namespace statcollect {
namespace {

template <typename T>
void EraseFront(std::vector<T>* values, std::size_t count) {
  values->erase(values->begin(),
                values->begin() + static_cast<std::ptrdiff_t>(std::min(count, values->size())));
}

// Erases up to `*count` values and takes them off the count.
template <typename T>
void EraseCounted(std::vector<T>* values, std::uint64_t* count) {
  const std::uint64_t erased = std::min<std::uint64_t>(*count, values->size());
  EraseFront(values, erased);
  *count -= erased;
}

void TrimStats(StatColumns* columns, std::uint64_t* count) {
  const std::size_t n = std::min<std::uint64_t>(*count, columns->size());
  const std::size_t counted = std::min(n, columns->sample_count.size());
  const std::size_t samples = std::accumulate(
      columns->sample_count.begin(),
      columns->sample_count.begin() + static_cast<std::ptrdiff_t>(counted), std::size_t{0});
  EraseFront(&columns->activation, n);
  EraseFront(&columns->layout, n);
  EraseFront(&columns->step, n);
  EraseFront(&columns->order, n);
  EraseFront(&columns->stats, n);
  EraseFront(&columns->sketch, n * columns->sketch_width);
  EraseFront(&columns->sample_count, n);
  EraseFront(&columns->samples, samples);
  *count -= n;
}

}  // namespace

void TrimFront(RecordBatch* batch, std::uint64_t count) {
  assert(count <= batch->records());
  batch->first_seq += count;
  ForEachKind(*batch, Overloaded{[&](StatColumns& stats) { TrimStats(&stats, &count); },
                                 [&](auto& records) { EraseCounted(&records, &count); }});
}

}  // namespace statcollect
