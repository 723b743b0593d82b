// The tables of the store in a ClickHouse database:
//
//   store      key, value: the version of this format, the identity of the store
//   attempts   one row for each change of an attempt; the row of the highest version stands
//   documents  documents of runs, and which runs are kept; likewise
//   records    everything of an attempt, in a partition of its own
#ifndef STATCOLLECT_SERVER_STORE_CLICKHOUSE_SCHEMA_H_
#define STATCOLLECT_SERVER_STORE_CLICKHOUSE_SCHEMA_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/records.h"
#include "common/status.h"
#include "server/store/block_digest.h"
#include "server/store/byte_io.h"
#include "server/store/clickhouse/engine.h"
#include "server/store/codec/record_kinds.h"
#include "server/store/run_reader.h"

namespace statcollect {

inline constexpr int kClickHouseFormatVersion = 1;

// Creates the database and the tables if they are missing, and reads the store's identity.
// kFailedPrecondition: the tables are of another version, or of something else.
Result<StoreIdentity> OpenSchema(Engine& engine);

// A row of `records`. Its key is (family, rank, step, item, epoch): of rows with the same key the
// one of the highest `n` stands. Over epochs, the last row that counts stands (chain.h).
struct RecordRow {
  RowFamily family;
  std::uint64_t step = 0;
  std::uint64_t item = 0;  // activation, id, sequence number, or activation << 32 | offset
  std::uint32_t records = 0;
  BlockDigest digest{};
  std::string_view value;
};

// Who wrote a row, and when.
struct RowStamp {
  std::uint64_t epoch = 0, n = 0;
  std::uint64_t seq = 0;  // the last record of the batch
  std::uint64_t cut = 0;  // of the epoch, and the epoch that it continues
  std::uint64_t parent = 0;
};

std::string RecordsInto(const Engine& engine);
void AddRecordRow(AttemptId attempt, std::uint32_t rank, const RecordRow& row,
                  const RowStamp& stamp, ByteWriter* to);

// The table's full name.
std::string TableName(const Engine& engine, std::string_view table);
// As an expression of SQL.
std::string SqlText(std::string_view text);
inline std::string SqlOf(RowFamily family) { return std::to_string(static_cast<unsigned>(family)); }
// "attempt = 3 AND family = 98 AND rank = 1".
std::string SqlPlace(AttemptId attempt, RowFamily family, std::uint32_t rank);
// " AND step BETWEEN 3 AND 7".
std::string SqlSteps(StepBounds steps);

// An answer of the engine that does not have the expected columns.
Status BadAnswer(const Engine& engine, const std::string& attempted);
// Calls row(in) for each row of an answer; it must read all columns.
template <typename Row>
Status ForEachRow(const Engine& engine, const std::string& attempted, std::string_view answer,
                  const Row& row) {
  ByteReader in(answer);
  while (in.ok() && in.remaining() > 0) row(in);
  return in.ok() ? Status::Ok() : BadAnswer(engine, attempted);
}
template <typename Row>
Status SelectRows(Engine& engine, const std::string& attempted, const std::string& query,
                  const Row& row) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto answer, engine.Select(attempted, query));
  return ForEachRow(engine, attempted, answer, row);
}
// Of a query that has one row.
template <typename Row>
Status SelectOne(Engine& engine, const std::string& attempted, const std::string& query,
                 const Row& row) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto answer, engine.Select(attempted, query));
  ByteReader in(answer);
  row(in);
  return in.done() ? Status::Ok() : BadAnswer(engine, attempted);
}
BlockDigest ReadDigest(ByteReader& in);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CLICKHOUSE_SCHEMA_H_
