#include "server/store/clickhouse/schema.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "common/names.h"
#include "common/parse.h"
#include "common/text.h"
#include "server/store/clickhouse/entries.h"

namespace statcollect {
namespace {

struct TableSpec {
  std::string_view name, columns, version, order, more;
};

// A part is read in pieces of index_granularity rows at least; a block of statistics with its
// sketches has 25 KB.
constexpr TableSpec kTables[] = {
    {"store", "key String, value String, made UInt64", "made", "key", ""},
    {"attempts",
     "id UInt32, version UInt64, state UInt8, run String, launch String, number UInt32, world_size "
     "UInt32, start Int64",
     "version", "id", ""},
    {"documents",
     "run String, kind UInt8, name String, version UInt64, gone UInt8, owners String, value String",
     "version", "(run, kind, name)", " SETTINGS index_granularity = 16"},
    {"records",
     "attempt UInt32, family UInt8, rank UInt32, step UInt64, item UInt64, epoch UInt64, n UInt64, "
     "seq UInt64, cut UInt64, parent UInt64, records UInt32, digest FixedString(16), value String",
     "n", "(family, rank, step, item, epoch)", " SETTINGS index_granularity = 64"},
};

// `more_columns`: beyond those of the format.
std::string CreateTable(const Engine& engine, const TableSpec& table,
                        const std::string& more_columns = "") {
  std::string engine_of_table = "ReplacingMergeTree(" + std::string(table.version) + ")";
  if (engine.dsn().quorum > 0) {
    engine_of_table = "ReplicatedReplacingMergeTree('/clickhouse/tables/{shard}/" +
                      engine.dsn().database + "/" + std::string(table.name) + "', '{replica}', " +
                      std::string(table.version) + ")";
  }
  std::string statement = "CREATE TABLE IF NOT EXISTS " + TableName(engine, table.name) + " (" +
                          std::string(table.columns) + more_columns +
                          ") ENGINE = " + engine_of_table;
  if (table.name == "records") statement += " PARTITION BY attempt";
  statement += " ORDER BY " + std::string(table.order) + std::string(table.more);
  if (engine.is_modern()) {
    statement += table.more.empty() ? " SETTINGS " : ", ";
    statement += "fsync_after_insert = 1, fsync_part_directory = 1";
  }
  return statement;
}

constexpr std::size_t kIdentityBytes = 24;

std::string RandomBytes(std::size_t count) {
  std::random_device random;
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// Of collectors that create the table `store` at the same moment one does, at its host or, with
// replicas, in ZooKeeper. So what they must agree on, the identity, is part of its definition: the
// default of a column that no insert names.
constexpr int kFoundTries = 50;
constexpr std::chrono::milliseconds kFoundPause{100};

// What the column's default is, as the engine writes it; empty: the table is older than the column.
// Nothing: no table.
Result<std::optional<std::string>> FoundedIdentity(Engine& engine, const std::string& attempted) {
  STATCOLLECT_ASSIGN_OR_RETURN(
      const auto hosts,
      engine.SelectEverywhere(
          attempted, "SELECT name, default_expression FROM system.columns WHERE database = " +
                         SqlText(engine.dsn().database) + " AND table = 'store'"));
  std::optional<std::string> founded;
  for (const Engine::HostRows& host : hosts) {
    STATCOLLECT_RETURN_IF_ERROR(ForEachRow(engine, attempted, host.rows, [&](ByteReader& in) {
      const std::string column = in.Text();
      std::string expression = in.Text();
      if (!founded) founded = "";
      if (column == "identity") founded = std::move(expression);
    }));
  }
  return founded;
}

// What FoundedIdentity says of the table, which is there afterwards.
Result<std::string> FoundStore(Engine& engine, const std::string& attempted) {
  for (int tries = 1;; ++tries) {
    auto founded = FoundedIdentity(engine, attempted);
    if (!founded.ok()) return founded.status();
    const std::string identity = founded->value_or(SqlText(RandomBytes(kIdentityBytes)));
    const std::string column = identity.empty() ? "" : ", identity String DEFAULT " + identity;
    const Status created =
        engine.ExecuteEverywhere(attempted, CreateTable(engine, kTables[0], column));
    if (created.ok()) {
      if (!*founded)
        founded = FoundedIdentity(engine, attempted);  // another collector's, if that one was first
      return founded.ok() ? Result<std::string>(founded->value_or("")) : founded.status();
    }
    // kAborted: another collector was first at another replica, which may not show the table yet.
    if (created.code() != Code::kAborted || tries == kFoundTries) return created;
    std::this_thread::sleep_for(kFoundPause);
  }
}

// In bytes, of what FoundStore returned. In a table that is older than the column, the entry
// `identity` counts; in others it says the same.
Result<std::string> IdentityOf(Engine& engine, const std::string& attempted,
                               const std::string& expression) {
  std::string identity;
  if (!expression.empty()) {
    STATCOLLECT_RETURN_IF_ERROR(SelectOne(engine, attempted,
                                          "SELECT " + expression + " AS identity",
                                          [&](ByteReader& in) { identity = in.Text(); }));
  }
  STATCOLLECT_ASSIGN_OR_RETURN(
      const auto entries,
      EnsureEntries(engine, attempted,
                    {{"format", std::to_string(kClickHouseFormatVersion)},
                     {"identity", expression.empty() ? RandomBytes(kIdentityBytes) : identity}}));
  return expression.empty() ? entries.at("identity") : identity;
}

// A table as one host has it. Of one that another collector is creating at this moment, one half
// may be missing.
struct FoundTable {
  std::string engine;
  std::map<std::string, std::string> columns;  // name to type
};
struct FoundTables {
  std::string url;
  std::map<std::string, FoundTable> tables;
};

Result<std::vector<FoundTables>> TablesOf(Engine& engine, const std::string& attempted) {
  const std::string database = SqlText(engine.dsn().database);
  STATCOLLECT_ASSIGN_OR_RETURN(
      const auto answers,
      engine.SelectEverywhere(
          attempted,
          "SELECT name AS t, '' AS c, engine AS v FROM system.tables WHERE database = " + database +
              " UNION ALL SELECT table AS t, name AS c, type AS v FROM system.columns WHERE "
              "database = " +
              database));
  std::vector<FoundTables> all;
  for (const Engine::HostRows& host : answers) {
    FoundTables& found = all.emplace_back(FoundTables{.url = host.url, .tables = {}});
    STATCOLLECT_RETURN_IF_ERROR(ForEachRow(engine, attempted, host.rows, [&](ByteReader& in) {
      FoundTable& table = found.tables[in.Text()];
      std::string column = in.Text(), value = in.Text();
      if (column.empty())
        table.engine = std::move(value);
      else
        table.columns[std::move(column)] = std::move(value);
    }));
  }
  return all;
}

// What is wrong with the tables of a host; empty: nothing. Then what to do about it.
std::string WrongEngine(const TableSpec& table, const std::string& found, unsigned quorum) {
  constexpr std::string_view kPlain = "ReplacingMergeTree";
  const std::string of = "found table '" + std::string(table.name) + "' ";
  if (!found.ends_with(kPlain))
    return of + "of engine " + Printable(found) + "; expected " + std::string(kPlain) +
           ", or an empty database; name another database in --store";
  const bool replicated = found != kPlain;
  if (replicated && quorum == 0)
    return of +
           "with replicas; expected tables without, because --store has no quorum=, and what is "
           "written without a quorum is not seen by readers with one; name the hosts and the "
           "quorum that the other collectors name";
  if (!replicated && quorum > 0)
    return of + "without replicas; expected replicated tables, because --store has quorum=" +
           std::to_string(quorum) +
           ", and no other host would get what is written here; name a new database in --store, "
           "and copy the runs there with statctl move migrate";
  return "";
}

std::string WrongColumns(const TableSpec& table, const std::map<std::string, std::string>& found) {
  for (std::string_view column : PartsOf(table.columns, ',')) {
    column = Trimmed(column);
    const std::size_t space = column.find(' ');
    const auto at = found.find(std::string(column.substr(0, space)));
    const bool missing = at == found.end();
    if (!missing && at->second == column.substr(space + 1)) continue;
    return "found table '" + std::string(table.name) + "' " +
           (missing ? "without" : "with another") + " column '" + std::string(column) + "'" +
           (missing ? "" : ", of type " + Printable(at->second)) +
           "; expected the tables of format " + std::to_string(kClickHouseFormatVersion) +
           "; undo what has changed them, or name another database in --store";
  }
  return "";
}

std::string WrongFormat(const std::string& found) {
  if (found.empty() || found == std::to_string(kClickHouseFormatVersion)) return "";
  return "found tables of format " + Printable(found) + "; expected " +
         std::to_string(kClickHouseFormatVersion) +
         "; use the version of statcollectord that wrote them, or name another database in --store";
}

std::string WrongTables(const FoundTables& found, unsigned quorum, bool with_columns) {
  for (const TableSpec& table : kTables) {
    const auto at = found.tables.find(std::string(table.name));
    if (at == found.tables.end()) continue;
    if (!found.tables.contains("store"))
      return "found a table '" + at->first +
             "' and no table 'store'; expected an empty database or one of statcollect; name "
             "another database in --store";
    const auto& [of_table, columns] = at->second;
    if (std::string wrong = of_table.empty() ? "" : WrongEngine(table, of_table, quorum);
        !wrong.empty())
      return wrong;
    // The columns of the others depend on the format, which this one has.
    if (columns.empty() || (!with_columns && table.name != "store")) continue;
    if (std::string wrong = WrongColumns(table, columns); !wrong.empty()) return wrong;
  }
  return "";
}

// Whatever tables there are already, at each host that answers.
Status CheckTables(Engine& engine, const std::string& attempted) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto hosts, TablesOf(engine, attempted));
  for (const bool with_columns : {false, true}) {
    bool has_store = false;
    for (const FoundTables& host : hosts) {
      has_store = has_store || host.tables.contains("store");
      const std::string wrong = WrongTables(host, engine.dsn().quorum, with_columns);
      if (!wrong.empty())
        return {Code::kFailedPrecondition,
                attempted + ": ClickHouse at " + host.url + ": " + wrong};
    }
    if (with_columns || !has_store) continue;
    STATCOLLECT_ASSIGN_OR_RETURN(const auto format, ReadEntry(engine, attempted, "format"));
    if (const std::string wrong = WrongFormat(format); !wrong.empty())
      return {Code::kFailedPrecondition, attempted + ": " + wrong};
  }
  return Status::Ok();
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
  return " AND step >= " + std::to_string(steps.first) +
         " AND step <= " + std::to_string(steps.last);
}

Status BadAnswer(const Engine& engine, const std::string& attempted) {
  return {Code::kDataLoss, attempted + ": found an answer of ClickHouse " +
                               Printable(engine.version()) +
                               " that does not have the columns asked for; expected rows in the "
                               "format RowBinary; does a proxy change the answers?"};
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

void AddRecordRow(AttemptId attempt, std::uint32_t rank, const RecordRow& row,
                  const RowStamp& stamp, ByteWriter* to) {
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
  STATCOLLECT_RETURN_IF_ERROR(CheckTables(engine, attempted));
  STATCOLLECT_RETURN_IF_ERROR(engine.ExecuteEverywhere(
      attempted, "CREATE DATABASE IF NOT EXISTS " + engine.dsn().database));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto founded, FoundStore(engine, attempted));
  for (const TableSpec& table : std::span(kTables).subspan(1))
    STATCOLLECT_RETURN_IF_ERROR(engine.ExecuteEverywhere(attempted, CreateTable(engine, table)));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto bytes, IdentityOf(engine, attempted, founded));
  StoreIdentity identity;
  ByteReader in(bytes);
  const std::string_view id = in.Raw(identity.id.size());
  if (id.size() == identity.id.size()) std::copy(id.begin(), id.end(), identity.id.begin());
  identity.epoch = in.U64();
  if (!in.done()) return BadAnswer(engine, attempted);
  return identity;
}

}  // namespace statcollect
