// Reads of records that are not statistics, and of what a rank defines.
#ifndef STATCOLLECT_SERVER_STORE_CLICKHOUSE_RECORDS_H_
#define STATCOLLECT_SERVER_STORE_CLICKHOUSE_RECORDS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"
#include "server/store/clickhouse/attempts.h"
#include "server/store/clickhouse/pages.h"
#include "server/store/codec/catalogue.h"
#include "server/store/record_reader.h"
#include "server/store/record_writer.h"

namespace statcollect {

inline constexpr std::size_t kSmallRowsPerPage = 4096;

// Hands each value to the visitor, changed by adapt(row, &value) first.
template <typename T, typename Adapt>
Status VisitRows(Engine& engine, AttemptTable& attempts, const std::string& what,
                 const PageRange& range, const Visitor<T>& visitor, const Adapt& adapt) {
  RowPages pages(engine, attempts, what, range, /*with_values=*/true, kSmallRowsPerPage);
  for (;;) {
    STATCOLLECT_ASSIGN_OR_RETURN(const auto more, pages.Next());
    if (!more) return Status::Ok();
    for (const StoredRow& row : pages.rows()) {
      STATCOLLECT_RETURN_IF_ERROR(visitor.Read(sizeof(std::uint64_t) + row.value.size()));
      STATCOLLECT_ASSIGN_OR_RETURN(
          auto value, Decode<T>(what + ", step " + std::to_string(row.step) + ", item " +
                                    std::to_string(row.item),
                                row.value));
      adapt(row, &value);
      STATCOLLECT_RETURN_IF_ERROR(visitor.take(std::move(value)));
    }
  }
}

template <typename T>
Result<std::vector<T>> ReadRows(Engine& engine, AttemptTable& attempts, const std::string& what,
                                const PageRange& range) {
  std::vector<T> values;
  Visitor<T> all;
  all.take = [&](T value) {
    values.push_back(std::move(value));
    return Status::Ok();
  };
  STATCOLLECT_RETURN_IF_ERROR(
      VisitRows(engine, attempts, what, range, all, [](const StoredRow&, T*) {}));
  return values;
}

// Like the methods of Store. Thread-safe.
// The live attempts, without anything of their ranks; then adds the ranks that an engine holds.
Result<std::vector<AttemptTally>> EmptyTallies(AttemptTable& attempts);
Status AddRanks(Engine& engine, std::vector<AttemptTally>* tallies);
Status VisitRecords(Engine& engine, AttemptTable& attempts, AttemptId attempt, std::uint32_t rank,
                    StepBounds steps, RecordVisitor visitor);
Result<std::string> ReadChunk(Engine& engine, AttemptId attempt, std::uint32_t rank,
                              std::uint64_t step, std::uint32_t activation, std::uint32_t offset);
Result<std::optional<std::int64_t>> ReadClock(Engine& engine);
Result<StoreUsage> ReadUsage(Engine& engine, AttemptTable& attempts);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CLICKHOUSE_RECORDS_H_
