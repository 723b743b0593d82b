#include "server/store/clickhouse/schema.h"

#include <algorithm>
#include <random>
#include <set>
#include <utility>

#include "common/names.h"
#include "common/parse.h"
#include "server/store/clickhouse/entries.h"

namespace statcollect {
namespace {

struct TableSpec {
  std::string_view name, columns, version, order, more;
};

// A part is read in pieces of index_granularity rows at least; a block of statistics with its sketches has 25 KB.
constexpr TableSpec kTables[] = {
    {"store", "key String, value String, made UInt64", "made", "key", ""},
    {"attempts",
     "id UInt32, version UInt64, state UInt8, run String, launch String, number UInt32, world_size UInt32, start Int64",
     "version", "id", ""},
    {"documents",
     "run String, kind UInt8, name String, version UInt64, gone UInt8, owners String, value String",
     "version", "(run, kind, name)", " SETTINGS index_granularity = 16"},
    {"records",
     "attempt UInt32, family UInt8, rank UInt32, step UInt64, item UInt64, epoch UInt64, n UInt64, seq UInt64, cut UInt64, parent UInt64, "
     "records UInt32, digest FixedString(16), value String",
     "n", "(family, rank, step, item, epoch)", " SETTINGS index_granularity = 64"},
};

std::string CreateTable(const Engine& engine, const TableSpec& table) {
  std::string engine_of_table = "ReplacingMergeTree(" + std::string(table.version) + ")";
  if (engine.dsn().quorum > 0) {
    engine_of_table = "ReplicatedReplacingMergeTree('/clickhouse/tables/{shard}/" + engine.dsn().database +
                      "/" + std::string(table.name) + "', '{replica}', " + std::string(table.version) + ")";
  }
  std::string statement = "CREATE TABLE IF NOT EXISTS " + TableName(engine, table.name) + " (" +
                          std::string(table.columns) + ") ENGINE = " + engine_of_table;
  if (table.name == "records") statement += " PARTITION BY attempt";
  statement += " ORDER BY " + std::string(table.order) + std::string(table.more);
  if (engine.is_modern()) {
    statement += table.more.empty() ? " SETTINGS " : ", ";
    statement += "fsync_after_insert = 1, fsync_part_directory = 1";
  }
  return statement;
}

std::string RandomBytes(std::size_t count) {
  std::random_device random;
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

Result<std::set<std::string>> TablesOf(Engine& engine, const std::string& attempted) {
  const auto answer = engine.Select(
      attempted, "SELECT name FROM system.tables WHERE database = " + SqlText(engine.dsn().database));
  if (!answer.ok()) return answer.status();
  std::set<std::string> names;
  ByteReader in(*answer);
  while (in.ok() && in.remaining() > 0) names.insert(in.Text());
  if (!in.ok()) return BadAnswer(engine, attempted);
  return names;
}

Status CheckFormat(Engine& engine, const std::string& attempted, const std::set<std::string>& tables) {
  if (!tables.contains("store")) {
    for (const TableSpec& table : kTables) {
      if (!tables.contains(std::string(table.name))) continue;
      return {Code::kFailedPrecondition,
              attempted + ": found a table '" + std::string(table.name) +
                  "' and no table 'store'; expected an empty database or one of statcollect; name another "
                  "database in --store"};
    }
    return Status::Ok();
  }
  const auto format = ReadEntry(engine, attempted, "format");
  if (!format.ok()) return format.status();
  if (format->empty() || *format == std::to_string(kClickHouseFormatVersion)) return Status::Ok();
  return {Code::kFailedPrecondition,
          attempted + ": found tables of format " + Printable(*format) + "; expected " +
              std::to_string(kClickHouseFormatVersion) +
              "; use the version of statcollectord that wrote them, or name another database in --store"};
}

}  // namespace

std::string TableName(const Engine& engine, std::string_view table) {
  return engine.dsn().database + "." + std::string(table);
}

std::string SqlText(std::string_view text) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string hex = "unhex('";
  for (const char c : text) {
    hex += kHex[static_cast<unsigned char>(c) >> 4];
    hex += kHex[static_cast<unsigned char>(c) & 15];
  }
  return hex + "')";
}

std::string SqlPlace(AttemptId attempt, RowFamily family, std::uint32_t rank) {
  return "attempt = " + std::to_string(attempt) + " AND family = " + SqlOf(family) +
         " AND rank = " + std::to_string(rank);
}

std::string SqlSteps(StepBounds steps) {
  if (steps.first == 0 && steps.last == ~std::uint64_t{0}) return "";
  return " AND step >= " + std::to_string(steps.first) + " AND step <= " + std::to_string(steps.last);
}

Status BadAnswer(const Engine& engine, const std::string& attempted) {
  return {Code::kDataLoss,
          attempted + ": found an answer of ClickHouse " + Printable(engine.version()) +
              " that does not have the columns asked for; expected rows in the format RowBinary; "
              "does a proxy change the answers?"};
}

BlockDigest ReadDigest(ByteReader& in) {
  BlockDigest digest{};
  const std::string_view bytes = in.Raw(digest.size());
  if (bytes.size() == digest.size()) std::copy(bytes.begin(), bytes.end(), digest.begin());
  return digest;
}

std::string RecordsInto(const Engine& engine) {
  return TableName(engine, "records") +
         " (attempt, family, rank, step, item, epoch, n, seq, cut, parent, records, digest, value)";
}

void AddRecordRow(AttemptId attempt, std::uint32_t rank, const RecordRow& row, const RowStamp& stamp,
                  ByteWriter* to) {
  to->U32(attempt);
  to->U8(static_cast<std::uint8_t>(row.family));
  to->U32(rank);
  for (const std::uint64_t number :
       {row.step, row.item, stamp.epoch, stamp.n, stamp.seq, stamp.cut, stamp.parent})
    to->U64(number);
  to->U32(row.records);
  to->Raw({reinterpret_cast<const char*>(row.digest.data()), row.digest.size()});
  to->Text(row.value);
}

Result<StoreIdentity> OpenSchema(Engine& engine) {
  const std::string attempted = "open the store " + engine.dsn().Describe();
  STATCOLLECT_RETURN_IF_ERROR(
      engine.ExecuteEverywhere(attempted, "CREATE DATABASE IF NOT EXISTS " + engine.dsn().database));
  const auto tables = TablesOf(engine, attempted);
  if (!tables.ok()) return tables.status();
  STATCOLLECT_RETURN_IF_ERROR(CheckFormat(engine, attempted, *tables));
  for (const TableSpec& table : kTables)
    STATCOLLECT_RETURN_IF_ERROR(engine.ExecuteEverywhere(attempted, CreateTable(engine, table)));
  const auto entries =
      EnsureEntries(engine, attempted,
                    {{"format", std::to_string(kClickHouseFormatVersion)}, {"identity", RandomBytes(24)}});
  if (!entries.ok()) return entries.status();
  StoreIdentity identity;
  ByteReader in(entries->at("identity"));
  const std::string_view id = in.Raw(identity.id.size());
  if (id.size() == identity.id.size()) std::copy(id.begin(), id.end(), identity.id.begin());
  identity.epoch = in.U64();
  if (!in.done()) return BadAnswer(engine, attempted);
  return identity;
}

}  // namespace statcollect
