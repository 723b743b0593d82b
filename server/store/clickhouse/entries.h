// Entries of the table `store`: small values by name, each written once in the life of the tables.
#ifndef STATCOLLECT_SERVER_STORE_CLICKHOUSE_ENTRIES_H_
#define STATCOLLECT_SERVER_STORE_CLICKHOUSE_ENTRIES_H_

#include <map>
#include <string>
#include <string_view>

#include "common/status.h"
#include "server/store/clickhouse/engine.h"

namespace statcollect {

// Empty: there is none.
Result<std::string> ReadEntry(Engine& engine, const std::string& attempted, std::string_view key);
// Writes those that are missing, and returns what stands: collectors that do so at the same time
// get the same values, and merges of the table keep them.
using Entries = std::map<std::string, std::string>;
Result<Entries> EnsureEntries(Engine& engine, const std::string& attempted, Entries entries);

// Ok: the engine accepts writes, with a quorum if there is one.
Status ProbeWrite(Engine& engine, const std::string& attempted);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CLICKHOUSE_ENTRIES_H_
